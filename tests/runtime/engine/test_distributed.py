"""The distributed engine, with real workers over gloo.

Its results equal those of the inline engine.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket.program.instruction import COMPUTE, GATHER, REDUCE, Kind
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from tests import tiers
from tests.limits import HUNG_S
from tests.runtime.engine.helpers.workers import OVER_GLOO, RUNS, start
from tests.runtime.helpers.plans import assert_same_losses, assert_same_weights, captured, program_of

pytestmark = pytest.mark.workers

CASES = [(workers, number) for workers, runs in RUNS.items() for number in range(len(runs))]
NAMES = [f"{workers} workers {RUNS[workers][number][0]}" for workers, number in CASES]
# What single tests look at, all of two workers: GPipe and 1F1B with 16 microbatches, and replicas.
ALWAYS = [n for n, r in enumerate(RUNS[2]) if r[0].batch_size == 32]
ALWAYS.append(next(n for n, r in enumerate(RUNS[2]) if r[0].strategy == "data_parallel"))
Results = dict[tuple[int, int], list[tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]]]


def each_case(test: Any) -> Any:
    """Parametrize a test by every case.

    The fast selection has every value of a case's fields, over gloo and through shared memory.
    """
    test = pytest.mark.thinned(of=traits)(test)
    return pytest.mark.parametrize(("workers", "number"), CASES, ids=NAMES)(test)


def traits(workers: int, number: int) -> tuple[Any, ...]:
    """Return the fields whose values the fast selection covers."""
    case, model, *_ = RUNS[workers][number]
    return case.strategy, case.shard, case.out, workers, number in OVER_GLOO[workers], "bfloat16" in model


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Results:
    """Return the results of every case by rank.

    The results are facts, weights, and weights after one more segment. Each number of workers is started once.
    """
    found: Results = {}
    chosen = tiers.asked(request, "workers", "number") | {(2, number) for number in ALWAYS}
    for workers in sorted({workers for workers, _ in chosen}):
        folder = tmp_path_factory.mktemp(f"workers-{workers}")
        numbers = sorted(number for own, number in chosen if own == workers)
        (folder / "cases.json").write_text(json.dumps(numbers))
        processes = start("run_cases", folder, workers)
        assert [process.wait(timeout=HUNG_S) for process in processes] == [0] * workers
        for number in numbers:
            found[workers, number] = [_of_rank(folder, f"{number}-{rank}") for rank in range(workers)]
    return found


def _of_rank(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    facts = json.loads((folder / f"{name}.json").read_text())
    weights = torch.load(folder / f"{name}.pt", weights_only=True)
    return facts, weights, torch.load(folder / f"{name}-more.pt", weights_only=True)


@cache
def inline(workers: int, number: int) -> tuple[Result, dict[int, dict[str, Tensor]]]:
    """Return the inline engine's result and its weights after another segment."""
    case, model, optimizer, repeats, end = RUNS[workers][number]
    graph = captured(model, optimizer)
    if graph.job.precision:  # whole masters: the inline engine gathers none of which devices have parts
        case = replace(case, shard="none")
    plan = case.plan(graph)
    program = program_of(case, graph)
    first = run_inline(Executable(graph, plan.layout(graph), program), end or repeats)
    weights = {d: {n: t.clone() for n, t in tensors.items()} for d, tensors in first.weights.items()}
    more = run_inline(Executable(graph, plan.layout(graph), program), 1, first.position, first.devices)
    return Result(first.losses, weights, first.position, {}), more.weights


@each_case
@pytest.mark.thinned(most=4)
def test_messages_go_through_memory_unless_told_otherwise(results, workers, number):
    """Workers of one machine share it; so both ways are run here."""
    case = RUNS[workers][number][0]
    for facts, _, _ in results[workers, number]:
        assert facts["over_gloo"] == (case.strategy != "data_parallel" and number in OVER_GLOO[workers])


@each_case
def test_weights_and_losses_equal_the_inline_engine(results, workers, number):
    """Weights and losses equal those of the inline engine.

    The loss of each microbatch is reported once, by a last stage.
    """
    expected, _ = inline(workers, number)
    losses = []
    for facts, weights, _ in results[workers, number]:
        assert_same_weights(weights, expected.weights[facts["device"]], 1e-12)
        assert weights.keys() == expected.weights[facts["device"]].keys()
        assert facts["position"] == expected.position
        losses += [(m, loss, n) for m, loss, n in facts["losses"]]
    assert_same_losses(sorted(losses), expected.losses, 1e-12)


@each_case
def test_another_segment_goes_on(results, workers, number):
    """A second segment continues the first, after saving and loading state.

    Its results equal those of the inline engine.
    """
    _, expected = inline(workers, number)
    for facts, _, weights in results[workers, number]:
        assert_same_weights(weights, expected[facts["device"]], 1e-12)


@each_case
def test_the_observer_is_asked_once_a_period(results, workers, number):
    """The observer is asked once in each period.

    Workers run as many periods as it allows, and ask it for each number once, in ascending order.
    """
    *_, repeats, end = RUNS[workers][number]
    for facts, _, _ in results[workers, number]:
        assert facts["periods"] == (end or repeats)
        assert facts["asked"] == list(range((end or repeats) + 1))


@each_case
def test_every_instruction_is_recorded_in_lane_order(results, workers, number):
    """Every instruction is recorded in lane order.

    The measured trace has every instruction of the program. No instructions overlap on a compute lane.
    """
    case, model, optimizer, repeats, end = RUNS[workers][number]
    graph = captured(model, optimizer)
    lanes = program_of(case, graph).unrolled(end or repeats)
    for facts, _, _ in results[workers, number]:
        for (device, lane), instructions in lanes.items():
            if device == facts["device"]:
                events = [e for e in facts["events"] if e[0] == lane]
                assert [e[1] for e in events] == [i.name for i in instructions]
                starts = [e[2] for e in events]
                assert starts == sorted(starts)
                assert all(e[2] <= e[3] for e in events)
                if lane == "compute":  # of the other lanes several may have begun
                    times = [t for e in events for t in e[2:]]
                    assert times == sorted(times)


def test_all_reduces_begin_during_the_backward(results):
    """All-reduces begin during the backward.

    The first gradient bucket of a replicated stage begins its all-reduce before the end of the backward that produced
    it.
    """
    early = 0
    for facts, _, _ in results[2, next(n for n, r in enumerate(RUNS[2]) if r[0].strategy == "data_parallel")]:
        ends = {e[1]: e[3] for e in facts["events"] if e[0] == COMPUTE and e[1].startswith(Kind.BACKWARD)}
        for name, start_s in [(e[1], e[2]) for e in facts["events"] if e[1].startswith(Kind.ALL_REDUCE)]:
            update, bucket = name.split(" u")[1].split(" ")[0], name[-1]
            last = [end for name, end in ends.items() if int(name.split("#")[1]) // 4 == int(update)][-1]
            early += bucket == "0" and start_s < last
    assert early > 0


@each_case
def test_collectives_of_a_lane_run_one_after_the_other(results, workers, number):
    """Collectives of a lane run one after the other.

    The next all-reduce, reduce-scatter or all-gather begins after the previous one is complete.
    """
    for facts, _, _ in results[workers, number]:
        for lane in {e[0] for e in facts["events"] if e[0].startswith((REDUCE, GATHER))}:
            times = [t for e in facts["events"] if e[0] == lane for t in e[2:]]
            assert times == sorted(times)


def test_one_forward_one_backward_holds_less_than_gpipe(results):
    """1F1B holds less memory than GPipe.

    With 16 microbatches, GPipe's first stage has a higher peak. Freed stashes release their memory.
    """
    of = {r[0].strategy: n for n, r in enumerate(RUNS[2]) if r[0].batch_size == 32}
    gpipe, flush = (results[2, of[name]][0][0]["peak_memory_bytes"] for name in ("gpipe", "flush"))
    assert 0 < flush < 0.7 * gpipe


@pytest.mark.slow
def test_a_killed_worker_ends_the_others(tmp_path):
    """A killed worker ends the others within 10 s.

    Their errors name peer, step and instruction.
    """
    processes = start("be_killed", tmp_path, 3)
    codes = [process.wait(timeout=HUNG_S) for process in processes]
    assert codes == [3, 3, -9]
    died_s = float((tmp_path / "died").read_text())
    for rank, peer in ((1, 2), (0, 1)):
        fact = json.loads((tmp_path / f"error-{rank}.json").read_text())
        assert fact["kind"] == "PeerLost"
        assert fact["at_s"] - died_s < 10
        assert f"device {rank}: lost device {peer} at step " in fact["text"]
        assert "` on lane " in fact["text"]

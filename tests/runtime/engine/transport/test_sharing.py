"""Bytes in collectives of replicas that share the optimizer step.

They are compared with the program's bytes and the simulator's bytes.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from hocket.cost.model import CostModel
from hocket.planning.predict.predict import predict
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import COLLECTIVES, Kind
from tests.limits import HUNG_S
from tests.runtime.engine.helpers.workers import FSDP_STEPS, SHARING, start
from tests.runtime.helpers.plans import Case, assert_same_losses, captured

pytestmark = pytest.mark.workers

WORKERS = 2
GAP_BYTES = 16 * 8  # of float64, behind a tensor and, for each replica, behind a bucket


@cache
def measured() -> ModelProfile:
    """The profile of the model that all of them train."""
    return measure(captured("gpt untied", "adam").job, (1, 2), MeasureRequest(budget_s=0.3))


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, int]]]:
    """Bytes by kind of collective, of every case and rank."""
    folder: Path = tmp_path_factory.mktemp("sharing")
    processes = start("carry", folder, WORKERS)
    assert [process.wait(timeout=HUNG_S) for process in processes] == [0] * WORKERS
    return [
        [json.loads((folder / f"{number}-{rank}.json").read_text()) for rank in range(WORKERS)]
        for number in range(len(SHARING))
    ]


@pytest.mark.parametrize("number", range(len(SHARING)), ids=[str(case) for case, _ in SHARING])
@pytest.mark.thinned(most=1)
def test_bytes_are_the_programs(carried: list[list[dict[str, int]]], number: int) -> None:
    """The bytes in collectives are those of the program.

    For each kind of collective, a worker contributes the bytes of its instructions by the cost model, and gaps.
    """
    (case, repeats), graph = SHARING[number], captured("gpt untied", "adam")
    plan, profile = case.plan(graph), measured()
    program, cuts = plan.compile(graph), plan.cuts(profile)
    costs = CostModel(profile, plan.cluster, cuts, plan.batches.sizes)
    parameters = len(list(graph.job.model.named_parameters()))
    for rank in range(WORKERS):
        said = dict.fromkeys(COLLECTIVES, 0.0)
        times = dict.fromkeys(COLLECTIVES, 0)
        for (device, _), lane in program.unrolled(repeats).items():
            for one in lane:
                if device == rank and one.kind in COLLECTIVES:
                    said[one.kind] += costs.carried_bytes(one, 1)
                    times[one.kind] += 1
        for kind in COLLECTIVES:
            found = carried[number][rank].get(kind, 0)
            assert abs(found - said[kind]) <= times[kind] * GAP_BYTES * (parameters + 3 * WORKERS)
    assert carried[number][0] == carried[number][1]


@pytest.mark.slow
def test_losses_are_those_of_fsdp(tmp_path: Path) -> None:
    """Losses equal those of PyTorch's `fully_shard`.

    This holds for every microbatch of the same GPT, with the same optimizer and batches.
    """
    processes = start("beside_fsdp", tmp_path, WORKERS)
    assert [process.wait(timeout=HUNG_S) for process in processes] == [0] * WORKERS
    for rank in range(WORKERS):
        *ours, theirs = json.loads((tmp_path / f"{rank}.json").read_text())
        assert len(theirs) == 2 * FSDP_STEPS
        assert theirs[-1][1] < theirs[0][1]
        for found in ours:
            assert_same_losses([tuple(x) for x in sorted(found)], [tuple(x) for x in theirs], 1e-8)


@pytest.mark.slow
def test_scattering_and_gathering_sends_what_summing_sends(carried: list[list[dict[str, int]]]) -> None:
    """Reduce-scatter and all-gather send as much as an all-reduce.

    Each of them sends half. The simulator predicts the same, and the collectives carry these bytes.
    """
    shared, plain, gathered = (carried[number][0] for number in range(len(SHARING)))
    assert plain.keys() == {Kind.ALL_REDUCE}
    assert shared.keys() == {Kind.REDUCE_SCATTER, Kind.ALL_GATHER}
    assert shared[Kind.REDUCE_SCATTER] == shared[Kind.ALL_GATHER]
    assert shared[Kind.ALL_GATHER] == pytest.approx(plain[Kind.ALL_REDUCE], rel=0.02)
    # Twice for each of two rounds of an update.
    assert gathered[Kind.REDUCE_SCATTER] == pytest.approx(plain[Kind.ALL_REDUCE], rel=0.02)
    assert gathered[Kind.ALL_GATHER] == 4 * gathered[Kind.REDUCE_SCATTER]
    graph = captured("gpt untied", "adam")
    profile = measure(graph.job, (1, 2), MeasureRequest(budget_s=0.3))
    sent = [
        sum(predict(Case("data_parallel", (2,), shard=shard).plan(graph), profile)[1].sent_bytes_between.values())
        for shard in ("optimizer", "none")
    ]
    assert sent[0] == pytest.approx(sent[1], rel=0.05)

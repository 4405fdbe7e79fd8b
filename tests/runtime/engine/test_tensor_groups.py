"""Tensor-parallel groups in the distributed engine equal one process.

This holds for any depth, width and number of replicas.
"""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket.planning.predict.predict import predict, proven_peaks
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.program.instruction import Kind
from hocket.runtime.engine.inline import Result, run_inline
from hocket.runtime.stage.executable import Executable
from hocket.runtime.tensor_parallel.measure_rank import measure_member
from hocket.strategies.base.search_space import Candidate, SearchSpace
from tests.runtime.engine.helpers.tensor_workers import KILLED, ODD, RUNS, SEQUENCE, SLICED, WIDTH, run_cases
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights

pytestmark = pytest.mark.workers

FAST = ("1x2x1", "2x2x1", "2x2x1 gloo", "2x2x1 slices", "2x2x1 sequence")
WHERE_ALIKE = [name for name in SLICED if name != "2x2x1 interleaved slices"]
TOLERANCE = {"float64": 1e-8, "float32": 1e-4}
Found = dict[str, tuple[list[dict[str, Any]], list[dict[str, Tensor]], list[dict[str, Tensor]], dict[str, Any]]]


def tolerance_of(name: str) -> float:
    """Members add up products that have been rounded: to 8 bits in bfloat16."""
    return 2e-2 if "bfloat16" in name else TOLERANCE[RUNS[name].dtype]


def each(names: Iterable[str]) -> Any:
    """Let a test have each of these cases; the fast selection has a few of them."""
    slow = {name: () if name in FAST else (pytest.mark.slow,) for name in names}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in slow.items()])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, fast: bool) -> Found:
    """Return results of every case, by rank.

    The results are facts, weights, weights after one more segment, and the collectives of a microbatch.
    """
    folder, found = tmp_path_factory.mktemp("groups"), {}
    runs = {name: chosen for name, chosen in RUNS.items() if name in FAST or not fast}
    run_cases(folder, *runs)
    for name, chosen in runs.items():
        codes, counts = json.loads((folder / name / "codes.json").read_text())
        ranks = range(chosen.workers)
        assert codes == [0 for _ in ranks]
        facts = [json.loads((folder / name / f"{rank}.json").read_text()) for rank in ranks]
        weights = [torch.load(folder / name / f"{rank}.pt", weights_only=True) for rank in ranks]
        more = [torch.load(folder / name / f"{rank}-more.pt", weights_only=True) for rank in ranks]
        found[name] = facts, weights, more, counts
    return found


@cache
def alone(name: str) -> tuple[Result, dict[str, Tensor], dict[str, Tensor]]:
    """Run the undivided model by the same rule on one device of each stage.

    The result has losses, weights, and weights after one more segment.
    """
    chosen = RUNS[name]
    case = chosen.case
    # Synchronous rules give the same on one device.
    stages = case.widths if case.strategy == "two_bw" else (1,)
    strategy = case.strategy if case.strategy == "two_bw" else "flush"
    graph = chosen.whole()
    plan = Case(strategy, stages, case.batch_size, case.microbatch_size).plan(graph)
    program = plan.compile(graph)
    first = run_inline(Executable(graph, plan.layout(graph), program), chosen.repeats)
    weights = {n: t.clone() for tensors in first.weights.values() for n, t in tensors.items()}
    more = run_inline(Executable(graph, plan.layout(graph), program), 1, first.position, first.devices)
    return first, weights, {n: t for tensors in more.weights.values() for n, t in tensors.items()}


@each(RUNS)
@pytest.mark.thinned(most=4)
def test_losses_are_those_of_one_process(results: Found, name: str) -> None:
    """Losses equal those of one process.

    Each microbatch has the same loss as without groups, stages and replicas. All members have the same losses.
    """
    facts, *_ = results[name]
    members = [sorted(tuple(x) for fact in facts[k::WIDTH] for x in fact["losses"]) for k in range(WIDTH)]
    assert len(members[0]) >= 12
    assert all(losses == members[0] for losses in members)
    assert_same_losses(members[0], alone(name)[0].losses, tolerance_of(name))


@each(RUNS)
def test_states_are_whole(results: Found, name: str) -> None:
    """Every member can gather the whole weights of its stages.

    This also holds after a whole state is loaded and trained.
    """
    facts, weights, more, _ = results[name]
    _, expected, expected_more = alone(name)
    tolerance = max(tolerance_of(name), {"float64": 1e-8, "float32": 1e-3}[RUNS[name].dtype])
    for tensors in weights:
        assert_same_weights(tensors, expected, tolerance)
    for tensors in more:
        assert_same_weights(tensors, expected_more, tolerance)
    assert {key for tensors in weights for key in tensors} == set(expected)
    for rank in range(0, len(facts), WIDTH):
        assert weights[rank].keys() == weights[rank + 1].keys()
        assert all(torch.equal(tensor, weights[rank + 1][key]) for key, tensor in weights[rank].items())


@each(RUNS)
def test_the_first_member_saves_what_is_divided(results: Found, name: str) -> None:
    """Only the first member saves divided tensors.

    The other members save only the tensors that each member has whole. The names are known without gathering.
    """
    facts, weights, _, _ = results[name]
    assert any(fact["divided"] for fact in facts)
    for rank, fact in enumerate(facts):
        every = set(weights[rank])
        assert fact["described"]
        for names in fact["saved"]:
            assert set(names) == (every if rank % WIDTH == 0 else every.difference(fact["divided"]))


# Of two blocks, for each two either way. On slices of the sequence what columns read is gathered again in the backward, the ends
# of the blocks gather once, and each norm's gradients are summed. What the words' embeddings and their logits take: one each.
PLAIN = {"all_reduces": (4 + 1, 4 + 1), "gathers": (1, 0), "scatters": (0, 0)}
ALONG = {"all_reduces": (1, 4 + 1), "gathers": (4 + 1 + 1, 4 + 4 + 1), "scatters": (4, 4)}


@each(RUNS)
def test_collectives_are_as_many_as_the_split_says(results: Found, name: str) -> None:
    """The number of collectives matches the split.

    Each block and microbatch has two in the forward and two in the backward. A recomputed forward has them again.
    """
    facts, _, _, expected = results[name]
    microbatches = len(alone(name)[0].losses)
    again = 2 if RUNS[name].case.recompute else 1
    for kind, (forward, backward) in (ALONG if RUNS[name].sequence else PLAIN).items():
        assert expected[kind] == {"forward": forward, "backward": backward}
        for k in range(WIDTH):
            done = [fact["collectives"][kind] for fact in facts[k::WIDTH]]
            assert sum(one["forward"] for one in done) == forward * microbatches * again
            assert sum(one["backward"] for one in done) == backward * microbatches


@each(SLICED)
def test_slices_change_no_bit(results: Found, name: str) -> None:
    """Slices change no bit.

    Losses and weights of every worker are bit-identical to the same plan without slices.
    """
    (facts, weights, more, _), (plain, *whole, _) = results[name], results[name.removesuffix(" slices")]
    assert [fact["losses"] for fact in facts] == [fact["losses"] for fact in plain]
    for tensors, expected in zip((*weights, *more), (*whole[0], *whole[1]), strict=True):
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in tensors.items())


@each(WHERE_ALIKE)
def test_slices_are_a_part_of_the_bytes(results: Found, name: str) -> None:
    """Each worker sends a t-th of what it sends without them."""
    sent = [fact["sent_bytes"] for fact in results[name][0]]
    assert all(sent)
    assert [WIDTH * each for each in sent] == [fact["sent_bytes"] for fact in results[name.removesuffix(" slices")][0]]


@each([f"{name} sequence" for name in ("2x2x1", "2x2x1 two_bw")])
def test_borders_are_slices_of_the_sequence(results: Found, name: str) -> None:
    """Borders are slices of the sequence.

    With t members, each worker sends 1/t of the bytes of whole sequences, and its memory peak is lower.
    """
    for fact, plain in zip(results[name][0], results[name.removesuffix(" sequence")][0], strict=True):
        assert WIDTH * fact["sent_bytes"] == plain["sent_bytes"] > 0
        assert fact["peak_bytes"] < plain["peak_bytes"]


@pytest.mark.slow
def test_a_border_inside_of_a_part_goes_whole(results: Found) -> None:
    """One of three borders of a batch: what is on it differs from member to member."""
    sliced, plain = (
        sum(fact["sent_bytes"] for fact in results[name][0])
        for name in ("2x2x1 interleaved slices", "2x2x1 interleaved")
    )
    assert plain / WIDTH < sliced < plain


@cache
def profile_of_member(sequence: bool, name: str = "2x2x1") -> ModelProfile:
    """Return the profile of a member's layers, measured alone."""
    return measure_member(RUNS[name].whole().job, WIDTH, (1, 2), MeasureRequest(budget_s=0.5), sequence)


@each(["1x2x1", "2x2x1 gloo", "2x2x1 interleaved sequence", "2x2x1 odd", "2x2x1 odd apart"])
@pytest.mark.thinned(most=1)
def test_bytes_that_members_exchange_are_the_profiles(results: Found, name: str) -> None:
    """The bytes that members exchange are those of the profile.

    They are equal to the byte over all stages and microbatches. The last microbatch may have fewer samples.
    """
    facts, *_ = results[name]
    layers = profile_of_member(RUNS[name].sequence, name).layers
    expected = Counter[str]()
    for _, _, samples in alone(name)[0].losses:
        for layer in layers:
            if sum(layer.reductions):
                expected["all_reduces"] += round(sum(layer.reductions) * layer.reduced_bytes[samples - 1])
            if sum(layer.gathers):
                expected["gathers"] += round(sum(layer.gathers) * layer.gathered_bytes[samples - 1])
    for k in range(WIDTH):
        found = Counter[str]()
        for fact in facts[k::WIDTH]:
            found["all_reduces"] += fact["together_bytes"]["all_reduces"]
            found["gathers"] += sum(fact["together_bytes"].get(kind, 0) for kind in ("gathers", "scatters"))
        assert found == expected


COMPARED = [n for n in (*SLICED, *SEQUENCE) if n.rpartition(" ")[0] in RUNS and len(RUNS[n].case.widths) > 1]


@each(COMPARED)
@pytest.mark.thinned(most=1)
def test_groups_spare_what_the_simulator_says(results: Found, name: str) -> None:
    """Groups save as many bytes as the simulator predicts.

    The sum over all members of all groups is equal to the byte. All-reduces of replicas and stages are the same either
    way.
    """
    plain = name.rpartition(" ")[0]
    plans = {each: RUNS[each].plan() for each in (plain, name)}
    whole, less = (
        sum(predict(plan, profile_of_member(plan.sequence_parallel))[1].sent_bytes_between.values())
        for plan in plans.values()
    )
    batches = len(alone(name)[0].losses) / plans[name].microbatches
    spared = sum(a["sent_bytes"] - b["sent_bytes"] for a, b in zip(results[plain][0], results[name][0], strict=True))
    assert spared == batches * (whole - less) > 0


@each([*SLICED, *SEQUENCE, "2x2x1 odd", "2x2x1 odd sequence"])
@pytest.mark.thinned(most=1)
def test_peaks_are_not_above_what_is_proven(results: Found, name: str) -> None:
    """Peaks are not above the proven peaks, to the byte.

    Slices arrive in the memory of the whole tensor. The proof uses the instructions and a member's own layers. This
    also holds over gloo.
    """
    plan, of_member = RUNS[name].plan(), profile_of_member(RUNS[name].sequence, "2x2x1 odd" if name in ODD else "2x2x1")
    space = SearchSpace(of_member, plan.group.cluster, plan.batch_size)
    choice = Candidate(plan.cuts(of_member), plan.microbatch_size, tuple(plan.options.items()))
    proven = proven_peaks(space, plan.strategy, choice)
    assert all(fact["peak_bytes"] <= proven[fact["device"]] for fact in results[name][0])


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_member_ends_the_others(tmp_path: Path, name: str) -> None:
    """A killed member ends the others within 10 s.

    The other member of its group names the step and instruction in which it waited.
    """
    run_cases(tmp_path, name)
    folder = tmp_path / name
    codes, _ = json.loads((folder / "codes.json").read_text())
    assert codes == [0, 0, 0, -9]
    died_s = float((folder / "died").read_text())
    errors = [json.loads((folder / f"error-{rank}.json").read_text()) for rank in range(3)]
    assert [error["kind"] for error in errors] == ["PeerLost"] * 3
    assert all(error["at_s"] - died_s < 10 for error in errors)
    assert errors[1]["text"].startswith("group 0 member 1: lost ")
    assert errors[2]["text"].startswith("group 1 member 0: lost another member at step ")
    where = (Kind.FORWARD, Kind.BACKWARD, *([Kind.RECEIVE] if RUNS[KILLED[name]].slices else []))
    assert any(f"in `{kind} " in errors[2]["text"] for kind in where)

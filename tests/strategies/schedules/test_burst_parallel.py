"""Burst-parallel programs: messages between stages, memory and plan files."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import lcm
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic.synthetic import chain
from hocket.program.check.check import check
from hocket.program.instruction import COMPUTE, Kind
from hocket.program.memory_bound.footprint import footprints
from hocket.program.microbatches import Microbatches
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import compile_strategy
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import plan_burst
from hocket.strategies.schedules.burst_parallel import choices
from tests.program.helpers.programs import bursts
from tests.strategies.helpers import burst_models
from tests.tiers import examples

CLUSTER = Cluster("eight", (Level("server", 8, 1e9, 1e-5, False),), "cpu-core")
COPIES = Cluster("eight", (Level("server", 8, 1e9),), "cpu-core", sender_copies=True)
# Numbers of devices, in the order of the pieces of a batch; the second keep more of them in place.
PLACES = st.sampled_from([(0,), (0, 1), (1, 0), (0, 1, 2, 3), (0, 2, 1, 3), (2, 3), (3,), (0, 1, 2)])


def made(places: list[tuple[int, ...]], batch: int, recompute: bool = False, cluster: Cluster = CLUSTER) -> Plan:
    """A plan for a chain, with one layer on each of these places."""
    microbatches = lcm(*map(len, places))
    stages = tuple(PlanStage((f"layer{k}",), devices, recompute) for k, devices in enumerate(places))
    return Plan("burst_parallel", "chain", batch, -(-batch // microbatches), stages, cluster)


@examples(40)
@given(
    places=st.lists(PLACES, min_size=1, max_size=4),
    batch=st.integers(1, 40),
    recompute=st.booleans(),
    cluster=st.sampled_from([CLUSTER, COPIES]),
)
@example([(0,), (0, 1), (0, 1, 2, 3), (0, 1, 2, 3), (0,)], 16, False, CLUSTER)  # sent before a backward in parts
@example([(0, 1, 2, 3), (0, 1, 2)], 12, False, CLUSTER)  # three messages of one lane for one instruction
@example([(0,), (0, 2, 1, 3), (0, 1)], 9, False, CLUSTER)  # fewer samples than four times three
def test_what_is_simulated_is_never_above_what_is_proven(
    places: list[tuple[int, ...]], batch: int, recompute: bool, cluster: Cluster
) -> None:
    """Simulated memory never exceeds the proven bound, for any batch.

    Only samples that change their device are sent.
    """
    microbatches = lcm(*map(len, places))
    plan = made(places, max(batch, microbatches), recompute, cluster)
    profile = chain(len(places), activation_bytes=1e6, stash_bytes=3e6, weights_bytes=1e6, device_type="cpu-core")
    program = plan.compile(profile)
    assert check(program) == ()
    _, summary = predict(plan, profile)
    costs = CostModel(profile, cluster, plan.cuts(profile), plan.batches.sizes)
    proven = footprints(program, PlanSizes(costs, program))
    for device, peak_bytes in summary.peak_memory_bytes.items():
        assert peak_bytes <= proven[device].bytes + 1
    where = [[devices[m * len(devices) // microbatches] for m in range(microbatches)] for devices in places]
    moved = sum(plan.samples(m) for here, there in pairwise(where) for m in range(microbatches) if here[m] != there[m])
    sums = sum(2 * (len(devices) - 1) * 1e6 for devices in places)  # rings
    assert summary.sent_bytes["server"] == pytest.approx(2e6 * moved + sums)


@examples(25)
@given(data=st.data(), layers=st.integers(1, 4), devices=st.sampled_from([2, 4, 8]))
def test_amplification_of_a_run_is_the_plans(data: st.DataObject, layers: int, devices: int) -> None:
    """Seconds and busy seconds of the simulation are those of `plan_burst`.

    Links take no time here. One device takes as long as the plan's amplification implies.
    """
    profile = burst_models.chain(data.draw(burst_models.seconds(layers)), [1.0] * (layers - 1))
    cluster = burst_models.flat(devices, bandwidth=1e30)
    found = plan_burst(profile, cluster, 8, BurstLimits(data.draw(st.sampled_from([1.25, 1.5, 2.0, None]))))
    runs = found.runs
    stages = tuple(PlanStage(tuple(profile.layers[i].name for i in run.layers), run.devices) for run in runs)
    size = 8 // lcm(*(len(run.devices) for run in runs))
    _, summary = predict(Plan("burst_parallel", "toy", 8, size, stages, cluster), profile)
    assert summary.iteration_s == pytest.approx(found.iteration_s)
    gpu_s = sum(summary.utilization.values()) * summary.iteration_s
    assert gpu_s == pytest.approx(found.gpu_s)
    names = tuple(layer.name for layer in profile.layers)
    _, alone = predict(Plan("burst_parallel", "toy", 8, 8, (PlanStage(names, (0,)),), cluster), profile)
    assert gpu_s / alone.iteration_s == pytest.approx(found.amplification)


def test_as_few_messages_as_there_are_devices_that_change() -> None:
    """From two devices to one, one message goes forward and one back.

    Between equal devices there is none.
    """
    plan = made([(0, 1), (0, 1), (0,)], 8)
    program = plan.compile(chain(3, device_type="cpu-core"))
    kinds = Counter(i.kind for _, i in program.instructions())
    assert kinds[Kind.SEND] == kinds[Kind.RECEIVE] == 2
    assert kinds[Kind.FORWARD] == kinds[Kind.BACKWARD] == 5


@pytest.mark.parametrize(("clips", "order"), [(False, [2, 1, 0]), (True, [0, 1, 2])])
def test_steps_go_in_the_order_in_which_gradients_are_summed(clips: bool, order: list[int]) -> None:
    """The last stage steps first, beside the sums of earlier stages.

    If all steps wait for one norm, they run in the order of stages.
    """
    program = compile_strategy("burst_parallel", bursts((4, 2, 1), 4, clips=clips), 4)
    assert [i.stage for i in program.period[0, COMPUTE] if i.kind is Kind.STEP] == order


def test_a_plan_file_says_it_by_hand(tmp_path: Path) -> None:
    """A plan file needs only the devices of each stage.

    The number of merged microbatches follows.
    """
    plan = made([(0, 2, 1, 3), (0, 1), (0,)], 16)
    plan.save(tmp_path / "plan.yaml")
    assert "merged" not in (tmp_path / "plan.yaml").read_text()
    again = Plan.read(tmp_path / "plan.yaml")
    assert again == plan
    shapes = again.shapes(chain(3, device_type="cpu-core"))
    assert [shape.merged for shape in shapes] == [1, 2, 4]
    assert [shapes[0].device(m) for m in range(4)] == [0, 2, 1, 3]


@examples(25)
@given(data=st.data(), layers=st.integers(1, 4), devices=st.sampled_from([3, 4, 8]), batch=st.integers(3, 8))
def test_any_batch_takes_as_long_as_was_planned(data: st.DataObject, layers: int, devices: int, batch: int) -> None:
    """The largest share decides if devices do not divide a batch evenly.

    This holds in the plan and in the program.
    """
    profile = burst_models.chain(data.draw(burst_models.seconds(layers)), [1.0] * (layers - 1))
    cluster = burst_models.flat(devices, bandwidth=1e30)
    found = plan_burst(profile, cluster, batch, BurstLimits(data.draw(st.sampled_from([1.5, None]))))
    stages = tuple(PlanStage(tuple(profile.layers[i].name for i in run.layers), run.devices) for run in found.runs)
    size = -(-batch // lcm(*(len(run.devices) for run in found.runs)))
    _, summary = predict(Plan("burst_parallel", "toy", batch, size, stages, cluster), profile)
    assert summary.iteration_s == pytest.approx(found.iteration_s)
    assert sum(summary.utilization.values()) * summary.iteration_s <= found.gpu_s * (1 + 1e-9)


def test_a_batch_that_devices_do_not_divide_is_offered() -> None:
    """Five samples on four devices: two on one device, and one on each of the others.

    Without a limit there is one plan, with a limit there are several different plans.
    """
    profile = burst_models.chain([[1, 2, 4, 8], [5, 5, 5, 5]], [1.0])
    space = SearchSpace(profile, burst_models.flat(4, bandwidth=1e9), 5)
    (choice,) = choices(space)
    assert (choice.microbatches, choice.microbatch_size) == (4, 2)
    assert [len(stage.devices) for stage in choice.stages] == [4]
    limited = list(choices(replace(space, amplification_limit=1.3)))
    assert len({one.stages for one in limited}) == len(limited) > 1
    assert [4, 1] in [[len(stage.devices) for stage in one.stages] for one in limited]


@given(batch=st.integers(1, 40), widths=st.lists(st.integers(1, 8), min_size=1, max_size=3))
def test_microbatches_are_as_equal_as_they_can_be(batch: int, widths: list[int]) -> None:
    """Microbatches cover the batch, and none is empty.

    No share of g devices is more than the batch divided by g, rounded up.
    """
    together = lcm(*widths)
    if together > batch:
        with pytest.raises(InputError, match=rf"batch_size: found {batch}, .*expected at least {together}, "):
            Microbatches.bundled(batch, 1, widths)
        return
    cut = Microbatches.bundled(batch, -(-batch // together), widths)
    assert sum(cut.sizes) == batch
    assert 1 <= min(cut.sizes) <= max(cut.sizes) <= cut.size
    for width in widths:
        merged = cut.count // width
        shares = [cut.samples(m, merged) for m in range(0, cut.count, merged)]
        assert (shares[0], max(shares), sum(shares)) == (-(-batch // width), -(-batch // width), batch)


def test_a_batch_that_devices_cannot_divide_is_refused_with_one_that_they_can() -> None:
    """A batch that devices cannot divide is refused, and the message has a larger one.

    Eight samples on three and four devices have no common pieces. Eight microbatches of one sample exceed a batch of
    five.
    """
    stages = (PlanStage(("layer0",), (0, 1, 2)), PlanStage(("layer1",), (0, 1, 2, 3)))
    with pytest.raises(
        InputError, match="batch_size: found 8, to be divided among 3 and 4 devices; expected at least 12"
    ):
        Plan("burst_parallel", "chain", 8, 1, stages, CLUSTER)
    with pytest.raises(
        InputError, match="microbatch_size: found 1: 8 microbatches of a batch of 5 samples; expected at least 2"
    ):
        Plan("burst_parallel", "chain", 5, 1, (PlanStage(("layer0",), (0, 1, 2, 3)),), CLUSTER)

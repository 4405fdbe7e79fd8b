"""Plans that swap on different device types, and under an amplification limit."""

from collections import Counter
from dataclasses import replace

import pytest

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.planning.burst.amplification import amplification_of
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.placement import DeviceSet, left_out, places
from hocket.profiling.analytic.synthetic import chain
from hocket.program.check.check import check
from hocket.strategies.swapping.tuner import Mode

MODEL = chain(
    6, forward_s=0.01, backward_s=0.02, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1, 2), device_type="v100-16gb"
)  # fmt: skip
OLD, NEW = Node("v100-16gb", 2, 64e9, 420e6), Node("a100-40gb", 2, 64e9, 600e6)
LEVELS = Level("server", 2, 10e9), Level("cluster", 2, 2e9)
MIXED = Cluster("two", LEVELS, nodes=(OLD, NEW))
ALIKE = Cluster("one", (Level("server", 2, 10e9),), "v100-16gb", memory_bytes=700e6, host_memory_bytes=64e9)


def proved(plan: Plan) -> None:
    """A legal program within each device's own memory and its part of the host's."""
    program = plan.compile(MODEL)
    costs = CostModel(MODEL, plan.cluster, plan.cuts(MODEL), plan.batches.sizes, swaps=True)
    room = {d: plan.cluster.capacity_bytes(d) for d in program.devices}
    hosts = plan.host_bytes(plan.cluster)
    assert check(program, value_bytes=PlanSizes(costs, program), capacity_bytes=room, host_bytes=hosts) == ()


@pytest.mark.slow
def test_unlike_devices_swap_each_within_its_own_memory() -> None:
    """Different device types swap within their own memory.

    A model that fits nowhere is planned for each type and for all devices. The best plan is faster than any on one
    type, and than a plan for all devices with the smallest budget. Each plan is proved, and unchanged when it is
    read again.
    """
    found = search(MODEL, MIXED, PlanRequest(8))
    assert {one.strategy for one in found.candidates} == {"harmony"}
    where = {one.config.partition(" on ")[2] for one in found.candidates}
    assert where == {"", "2 v100-16gb", "2 a100-40gb"}
    for one in found.candidates:
        proved(one.plan)
        again = Plan.from_yaml(one.plan.to_yaml())
        assert again.swap == one.plan.swap
        assert again.compile(MODEL) == one.plan.compile(MODEL)
    best = found.best
    assert best.plan.swap is not None
    assert best.plan.swap.device_bytes == (420e6, 420e6, 600e6, 600e6)
    of_one = [one for one in found.candidates if " on " in one.config]
    assert {one.plan.swap.device_bytes for one in of_one if one.plan.swap} == {420e6, 600e6}
    assert best.iteration_s < min(one.iteration_s for one in of_one)
    least = replace(best.plan, predicted=None, swap=replace(best.plan.swap, device_bytes=420e6))
    assert best.iteration_s < predict_iteration(least, MODEL).iteration_s
    in_turn = min(one.iteration_s for one in found.candidates if one.config == "pipeline 6 packs")
    assert best.iteration_s <= in_turn


@pytest.mark.slow
def test_only_who_has_a_host_swaps() -> None:
    """Devices of a server with unknown host memory are not used."""
    found = search(MODEL, replace(MIXED, nodes=(replace(OLD, host_memory_bytes=None), NEW)), PlanRequest(8))
    assert found.candidates
    assert all(" on 2 a100-40gb" in one.config for one in found.candidates)
    note = "plans that swap do not use 2 v100-16gb: the cluster file lacks host_memory_bytes of their nodes"
    assert note in found.notes
    assert not any("plans that swap do not use" in one for one in search(MODEL, MIXED, PlanRequest(8)).notes)


def test_hosts_of_nodes_that_say_nothing_are_the_clusters() -> None:
    """A node without host memory inherits the cluster's, as with device memory.

    Planning and proof use the same figure.
    """
    silent = replace(MIXED, nodes=(replace(OLD, host_memory_bytes=None), NEW), host_memory_bytes=32e9)
    assert [silent.host_bytes(device) for device in range(4)] == [32e9, 32e9, 64e9, 64e9]
    assert next(places(MODEL, silent, False)).devices == (0, 1, 2, 3)
    assert left_out(silent) == ""
    assert "2 v100-16gb" in left_out(replace(silent, host_memory_bytes=None))


def test_what_is_too_large_is_said_of_the_largest_devices() -> None:
    """A layer that is too large for all devices is reported for the largest ones."""
    small = replace(MIXED, nodes=(replace(OLD, memory_bytes=100e6), replace(NEW, memory_bytes=200e6)))
    with pytest.raises(
        RefusedError, match=r"on 2 a100-40gb: layer \S+ alone needs [\d.]+ MiB, and a device has 190\.73 MiB"
    ):
        _ = search(MODEL, small, PlanRequest(8)).best


@pytest.mark.slow
def test_one_device_alone_is_named_where_others_are_unlike() -> None:
    """The amplification limit names the type of the single device.

    An A100 may use fewer device-seconds than the first device alone, a V100.
    """
    found = search(MODEL, MIXED, PlanRequest(8, amplification_limit=1.0))
    texts = [one.reason for one in found.refused if one.too_much]
    assert texts
    assert found.candidates
    assert all(one.endswith(" of one v100-16gb alone") for one in texts)
    assert all(one.amplification is not None and one.amplification < 1 for one in found.candidates)
    assert {d for one in found.candidates for stage in one.plan.stages for d in stage.devices} <= {2, 3}


def test_turns_are_as_even_as_rates() -> None:
    """Equal devices take packs in turn; fast devices take them more often.

    The share of packs follows the speed on each stretch of packs.
    """
    ((alike,), (plain, rated)) = (
        list(DeviceSet(MODEL, one, tuple(range(one.devices))).turns(Mode.PIPELINE, 24)) for one in (ALIKE, MIXED)
    )
    assert alike == tuple((k % 2,) for k in range(24))
    assert plain == tuple((k % 4,) for k in range(24))
    counts = Counter(device for (device,) in rated)
    assert counts[0] == counts[1] < counts[2] == counts[3]
    assert set(rated[:4]) > {(2,), (3,)}
    (both,) = DeviceSet(MODEL, MIXED, (2, 3)).turns(Mode.DATA, 3)
    assert both == ((2, 3),) * 3


def test_fewer_devices_where_use_is_limited() -> None:
    """Halves of each set, down to one device."""
    assert [one.devices for one in places(MODEL, MIXED, False)] == [(0, 1, 2, 3), (0, 1), (2, 3)]
    assert [one.devices for one in places(MODEL, MIXED, True)] == [(0, 1, 2, 3), (0, 1), (0,), (2, 3), (2,)]


@pytest.mark.slow
def test_plans_that_swap_keep_an_amplification_limit() -> None:
    """Amplification limits hold for plans that swap, which keep their devices.

    The reference is one device with unlimited memory. Without a limit both devices are used, under a lower limit
    one. If no plan keeps the limit, the one with the smallest excess is named.
    """
    free = search(MODEL, ALIKE, PlanRequest(8)).best
    used = amplification_of(free.plan, MODEL).planned
    assert len({d for stage in free.plan.stages for d in stage.devices}) == 2
    loose, tight = (search(MODEL, ALIKE, PlanRequest(8, amplification_limit=limit)) for limit in (used, used - 0.01))
    assert loose.best.plan == free.plan
    assert loose.best.amplification == pytest.approx(used)
    for one in (*loose.candidates, *tight.candidates):
        assert one.amplification == pytest.approx(amplification_of(one.plan, MODEL).planned)
        proved(one.plan)
    assert {stage.devices for stage in tight.best.plan.stages} == {(0,)}
    assert all(one.amplification <= used - 0.01 for one in tight.candidates if one.amplification)
    with pytest.raises(
        RefusedError,
        match=r"harmony with swaps data 6 packs on 1 v100-16gb all kept ahead 2 b1: amplification of 1\.\d+, above the limit"
        r".*Allow a larger amplification, or give more devices",
    ):
        _ = search(MODEL, ALIKE, PlanRequest(8, amplification_limit=1.0)).best


def test_virtual_memory_keeps_it_too() -> None:
    """The limit refuses baselines like other plans."""
    found = search(MODEL, ALIKE, PlanRequest(8, swap="lru", amplification_limit=100.0))
    assert found.candidates
    assert all(one.amplification for one in found.candidates)
    with pytest.raises(
        RefusedError, match=r"found harmony with swaps .*above the limit of 1: .*\. Allow a larger amplification\.$"
    ):
        _ = search(MODEL, ALIKE, PlanRequest(8, swap="lru", amplification_limit=1.0)).best

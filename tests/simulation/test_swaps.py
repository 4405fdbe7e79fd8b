"""Simulated plans that swap: host links, prefetch, and figure 2 of Harmony."""

from dataclasses import replace
from typing import Any

import pytest

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played, predict
from hocket.profiling.analytic.synthetic import chain
from hocket.program.instruction import SWAPS, Kind
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.swapping.settings import Swapping
from hocket.simulation.summary import Summary, summarize

LAYERS = 8
PROFILE = chain(
    LAYERS, forward_s=0.05, backward_s=0.1, weights_bytes=1e8, activation_bytes=1e6, stash_bytes=4e6,
    device_type="cpu-core", microbatch_sizes=(1,),
)  # fmt: skip
BUDGET = 6.5e8  # of 2.4e9 bytes of weights, gradients and momentum
APART: dict[str, Any] = {
    "grouping": False,
    "just_in_time": False,
}  # what a virtual memory is given by the usual schedules
SCHEMES: dict[str, tuple[dict[str, Any], Swapping]] = {
    "data parallel": (APART, Swapping("lru", BUDGET)),
    "Harmony-DP": ({}, Swapping("next_use", BUDGET)),
    "pipeline": (APART | {"mode": "pipeline"}, Swapping("lru", BUDGET)),
    "Harmony-PP": ({"mode": "pipeline"}, Swapping("next_use", BUDGET)),
}


def plan(name: str, devices: int, microbatches: int = 4, **more: Any) -> Plan:
    """A scheme's plan, with one layer a pack.

    Packs are on all devices, on one device in turn, or (plain pipeline) neighbours on one device.
    """
    options, swap = SCHEMES[name]
    places: list[tuple[int, ...]] = [tuple(range(devices))] * LAYERS
    if options.get("mode"):
        places = [(k * devices // LAYERS if name == "pipeline" else k % devices,) for k in range(LAYERS)]
    cluster = Cluster("pcie", (Level("server", devices, 1e9),), "cpu-core", host_link=Link(1e9, 1e-5))
    stages = tuple(PlanStage((layer.name,), where) for layer, where in zip(PROFILE.layers, places, strict=True))
    return Plan(
        "harmony",
        PROFILE.name,
        microbatches * devices,
        1,
        stages,
        cluster,
        options=dict(options),
        swap=replace(swap, **more),
    )


def simulated(name: str, devices: int, **more: Any) -> Summary:
    """Summary of a scheme's simulation."""
    return predict(plan(name, devices, **more), PROFILE)[1]


def test_a_swap_stops_one_device_for_as_long_as_its_bytes_take() -> None:
    """Without prefetch, an iteration is the sum of compute and swaps."""
    found = simulated("data parallel", 1)
    assert found.swapped is not None
    program = plan("data parallel", 1)
    count = sum(i.kind in SWAPS for _, i in LoadedPlan(program, PROFILE).completed.compile(PROFILE).instructions())
    swaps_s = found.swapped_bytes / 1e9 + count * 1e-5
    assert found.weight_versions == found.stashes == (1,) * LAYERS
    assert found.iteration_s * (1 - found.utilization[0]) == pytest.approx(swaps_s, rel=1e-6)
    assert sum(found.swapped.in_bytes.values()) + sum(found.swapped.out_bytes.values()) == pytest.approx(
        found.swapped_bytes
    )


def test_devices_of_a_server_share_its_link_in_each_direction() -> None:
    """Two devices that swap at the same time take twice as long as one.

    With a host link for each device, they take as long as one.
    """
    one, two = (simulated("Harmony-DP", n, policy="task") for n in (1, 2))
    own = plan("Harmony-DP", 2, policy="task")
    kind = replace(own.cluster.type_of(0), name="own", host_bandwidth_bytes_per_s=1e9, host_latency_s=1e-5)
    apart = Cluster("own", own.cluster.levels, "own", types=(kind,))
    alone = predict(replace(own, cluster=apart), replace(PROFILE, device_type="own"))[1]

    def swapping_s(found: Summary) -> float:
        return found.iteration_s * (1 - found.utilization[0])

    # All-reduces are hidden: meanwhile optimizer state comes in.
    assert swapping_s(two) == pytest.approx(2 * swapping_s(one), rel=0.01)
    assert swapping_s(alone) == pytest.approx(swapping_s(one), rel=0.01)


def test_figure_2_and_what_harmony_makes_of_it() -> None:
    """Swapped bytes and throughput follow figure 2 (a, b) of Harmony.

    Data parallelism swaps in proportion to its devices, and each device slows down with every other that shares the
    link. Harmony-DP swaps a fifth of it. Harmony-PP swaps no more with more devices, so that each device keeps its
    throughput.
    """
    found = {(name, n): simulated(name, n) for name in SCHEMES for n in (1, 2, 4)}
    volume = {key: one.swapped_bytes for key, one in found.items()}
    each = {(name, n): one.samples_per_s / n for (name, n), one in found.items()}
    for name in ("data parallel", "Harmony-DP"):
        assert volume[name, 4] == pytest.approx(4 * volume[name, 1], rel=0.03)
    assert each["data parallel", 1] > 1.5 * each["data parallel", 2] > 2 * each["data parallel", 4]
    assert volume["Harmony-DP", 4] < volume["data parallel", 4] / 4
    assert each["Harmony-DP", 4] > 2.5 * each["data parallel", 4]
    assert volume["Harmony-PP", 4] <= volume["Harmony-PP", 1]
    assert each["Harmony-PP", 4] >= each["Harmony-PP", 1]
    assert each["Harmony-PP", 4] > 5 * each["data parallel", 4]


def test_the_first_stages_of_a_pipeline_swap_most() -> None:
    """Under 1F1B with virtual memory, stages with most stashes swap most.

    See Harmony, figure 2 (c).
    """
    large = chain(
        LAYERS, forward_s=0.05, backward_s=0.1, weights_bytes=1e8, activation_bytes=1e6, stash_bytes=1e8,
        device_type="cpu-core", microbatch_sizes=(1,),
    )  # fmt: skip
    stages = tuple(PlanStage(tuple(layer.name for layer in large.layers[2 * k : 2 * k + 2]), (k,)) for k in range(4))
    cluster = Cluster("pcie", (Level("server", 4, 1e9),), "cpu-core", host_link=Link(1e9, 1e-5))
    found = predict(Plan("flush", large.name, 16, 1, stages, cluster, swap=Swapping("lru", 1.1e9)), large)[1]
    assert found.swapped is not None
    first, *_, last = found.swapped.device_bytes.values()
    assert first > 5 * last


def test_prefetching_hides_swaps_within_the_same_budget() -> None:
    """Swaps beside computation make an iteration shorter, within the memory budget.

    An iteration is never shorter than its computation.
    """
    for name, n in (("Harmony-DP", 1), ("Harmony-PP", 2)):
        seconds = []
        for depth in (0, 1, 2):
            one = plan(name, n, prefetch=depth)
            whole = LoadedPlan(one, PROFILE).completed
            program = whole.compile(PROFILE)
            costs = CostModel(PROFILE, one.cluster, one.cuts(PROFILE), one.batches.sizes, swaps=True)
            sizes = PlanSizes(costs, program)
            outcome = played(one, PROFILE)
            found = summarize(outcome)
            proved, on_host = footprints(program, sizes), footprints(program, sizes, host=True)
            for device in program.devices:
                assert found.peak_memory_bytes[device] <= proved[device].bytes <= BUDGET
                assert found.swapped is not None
                assert found.swapped.host_peak_bytes[device] <= on_host[device].bytes
            seconds.append(found.iteration_s)
            assert found.weight_versions == (1,) * LAYERS
            assert found.stashes == (4 * n,) * LAYERS  # of a whole batch: on the device or its host
            assert found.iteration_s >= 4 * LAYERS * 0.15 * (1 - 1e-9)
        assert seconds[0] > 1.15 * seconds[1], name
        assert seconds[1] > 1.02 * seconds[2], name


def test_through_the_host_nothing_is_sent() -> None:
    """Without peer transfers, values for another device go through the host.

    They count as swapped bytes.
    """
    peers, through = (
        replace(p, options=p.options | {"peer": peer}) for peer in (True, False) for p in [plan("Harmony-PP", 2)]
    )
    sent, held = (predict(one, PROFILE)[1] for one in (peers, through))
    assert sum(sent.sent_bytes.values()) == pytest.approx(2 * 7 * 8 * 1e6)  # activations and gradients at seven borders
    assert sum(held.sent_bytes.values()) == 0
    assert (
        held.swapped_bytes >= sent.swapped_bytes + 2 * 2 * 7 * 8 * 1e6 - 8 * 7 * 2e6
    )  # less what the host then has of inputs


def test_a_plan_that_swaps_is_a_file_that_is_proved() -> None:
    """A plan's swap section survives a round trip through its file.

    A device or host that is too small is reported before the launch.
    """
    whole = LoadedPlan(plan("Harmony-PP", 2, host_bytes=3e9), PROFILE).completed
    assert Plan.from_yaml(whole.to_yaml()) == whole
    assert whole.swap is not None
    assert len(whole.swap.stages) == LAYERS
    opened = LoadedPlan(whole, PROFILE)
    assert problems_of(opened, opened.program) == ()
    small = replace(whole, cluster=replace(whole.cluster, memory_bytes=3e8))
    assert [p.code for p in problems_of(LoadedPlan(small, PROFILE), opened.program)] == ["memory", "memory"]
    kinds = {i.kind for _, i in opened.program.instructions()}
    assert {Kind.SWAP_IN, Kind.SWAP_OUT} <= kinds

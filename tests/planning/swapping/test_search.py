"""Plans that swap: proved and simulated, and chosen if they are faster.

A model that fits nowhere gets such a plan.
"""

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.explain.baseline_comparison import SWAPPED, of_profile
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping import search as packs
from hocket.planning.swapping.candidates import on_hosts
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.check.check import check
from hocket.program.memory_bound.footprint import footprints
from hocket.strategies.swapping import numba_kernels as compiled
from hocket.strategies.swapping.from_profile import layer_profile, server_of
from hocket.strategies.swapping.shared_packs import equal_plans
from hocket.strategies.swapping.tuner import Costs, Mode
from hocket.util.units import read_size

MODEL = chain(
    6,
    forward_s=0.01,
    backward_s=0.02,
    weights_bytes=100e6,
    activation_bytes=2e6,
    microbatch_sizes=(1, 2),
    device_type="v100-16gb",
)
LEAST = 410e6  # weights, gradient, its sum or optimizer state of a layer of 100 MB, and activations


def cluster(memory_bytes: float, host_memory_bytes: float | None = 64e9, devices: int = 2) -> Cluster:
    """One server."""
    levels = (Level("server", devices, 10e9),)
    return Cluster("one", levels, "v100-16gb", memory_bytes=memory_bytes, host_memory_bytes=host_memory_bytes)


def proved(plan: Plan, profile: ModelProfile) -> None:
    """A legal program within every device's memory, and its host's."""
    program = plan.compile(profile)
    costs = CostModel(profile, plan.cluster, plan.cuts(profile), plan.batches.sizes, swaps=True)
    sizes = PlanSizes(costs, program)
    assert check(program, value_bytes=sizes, capacity_bytes=dict.fromkeys(range(8), plan.cluster.memory_bytes)) == ()
    assert sum(one.bytes for one in footprints(program, sizes, host=True).values()) <= plan.cluster.host_memory_bytes


def test_what_fits_nowhere_swaps() -> None:
    """The best plan is Harmony's, has its predicted time, and nothing else fits."""
    found = search(MODEL, cluster(700e6), PlanRequest(4))
    assert {one.strategy for one in found.candidates} == {"harmony"}
    assert {one.plan.options["mode"] for one in found.candidates} == {"data", "pipeline"}
    for one in found.candidates:
        proved(one.plan, MODEL)
        again = Plan.from_yaml(one.plan.to_yaml())
        assert again.swap is not None
        assert again.compile(MODEL) == one.plan.compile(MODEL)
        assert predict_iteration(again, MODEL).iteration_s == pytest.approx(one.iteration_s)
    assert found.best.plan.swap is not None
    assert found.best.plan.swap.prefetch == 2
    assert " ahead 2 " in found.best.label
    verdict = of_profile(found)
    assert verdict.winner == SWAPPED
    assert verdict.text.startswith("swapping wins: no plan without swapping, because ")


def test_what_is_quicker_is_taken() -> None:
    """The faster kind wins, and the comparison gives the gap to the other.

    With less memory, the plan without swapping is the slower one.
    """
    for memory_bytes, swaps in ((1.6e9, False), (1.4e9, True)):
        found = search(MODEL, cluster(memory_bytes), PlanRequest(4))
        swapping = [one for one in found.candidates if one.plan.swap is not None]
        staying = [one for one in found.candidates if one.plan.swap is None]
        assert (found.best.plan.swap is not None) == swaps
        least = [min(one.iteration_s for one in own) for own in (swapping, staying)]
        assert (least[0] < least[1]) == swaps
        assert ("; swapping, harmony " if not swaps else "swapping wins: ") in of_profile(found).text


def test_stashes_are_kept_where_that_is_quicker() -> None:
    """Stashes are kept in the same packs and memory if that is faster.

    Large stashes, which would be swapped, are recomputed.
    """
    found = search(MODEL, cluster(700e6), PlanRequest(4, strategies=("harmony",)))
    again = [one for one in found.candidates if all(stage.recompute for stage in one.plan.stages)]
    assert not any(stage.recompute for stage in found.best.plan.stages)
    assert " packs all kept ahead 2 " in found.best.label
    assert found.best.iteration_s < 0.75 * min(one.iteration_s for one in again)
    proved(found.best.plan, MODEL)
    large = chain(
        6, forward_s=0.01, backward_s=0.02, weights_bytes=100e6, activation_bytes=2e6, stash_bytes=300e6,
        microbatch_sizes=(1, 2), device_type="v100-16gb",
    )  # fmt: skip
    best = search(large, cluster(1e9), PlanRequest(4, strategies=("harmony",))).best.plan
    assert all(stage.recompute for stage in best.stages)


def test_with_room_for_all_nothing_is_swapped() -> None:
    """With enough memory, plans that swap are not even tried."""
    found = search(MODEL, cluster(16e9), PlanRequest(4))
    assert all(one.plan.swap is None for one in found.candidates)
    assert "swapping" not in of_profile(found).text


@pytest.mark.parametrize(
    ("memory_bytes", "host_memory_bytes", "reason"),
    [
        (700e6, None, "the cluster file has no host_memory_bytes"),
        (700e6, 1e9, r"the host of server 0 needs 1\.\d+ GiB for swapped values and has 0\.93 GiB"),
        (200e6, 64e9, r"layer layer\d alone needs .* MiB, and a device has 190\.73 MiB; subtask_bytes"),
    ],
)
def test_where_nothing_helps(memory_bytes: float, host_memory_bytes: float | None, reason: str) -> None:
    """The refusal names the memory that swapping lacks."""
    with pytest.raises(RefusedError, match=reason):
        _ = search(MODEL, cluster(memory_bytes, host_memory_bytes), PlanRequest(4)).best


def test_a_host_of_what_is_asked_for_is_enough() -> None:
    """The suggested host memory is enough for a plan.

    If host memory is unknown, the advice asks for it.
    """
    with pytest.raises(RefusedError) as caught:
        _ = search(MODEL, cluster(700e6, 1e9), PlanRequest(4)).best
    (told,) = re.findall(r"host_memory_bytes: ([\d.]+[KMG]iB)", caught.value.next_step)
    assert search(MODEL, cluster(700e6, read_size(told, "")), PlanRequest(4)).best.plan.swap is not None
    with pytest.raises(RefusedError) as caught:
        _ = search(MODEL, cluster(700e6, None), PlanRequest(4)).best
    assert "host_memory_bytes" in caught.value.next_step


@pytest.mark.slow
def test_what_is_proved_of_a_host_is_what_plans_are_held_to() -> None:
    """A plan may set its host limit to exactly the proved need.

    This includes messages with several tensors.
    """
    profile = chain(
        8,
        forward_s=0.01,
        backward_s=0.02,
        weights_bytes=20e6,
        activation_bytes=5e6,
        microbatch_sizes=(1, 2),
        skips=[(k, k + 2) for k in range(6)],
        device_type="v100-16gb",
    )
    room = cluster(250e6)
    found = [one.plan for one in search(profile, room, PlanRequest(8, strategies=("harmony",))).candidates]
    assert any(len(stage.layers) > 1 for plan in found for stage in plan.stages)
    for plan in found:
        assert plan.swap is not None
        most = max(on_hosts(PlannedRun.of(plan, profile)).values())
        replace(plan, swap=replace(plan.swap, host_bytes=most)).compile(profile)


@pytest.mark.parametrize(("memory_bytes", "fits"), [(560e6, False), (700e6, True)])
def test_where_the_tuner_counts_too_much(memory_bytes: float, fits: bool) -> None:
    """The finest packs are proved if the tuner's sum exceeds the memory.

    With large activations, its sum suggests that not even one layer fits. Missing memory is reported.
    """
    profile = chain(
        5,
        forward_s=0.01,
        backward_s=0.02,
        weights_bytes=100e6,
        activation_bytes=50e6,
        microbatch_sizes=(1, 2),
        skips=[(k, k + 2) for k in range(3)],
        device_type="v100-16gb",
    )
    found = search(profile, cluster(memory_bytes), PlanRequest(8, strategies=("harmony",)))
    swapping = [one for one in found.candidates if one.plan.swap is not None]
    assert bool(swapping) == fits
    for one in swapping:
        proved(one.plan, profile)
    reasons = {one.reason for one in found.refused if one.swaps}
    assert fits or any("too few: " in reason for reason in reasons)
    assert not any("divides a batch" in reason for reason in reasons)


def test_what_needs_least_is_looked_at_before_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finest packs are tried if the tuner's fastest plans do not fit."""
    monkeypatch.setattr(packs, "_few", lambda plans, most: sorted(plans, key=lambda one: len(one.backward.packs))[:1])
    monkeypatch.setattr(packs, "ROOMS", (1.5,))
    found = search(MODEL, cluster(600e6), PlanRequest(4, strategies=("harmony",)))
    assert any(one.swaps and "too few" in one.reason for one in found.refused)
    assert {len(one.plan.stages) for one in found.candidates} == {6}
    proved(found.best.plan, MODEL)


def test_a_plan_with_too_little_of_its_host() -> None:
    """The error names the need on the host, and that amount is enough."""
    best = search(MODEL, cluster(700e6), PlanRequest(4, strategies=("harmony",))).best.plan
    assert best.swap is not None
    small = replace(best, swap=replace(best.swap, host_bytes=1e6))
    with pytest.raises(RefusedError, match=r"swap\.host_bytes of device \d") as caught:
        small.compile(MODEL)
    needed = read_size(caught.value.next_step.split("host_bytes: ")[1].split()[0], "")
    replace(best, swap=replace(best.swap, host_bytes=needed)).compile(MODEL)


def test_more_memory_is_hardly_slower() -> None:
    """More memory hardly slows plans that swap, down to the need of one layer."""
    best = [
        search(MODEL, cluster(room), PlanRequest(4, strategies=("harmony",))).best.iteration_s for room in (LEAST, 1e9)
    ]
    assert best[1] <= best[0] * 1.01


def test_clipped_gradients() -> None:
    """With gradient clipping, no update can run before the norm of all gradients."""
    clipped = replace(MODEL, clip_grad_norm=1.0)
    best = search(clipped, cluster(700e6), PlanRequest(4)).best
    assert best.plan.options["just_in_time"] is False
    proved(best.plan, clipped)


def test_figures_of_the_tuner_are_the_cost_models() -> None:
    """Figures of the tuner equal the cost model's, for a chain.

    Seconds are as profiled, and a backward contains its forward. Bytes are those of a layer's values.
    """
    found = layer_profile(MODEL, cluster(700e6))
    assert found.forward.seconds[1].tolist() == pytest.approx([0.02] * 6)
    assert found.backward.seconds[1].tolist() == pytest.approx([0.06] * 6)
    assert found.input_bytes.tolist() == [2e6] * 6
    assert found.weights_bytes.tolist() == [100e6] * 6
    held = found.backward.bytes[0]
    assert (held >= 300e6).all()  # weights, gradient, optimizer state
    assert (held <= LEAST).all()
    server = server_of(cluster(700e6))
    assert (server.devices, server.memory_bytes, server.peer_bytes_per_s) == (2, 700e6, 10e9)
    # Two devices that share a link have its bandwidth together; a server more has one more link.
    shared = replace(cluster(700e6), host_link=Link(8e9, 1e-5))
    assert server_of(shared).swap_bytes_per_s == pytest.approx(8e9)
    two = replace(shared, levels=(*shared.levels, Level("cluster", 2, 1e9)))
    assert server_of(two).swap_bytes_per_s == pytest.approx(16e9)


@pytest.mark.parametrize("mode", list(Mode))
def test_equal_packs(mode: Mode) -> None:
    """Forward packs equal backward packs except the last, with one size.

    Plans are sorted by time; each fits by the tuner's own count.
    """
    plans = equal_plans(layer_profile(MODEL, cluster(700e6)), server_of(cluster(700e6)), 4, mode, (1, 2))
    assert plans
    assert [one.iteration_s for one in plans] == sorted(one.iteration_s for one in plans)
    for one in plans:
        assert one.forward.packs == one.backward.packs[:-1]
        assert one.forward.size == one.backward.size
        assert one.peak_bytes <= 700e6
        assert [layer for pack in one.backward.packs for layer in range(*pack)] == list(range(6))


def test_the_clock_is_compiled_once() -> None:
    """The tuner's estimate is compiled once, not for each number of packs.

    Otherwise a first plan would take minutes.
    """
    for mode in Mode:
        equal_plans(layer_profile(MODEL, cluster(700e6)), server_of(cluster(700e6)), 4, mode, (1, 2))
    for clock in (compiled.data_s, compiled.pipeline_s):
        assert clock.signatures
        assert {str(kind) for one in clock.signatures for kind in one[:2]} == {"array(int64, 1d, C)"}


def test_larger_packs_forward() -> None:
    """No union of backward packs that fits is faster by the tuner's estimate."""
    layers, server = layer_profile(MODEL, cluster(700e6)), replace(server_of(cluster(700e6)), memory_bytes=650e6)
    plain = equal_plans(layers, server, 8, Mode.DATA, (1, 2))
    plans = equal_plans(layers, server, 8, Mode.DATA, (1, 2), nested=True)
    assert plans[0].iteration_s < plain[0].iteration_s
    costs = Costs(layers, server, 8, Mode.DATA)
    for one in plans:
        size, cuts = one.backward.size, np.array([0, *(pack.end for pack in one.backward.packs)])
        inner, best = range(1, len(cuts) - 2), float("inf")
        for kept in (kept for count in range(len(cuts)) for kept in combinations(inner, count)):
            forward = cuts[[0, *kept, len(cuts) - 2]] if len(cuts) > 2 else cuts[:1]
            if costs.peak_bytes(size, forward, size, cuts) <= 650e6:
                best = min(best, costs.seconds(size, forward, size, cuts))
        assert one.iteration_s == pytest.approx(best, rel=1e-12)


def test_larger_packs_forward_are_tried() -> None:
    """Larger forward packs win if activations between packs do not fit on the device.

    They save the swaps of these activations.
    """
    model = chain(
        6, forward_s=0.005, backward_s=0.01, weights_bytes=20e6, activation_bytes=20e6, stash_bytes=80e6,
        microbatch_sizes=(1,), device_type="v100-16gb",
    )  # fmt: skip
    found = search(model, cluster(300e6, devices=1), PlanRequest(24, strategies=("harmony",)))
    forward = found.best.plan.options["forward"]
    assert sum(forward) == len(found.best.plan.stages) > len(forward)
    assert f"{len(forward)} packs forward" in found.best.config
    assert (
        min(one.iteration_s for one in found.candidates if "forward" not in one.plan.options) > found.best.iteration_s
    )
    proved(found.best.plan, model)
    assert Plan.from_yaml(found.best.plan.to_yaml()).compile(model) == found.best.plan.compile(model)


def test_packs_may_share_weights() -> None:
    """First and last layer may share weights, on one device or two, in both modes.

    Their steps come last.
    """
    layers = tuple(replace(layer, parameters=(f"w{k % 5}",)) for k, layer in enumerate(MODEL.layers))
    tied = replace(MODEL, layers=layers, ties=((0, 5),))
    found = [one.plan for one in search(tied, cluster(900e6), PlanRequest(4)).candidates]
    assert {plan.options["mode"] for plan in found} == {"data", "pipeline"}
    for plan in found:
        proved(plan, tied)
    assert any(_first_and_last_meet(plan) for plan in found)


def _first_and_last_meet(plan: Plan) -> bool:
    first, last = plan.stages[0], plan.stages[-1]
    return first is not last and set(first.devices) == set(last.devices)

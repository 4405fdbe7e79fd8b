"""Amplification: device-seconds of plans, limits in the search, and measured runs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket
from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.burst.amplification import alone_s, amplification_of
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_choice, proven_peaks
from hocket.planning.search.make_plan import make_plan
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import TIE
from hocket.planning.search.search import search, search_widths
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import strategy
from hocket.strategies.burst.constraints import BurstLimits
from hocket.strategies.burst.planner import plan_burst
from tests.strategies.helpers import burst_models
from tests.tiers import examples

# A wide layer that every device makes quicker, and one that none does.
UNLIKE = burst_models.chain([[1, 2, 4, 8], [1, 2, 4, 8], [5, 5, 5, 5]], [1.0, 1.0])
FAST = burst_models.flat(8, bandwidth=1e9)
NAMES = ("data_parallel", "flush", "burst_parallel")


def burst(found, profile, cluster, batch=8) -> Plan:
    """The plan that `plan_burst` finds for powers of two."""
    names = [layer.name for layer in profile.layers]
    stages = tuple(PlanStage(tuple(names[i] for i in run.layers), run.devices) for run in found.runs)
    most = max(len(run.devices) for run in found.runs)
    return Plan("burst_parallel", profile.name, batch, -(-batch // most), stages, cluster)


def test_one_device_takes_the_batch_at_once() -> None:
    """Seconds on one device are the sum over layers.

    Beyond the profile they are proportional to its largest size. Of several profiles, the one of one device counts.
    """
    assert alone_s((UNLIKE,), FAST, 8) == pytest.approx(2 * (8 + 8 + 5))
    assert alone_s((UNLIKE,), FAST, 16) == pytest.approx(2 * 2 * (8 + 8 + 5))
    pair = replace(UNLIKE, tensor=2)
    assert alone_s((pair, UNLIKE), FAST, 8) == alone_s((UNLIKE,), FAST, 8)
    assert alone_s((pair,), FAST, 8) == 2 * alone_s((UNLIKE,), FAST, 8)
    with pytest.raises(InputError, match="seconds above 0 on one device"):
        alone_s((burst_models.chain([[0, 0, 0, 0]], []),), FAST, 8)


@examples(25)
@given(data=st.data(), layers=st.integers(1, 4), limit=st.sampled_from([1.0, 1.25, 1.5, 2.0]))
def test_it_is_the_planners_where_links_take_no_time(data: st.DataObject, layers: int, limit: float) -> None:
    """With free links, the program uses the device-seconds that `plan_burst` counts.

    The limit is for the whole plan.
    """
    profile = burst_models.chain(data.draw(burst_models.seconds(layers)), [1.0] * (layers - 1))
    cluster = burst_models.flat(4, bandwidth=1e30)
    found = plan_burst(profile, cluster, 8, BurstLimits(None, limit))
    own = amplification_of(burst(found, profile, cluster), profile)
    assert own.planned == pytest.approx(found.amplification)
    assert own.planned <= limit * (1 + 1e-9)


def test_who_keeps_devices_pays_for_them_all_the_time() -> None:
    """Two stages that wait for each other use two devices for the whole iteration."""
    stages = (PlanStage(("layer0", "layer1"), (0,)), PlanStage(("layer2",), (1,)))
    plan = Plan("model_parallel", "toy", 8, 8, stages, FAST)
    assert amplification_of(plan, UNLIKE).planned == pytest.approx(2.0)


@examples(8)
@given(data=st.data(), layers=st.integers(2, 3), limit=st.sampled_from([1.0, 1.2, 1.5, 2.0, 4.0]))
@pytest.mark.slow
def test_nothing_that_keeps_the_limit_is_faster(data: st.DataObject, layers: int, limit: float) -> None:
    """No candidate of any strategy that keeps the limit is faster.

    Each plan is counted separately. Refusals say by how much the limit is exceeded.
    """
    profile = burst_models.chain(data.draw(burst_models.seconds(layers)), [1.0] * (layers - 1), [1.0] * layers)
    cluster = burst_models.flat(4, data.draw(st.sampled_from((0.5, 50.0))), memory_bytes=1e6)
    space = SearchSpace(profile, cluster, 8, amplification_limit=limit)
    kept = []
    for name in NAMES:
        try:
            offered = list(strategy(name).choices(space))
            for choice in offered:
                seconds = predict_choice(space, name, choice).iteration_s
                own = amplification_of(make_plan(space, name, choice), profile).planned
                peaks = proven_peaks(space, name, choice)
                if own <= limit * (1 + 1e-9) and max(peaks.values()) <= 1e6:
                    kept.append(seconds)
        except RefusedError:
            continue
    found = search(profile, cluster, PlanRequest(8, amplification_limit=limit, strategies=NAMES))
    for one in found.candidates:
        assert one.amplification == pytest.approx(amplification_of(one.plan, profile).planned)
        assert one.amplification <= limit * (1 + 1e-9)
    assert bool(kept) == bool(found.candidates)
    if kept:
        assert min(one.iteration_s for one in found.candidates) <= min(kept) * (1 + TIE)
    assert all("above the limit of" in one.reason for one in found.refused if "amplification" in one.reason)


def test_burst_plans_win_where_layers_are_unlike() -> None:
    """Burst parallelism wins with different layers: only wide ones get all devices.

    Eight devices for all layers exceed the limit. Without a limit, amplification is not computed.
    """
    free, found = search(UNLIKE, FAST, PlanRequest(8)), search(UNLIKE, FAST, PlanRequest(8, amplification_limit=1.2))
    assert free.best.amplification is None
    assert free.best.strategy == "data_parallel"
    assert (found.best.strategy, found.best.config) == ("burst_parallel", "8-1")
    reasons = {one.strategy: one.reason for one in found.refused if one.config == "8 b1"}
    assert reasons["data_parallel"] == (
        "amplification of at least 2.67, above the limit of 1.2: 112 s of devices, 42 s of one alone"
    )


def test_shares_that_were_not_measured_are_left_out() -> None:
    """Shares of the batch beyond the measured sizes are left out.

    With 32 samples, four devices have eight samples each, which were measured. With 80 samples, no number of
    devices has a measured share.
    """
    cluster = burst_models.flat(4, bandwidth=1e9)
    found = search(UNLIKE, cluster, PlanRequest(32, amplification_limit=4.0, strategies=("burst_parallel",)))
    assert {len(stage.devices) for one in found.candidates for stage in one.plan.stages} == {4}
    with pytest.raises(RefusedError, match="80 samples for 4 devices; expected at most 8 samples on each device"):
        _ = search(UNLIKE, cluster, PlanRequest(80, amplification_limit=4.0, strategies=("burst_parallel",))).best


@pytest.mark.parametrize("limit", [0.5, -1.0, float("nan")])
def test_a_limit_below_one_device_is_refused(limit: float) -> None:
    """Limits below 1 are refused, and all limits for analytic models.

    Every plan of an analytic model uses all devices.
    """
    with pytest.raises(InputError, match=r"expected >= 1 \(one device has"):
        search(UNLIKE, FAST, PlanRequest(8, amplification_limit=limit))
    with pytest.raises(InputError, match="an analytic model, for which every plan uses all devices"):
        hocket.plan("gpt2-xl", FAST, 8, amplification_limit=1.5)


def test_groups_are_counted_by_their_devices() -> None:
    """A group of two that is as fast as one device has twice the amplification.

    The single device is that of the job's own profile.
    """
    profiles = {"one": UNLIKE, "two": replace(UNLIKE, tensor=2)}

    def used(limit: float) -> set[tuple[int, float]]:
        found = search_widths(profiles, FAST, PlanRequest(8, strategies=("data_parallel",), amplification_limit=limit))
        return {(one.plan.tensor, round(one.amplification or 0.0, 6)) for one in found.candidates}

    assert used(1.0) == {(1, 1.0)}
    assert (2, 2.0) in used(2.0)


@pytest.mark.parametrize(("sizes", "told"), [((32,), True), ((1, 2, 4, 8, 16, 32), False)])
def test_seconds_of_sizes_outside_of_what_was_measured_are_noted(sizes: tuple[int, ...], told: bool) -> None:
    """The search notes seconds of sizes far from any measurement.

    A burst-parallel plan may run such a share of a batch.
    """
    profile = chain(
        4, forward_s=0.004, weights_bytes=1e3, activation_bytes=1e3, microbatch_sizes=sizes, device_type="a100-80gb"
    )
    cluster = Cluster("eight", (Level("server", 8, 1e12),), device_type="a100-80gb")
    found = search(profile, cluster, PlanRequest(32, strategies=("burst_parallel",)))
    assert any("samples at once" in note for note in found.notes) is told

"""Two waves of data parallelism in the planner: conditions, and gain."""

from dataclasses import replace

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.burst.amplification import work_of
from hocket.planning.explain.baseline_comparison import of_profile, with_stale
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_choice, predict_iteration, proven_peaks
from hocket.planning.search.bounds.bounds import Bounds
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.schedules.tick_tock import choices

CLUSTER = Cluster("two", (Level("server", 2, 1e12),), "v100-16gb")


def profile(share: float) -> ModelProfile:
    """Layers with a given demand for one or two samples, in the same time for both."""
    plain = chain(4, forward_s=0.1, backward_s=0.2, microbatch_sizes=(1, 2, 1000), device_type="v100-16gb")
    layers = tuple(
        replace(one, forward_s=(0.1, 0.1, 100 * share), backward_s=(0.2, 0.2, 200 * share)) for one in plain.layers
    )
    return replace(plain, layers=layers)


def test_they_are_looked_at_by_name_or_with_old_weights_only() -> None:
    """Two waves are tried only by name, or with stale weights; their gain is reported."""
    given = profile(0.25)
    request = PlanRequest(8, microbatch_sizes=(2,))
    found = search(given, CLUSTER, request)
    assert all(one.strategy != "tick_tock" for one in found.candidates)
    verdict = with_stale(of_profile(found), found)
    assert verdict.stale.startswith("tick_tock 2 x 2 waves")
    assert "two replicas in turn" in verdict.stale_text
    plain = next(one for one in found.candidates if one.strategy == "data_parallel")
    assert plain.iteration_s == pytest.approx(2.4, rel=1e-4), "twice forward and backward on each device"
    assert verdict.stale_gains == pytest.approx(1 - 1.2 / found.best.iteration_s, rel=1e-3)
    named = search(given, CLUSTER, PlanRequest(8, microbatch_sizes=(2,), strategies=("tick_tock",)))
    both = {
        one.plan.options["align"]: one.iteration_s for one in named.candidates if len(one.plan.stages[0].devices) == 2
    }
    assert both == pytest.approx({"forwards": 1.2, "both": 1.6}, rel=1e-4), (
        "of both alignments; forwards run beside backwards"
    )
    assert of_profile(named).winner == "data parallelism in two waves"
    assert named.best.updates.text == "two waves"


def test_a_plan_of_two_waves_is_what_was_searched() -> None:
    """The plan survives a round trip; each device computes each sample once."""
    given = profile(0.5)
    best = search(given, CLUSTER, PlanRequest(8, microbatch_sizes=(1,), strategies=("tick_tock",))).best
    plan = Plan.from_yaml(best.plan.to_yaml())
    assert plan == best.plan
    assert [stage.wave for stage in plan.stages] == [0, 1]
    assert predict_iteration(plan, given).iteration_s == pytest.approx(best.iteration_s)
    choice = Candidate(plan.cuts(given), plan.microbatch_size, plan.microbatches, plan.options)
    proven = proven_peaks(SearchSpace(given, CLUSTER, 8), "tick_tock", choice)
    assert best.peak_memory_bytes == proven, "one number, of any timing"
    work = work_of(plan)
    assert (
        sum(samples for (kind, _, layer), samples in work.items() if (kind, layer) == ("forward", given.layers[0].name))
        == 8
    )


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_no_bound_is_above_what_is_simulated(share: float) -> None:
    """Bounds allow for the overlap of waves on a device."""
    space = SearchSpace(profile(share), CLUSTER, 8, (1, 2))
    bounds = Bounds(space)
    seen = 0
    for choice in choices(space):
        simulated = predict_choice(space, "tick_tock", choice)
        shapes = bounds.shapes(choice)
        assert (
            bounds.quick_s(choice) <= bounds.seconds("tick_tock", shapes, choice) <= simulated.iteration_s * (1 + 1e-9)
        )
        peaks = bounds.peak_bytes("tick_tock", shapes, choice)
        assert all(least <= simulated.peak_memory_bytes[device] for device, least in peaks.items())
        seen += 1
    assert seen >= 3

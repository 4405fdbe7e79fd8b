"""Seconds of the critical path sum to the iteration, and name the bottleneck."""

from dataclasses import replace

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import played, predict_iteration, shorter_runs
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.simulation.swapping.traffic import swapped_of
from tests.planning.mesh.test_layout import GPT, SERVERS

SERVER = Cluster("four", (Level("server", 2, 1e10, 1e-6), Level("cluster", 2, 1e9, 1e-6)), "v100-16gb")


def test_it_sums_to_the_iteration() -> None:
    """The path's seconds sum to the iteration, for plans of every strategy."""
    profile = chain(8, forward_s=[0.001] * 7 + [0.004], backward_s=0.002, device_type="v100-16gb", activation_bytes=1e6)
    found = search(profile, SERVER, PlanRequest(16))
    assert len({one.strategy for one in found.candidates}) > 4
    for one in found.candidates:
        path = shorter_runs(PlannedRun.of(one.plan, profile)).critical_path
        assert path.iteration_s == pytest.approx(one.iteration_s), one.label
        assert min(*path.compute_s.values(), *path.link_s.values(), path.host_s, path.waiting_s) >= 0


def test_who_holds_it_up() -> None:
    """The path names the device of a slow layer, and a slow link between servers."""
    slow = chain(4, forward_s=[0.001, 0.001, 0.05, 0.001], backward_s=0.001, device_type="v100-16gb")
    straight = search(slow, SERVER, PlanRequest(32, strategies=["flush"], microbatch_sizes=(1,)))
    plan = next(one.plan for one in straight.candidates if len(one.plan.stages) > 1)
    stage = next(s for s in plan.stages if slow.layers[2].name in s.layers)
    path = shorter_runs(PlannedRun.of(plan, slow)).critical_path
    assert max(path.compute_s, key=lambda device: path.compute_s[device]) in stage.devices
    heavy = chain(
        4, forward_s=0.06, backward_s=0.12, weights_bytes=1e8, device_type="v100-16gb", microbatch_sizes=(1, 2, 4)
    )
    wide = search(heavy, SERVER, PlanRequest(4, strategies=["data_parallel"]))
    plan = next(one.plan for one in wide.candidates if len(one.plan.stages[0].devices) == 4)
    links = shorter_runs(PlannedRun.of(plan, heavy)).critical_path.link_s
    assert max(links, key=lambda name: links[name]) == "cluster"
    assert links["cluster"] > 0.1 * predict_iteration(plan, heavy).iteration_s


def test_swaps_are_the_host_links() -> None:
    """Swaps count as host seconds, not as compute, although they are in its lane.

    On one device without overlap, all swaps are on the path.
    """
    profile = chain(4, weights_bytes=100e6, activation_bytes=2e6, microbatch_sizes=(1,), device_type="v100-16gb")
    alone = Cluster("one", (Level("server", 1, 1e9),), "v100-16gb", memory_bytes=5e8, host_memory_bytes=9e9)
    plan = next(
        one.plan
        for one in search(profile, alone, PlanRequest(4)).candidates
        if one.plan.swap and not one.plan.swap.prefetch
    )
    path, outcome = shorter_runs(PlannedRun.of(plan, profile)).critical_path, played(plan, profile)
    moved = swapped_of(outcome)
    assert moved is not None
    link, _ = alone.host_link_of(0)
    moved_s = moved.device_bytes[0] / link.bandwidth_bytes_per_s
    assert path.host_s == pytest.approx(moved_s, rel=0.01)  # and latencies
    assert path.iteration_s == pytest.approx(predict_iteration(plan, profile).iteration_s)
    assert sum(path.compute_s.values()) == pytest.approx(path.iteration_s - path.host_s)


def test_of_long_batches() -> None:
    """The path of a long batch is extrapolated from shorter ones, as seconds are."""
    found = search_sizes(GPT, replace(SERVERS, memory_bytes=2e9), PlanRequest(512, tensors=(2,), microbatch_sizes=(1,)))
    for one in found.candidates[:3]:
        path = shorter_runs(PlannedRun.of(found.plan(one), found.profile_of(one))).critical_path
        assert path.iteration_s == pytest.approx(one.iteration_s, rel=1e-3), one.label

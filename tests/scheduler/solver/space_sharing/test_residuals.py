"""Residual demand: nearly finished jobs are served despite solver tolerances."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import finish_time_fairness, makespan, makespan_budget, min_cost_slo
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.space_sharing import column_generation
from hocket.scheduler.solver.space_sharing.residuals import with_crumbs
from hocket.scheduler.solver.space_sharing.time_windows import spread
from tests.scheduler.helpers.crowds import assert_it_can_be

ASKING = [makespan, finish_time_fairness, makespan_budget, min_cost_slo]
each_that_asks = pytest.mark.parametrize("policy", ASKING, ids=lambda policy: policy.__name__.rpartition(".")[2])


def nearly_done(seed: int, left: float, unlike: bool, pairs: bool) -> Snapshot:
    """Five jobs of days on two workers of two types, and nearly finished ones.

    Each kind has a job with `left` remaining steps.
    """
    rng = np.random.default_rng(seed)
    steps = rng.uniform(1, 10, (5, 2)) if unlike else np.tile(rng.uniform(1, 10, (1, 2)), (5, 1))
    slo_s = 4e6
    days = [Active(Job(f"days{j}", f"kind{j}", 1e6, slo_s=slo_s), float(rng.uniform(1e5, 1e6))) for j in range(5)]
    soon = [Active(Job(f"soon{j}", f"kind{j}", 1e6, slo_s=slo_s), left) for j in range(5)]
    kept = rng.uniform(0.5, 1.0, (5, 5, 2)) if unlike else np.tile(rng.uniform(0.5, 1.0, (1, 1, 2)), (5, 5, 1))
    kinds = np.tile(np.arange(5), 2)
    types = (WorkerType("v100", 1, 1, 2.0), WorkerType("k80", 1, 1, 0.5))
    shared = Pairs(kinds, kept) if pairs else None
    return Snapshot(types, (Placement(0), Placement(1)), (*days, *soon), np.tile(steps, (2, 1)), shared, budget_usd=1e4)


@each_that_asks
@given(
    seed=st.integers(0, 10**6),
    left=st.sampled_from([1e-9, 1e-6, 1e-4, 1e-2]),
    unlike=st.booleans(),
    pairs=st.booleans(),
    most=st.sampled_from([0, column_generation.MOST_GROUPS]),
)
def test_who_is_nearly_done_is_not_left_out(
    policy: ModuleType, seed: int, left: float, unlike: bool, pairs: bool, most: int
) -> None:
    """A nearly finished job gets its demand and ends no later than the others.

    The demand is below the solver's tolerance. Pairs are used, and roles as with too many distinct jobs.
    """
    there = nearly_done(seed, left, unlike, pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generation, "MOST_GROUPS", most)
        found = policy.allocate(there)
    assert_it_can_be(there, found)
    gets = found.throughput(there)
    if policy is min_cost_slo:
        assert found.gap <= 1e-6
        assert (gets >= there.remaining_steps / 4e6 * (1 - 1e-6)).all()
        return
    assert (gets > 0).all()
    assert np.isfinite(found.objective)
    assert found.gap <= 1e-6
    without = replace(there, jobs=there.jobs[:5], throughputs=there.throughputs[:5], pairs=None)
    if policy is not finish_time_fairness and not pairs:  # whose n-th part of the cluster depends on who is there
        assert found.objective == pytest.approx(policy.allocate(without).objective, rel=1e-5)


def test_where_the_other_side_of_a_pair_is_nothing_a_job_is_alone() -> None:
    """A job is alone if the other side of its pair is negligible.

    The two jobs of the other group have so little time left that it counts as zero; their demands are met.
    """
    kinds = np.array([0, 0, 1])
    jobs = tuple(Active(Job(f"{j}", f"{kinds[j]}", 10.0), 10.0) for j in range(3))
    there = Snapshot(
        (WorkerType("v100", 2),), (Placement(0),), jobs, np.ones((3, 1)), Pairs(kinds, np.full((2, 2, 1), 0.9))
    )
    shares = AllocationVariables(there)
    mixed = np.flatnonzero((shares.second != ALONE) & (shares.first != shares.second))
    times = np.zeros(shares.variables)
    times[mixed] = 1.5e-12
    (first, second, column, fraction), torn = spread(GroupLines(shares), times, np.array([6.7e-13, 6.8e-13, 0.0]))
    assert not torn
    assert (first.tolist(), second.tolist(), column.tolist()) == ([0, 1, 2], [ALONE] * 3, [0] * 3)
    assert fraction == pytest.approx([6.7e-13, 6.8e-13, 1.5e-12])


@pytest.mark.parametrize("scale", [1, 2])
def test_times_are_reduced_where_the_workers_are_full(scale: int) -> None:
    """A crumb on full workers shortens all their times a little; a job of two workers counts twice."""
    jobs = (
        Active(Job("wide", "wide", 10.0, scale_factor=scale), 10.0),
        Active(Job("soon", "soon", 10.0), 10.0),
    )
    there = Snapshot((WorkerType("v100", scale),), (Placement(0),), jobs, np.array([[4.0], [2.0]]))
    entries = (np.array([0]), np.array([ALONE]), np.array([0]), np.array([1.0]))
    demand = np.array([4.0, 1e-9])
    first, second, column, fraction = with_crumbs(GroupLines(AllocationVariables(there)), demand, entries, there)
    assert (first.tolist(), second.tolist(), column.tolist()) == ([0, 1], [ALONE] * 2, [0, 0])
    assert fraction[1] == pytest.approx(0.5e-9, rel=1e-6)
    assert fraction[0] < 1
    assert fraction[0] * scale + fraction[1] == pytest.approx(scale, rel=1e-14)

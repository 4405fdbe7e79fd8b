"""Paces and deadlines with roles: as good as with all pairs."""

from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import finish_time_fairness, makespan, min_cost_slo
from hocket.scheduler.solver.space_sharing import column_generation
from tests.conformance.test_policies import keeps_what_there_is
from tests.tiers import examples


def unlike(seed: int, slo: float | None = None) -> Snapshot:
    """Jobs of a few classes that differ in work, speed and age.

    Some need two workers, some cannot run.
    """
    rng = np.random.default_rng(seed)
    count, classes, columns = int(rng.integers(1, 10)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    types = tuple(
        WorkerType(f"type {k}", int(rng.integers(1, 4)), 1, float(rng.uniform(0.3, 2))) for k in range(columns)
    )
    scale = rng.choice([1, 1, 1, 2], count)
    steps = rng.choice([0.0, 1.0, 3.0, 7.5], (count, columns), p=[0.1, 0.3, 0.3, 0.3]) * rng.uniform(
        0.8, 1.2, (count, 1)
    )
    work = rng.uniform(1e3, 1e5, count)
    jobs = tuple(
        Active(
            Job(str(j), "any", float(work[j]), int(scale[j]), slo_s=None if slo is None else float(work[j] * slo)),
            float(work[j]),
            float(rng.uniform(0, 1e3)) if slo is None else 0.0,
        )
        for j in range(count)
    )
    kept = rng.uniform(0.4, 1.0, (classes, classes, columns)) * (rng.random((classes, classes, 1)) < 0.8)
    return Snapshot(
        types, tuple(Placement(k) for k in range(columns)), jobs, steps, Pairs(rng.integers(0, classes, count), kept)
    )


@pytest.mark.parametrize("policy", [makespan, finish_time_fairness], ids=lambda m: m.__name__.split(".")[-1])
@examples(80)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_pace_by_roles_is_that_of_pairs(policy: ModuleType, seed: int) -> None:
    """Roles have the objective of pairs, by real throughputs.

    The result is feasible, and the gap is verified.
    """
    there = unlike(seed)
    pairs = policy.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generation, "MOST_GROUPS", 0)
        roles = policy.allocate(replace(there))
    assert roles.objective == pytest.approx(pairs.objective, rel=1e-6)
    assert roles.gap <= 1e-6
    assert roles.refused == pairs.refused
    keeps_what_there_is(there, roles)


def test_what_unlike_jobs_keep_beside_others_does_not_hold_a_pace_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class without jobs does not affect the pace.

    The class keeps 1.3 of its speed. Two jobs of an hour on two workers still take an hour.
    """
    monkeypatch.setattr(column_generation, "MOST_GROUPS", 0)
    jobs = tuple(Active(Job(str(j), "any", 3600.0), 3600.0 - j) for j in range(2))
    kept = np.full((2, 2, 1), 1.3)
    kept[0, 0] = 0.5
    there = Snapshot(
        (WorkerType("type", 2),), (Placement(0),), jobs, np.ones((2, 1)), Pairs(np.zeros(2, dtype=int), kept)
    )
    found = makespan.allocate(there)
    assert found.objective == pytest.approx(3600)
    assert found.gap <= 1e-6


@examples(80)
@given(seed=st.integers(0, 2**32 - 1))
def test_deadlines_that_can_be_met_are_met_at_the_same_cost(seed: int) -> None:
    """Feasible deadlines are met at the cost of pairs.

    Every job has twelve times as long as it needs on workers of a step a second.
    """
    there = unlike(seed, 12.0)
    pairs = min_cost_slo.allocate(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generation, "MOST_GROUPS", 0)
        roles = min_cost_slo.allocate(replace(there))
    keeps_what_there_is(there, roles)
    assert roles.gap <= 1e-6
    if not pairs.note:
        assert not roles.note
        assert roles.objective == pytest.approx(pairs.objective, rel=1e-6)


@examples(60)
@given(seed=st.integers(0, 2**32 - 1), slo=st.floats(0.1, 3.0))
def test_deadlines_in_conflict_are_given_up_and_the_others_met(seed: int, slo: float) -> None:
    """Jobs with kept deadlines have the throughput that they need."""
    there = unlike(seed, slo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_generation, "MOST_GROUPS", 0)
        found = min_cost_slo.allocate(there)
    keeps_what_there_is(there, found)
    assert found.gap <= 1e-6
    got = found.throughput(there)
    for j, active in enumerate(there.jobs):
        if j not in found.refused and "given up" not in found.reasons[j].binding:
            assert active.job.slo_s is not None
            assert got[j] >= active.remaining_steps / active.job.slo_s * (1 - 1e-6)

"""Makespan: against the public policy, and by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import makespan
from hocket.scheduler.solver.lp.linear_program import solve
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from tests.scheduler.helpers.crowds import crowd
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples


def halved(makespan_s: float) -> float:
    """Result of the public policy's search for a makespan.

    It bisects between 100 s and 1e6 s, down to 5 %.
    """
    low, high = 100.0, 1e6
    while 1.05 * low < high:
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= makespan_s else (middle, high)
    return high


@pytest.mark.parametrize("reference", references("min_total_duration_perf"), ids=lambda r: r["input"])
def test_the_objective_is_the_best_that_the_public_search_can_end_at(reference: dict[str, Any]) -> None:
    """The public policy's makespan is consistent with our optimum.

    Its jobs end after ours, and before the result of its search for our optimum. A makespan 5 % shorter or longer
    would end elsewhere.
    """
    there = snapshot(reference["input"])
    found = makespan.allocate(there)
    theirs_s = reference["eval"]["makespan_s"]
    assert found.objective <= theirs_s * (1 + 1e-6)
    assert theirs_s <= halved(found.objective) * (1 + 1e-6) <= 1.01 * theirs_s
    assert (there.remaining_steps / found.throughput(there)).max() == pytest.approx(found.objective, rel=1e-6)
    assert found.gap <= 1e-6


@pytest.mark.parametrize("reference", references("min_total_duration_packed", 128), ids=lambda r: r["input"])
def test_the_objective_with_all_pairs_is_the_best_that_the_public_search_can_end_at(reference: dict[str, Any]) -> None:
    """The same with all pairs.

    One of the public searches ends elsewhere, because its solver once accepts an infeasible program.
    """
    there = snapshot(reference["input"], pairs=True)
    found = makespan.allocate(there)
    theirs_s = reference["eval"]["makespan_s"]
    assert found.objective <= theirs_s * (1 + 1e-6) <= found.objective * 1.05
    assert (there.remaining_steps / found.throughput(there)).max() == pytest.approx(found.objective, rel=1e-6)
    assert found.gap <= 1e-6


def test_two_jobs_on_unlike_workers() -> None:
    """Jobs of 60 and 90 steps, on workers of 3 and 1.5 steps a second: 150 / 4.5 s."""
    steps = np.array([[3.0, 1.5], [3.0, 1.5]])
    jobs = Active(Job("a", "any", 60.0), 60.0), Active(Job("b", "any", 90.0), 90.0)
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Placement(0), Placement(1)), jobs, steps)
    assert makespan.allocate(there).objective == pytest.approx(150 / 4.5)


def test_only_what_is_left_to_do_counts() -> None:
    """Only remaining steps count: 40 and 60 of 1,000 at 2 a second are 50 s.

    Elapsed times are an hour and a minute.
    """
    jobs = Active(Job("a", "any", 1e3), 40.0, 3600.0), Active(Job("b", "any", 1e3), 60.0, 60.0)
    there = Snapshot((WorkerType("v100", 1),), (Placement(0),), jobs, np.array([[2.0], [2.0]]))
    found = makespan.allocate(there)
    assert found.objective == pytest.approx(50.0)
    assert found.dense(there)[:, 0] == pytest.approx([0.4, 0.6])


def test_the_longest_job_alone() -> None:
    """A job of 300 steps takes the fastest worker all the time: 100 s.

    The length of the other job does not matter.
    """
    steps = np.array([[3.0, 1.5], [3.0, 1.5]])
    jobs = Active(Job("a", "any", 300.0), 300.0), Active(Job("b", "any", 60.0), 60.0)
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Placement(0), Placement(1)), jobs, steps)
    found = makespan.allocate(there)
    assert found.objective == pytest.approx(100.0)
    assert found.dense(there)[0] == pytest.approx([1.0, 0.0], abs=1e-8)


def test_what_is_left_is_not_idle() -> None:
    """The short job has its need, and the rest of the long job's worker."""
    steps = np.array([[3.0, 1.5], [3.0, 1.5]])
    jobs = Active(Job("a", "any", 300.0), 300.0), Active(Job("b", "any", 60.0), 60.0)
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Placement(0), Placement(1)), jobs, steps)
    found = makespan.allocate(there)
    assert found.used(there) == pytest.approx([1.0, 1.0], abs=1e-8)
    assert "fastest" in found.reasons[0].binding
    assert "before the last one" in found.reasons[1].binding


def alike(jobs: int, longest: float) -> Snapshot:
    """Jobs of nearly equal throughput on two workers; the first has `longest` times the steps of the others."""
    steps = np.linspace(1.0, 1.01, jobs)[:, None]
    remaining = [100.0 * longest] + [100.0] * (jobs - 1)
    active = tuple(Active(Job(str(j), "any", r), r) for j, r in enumerate(remaining))
    return Snapshot((WorkerType("v100", 2),), (Placement(0),), active, steps)


@pytest.mark.parametrize(("jobs", "policy"), [(3, "makespan"), (3, "makespan_budget"), (2_100, "makespan")])
def test_a_job_that_ends_with_the_longest_need_not_end_sooner(jobs: int, policy: str) -> None:
    """If one job alone sets the makespan, no job is told that full workers do.

    This also holds if workers set the makespan of the call before, whose prices a large program starts with.
    """
    warm = policy_named(policy)
    before = warm(alike(jobs, 1.0))
    told = {reason.binding for reason in before.reasons}
    assert told == {"it ends last, and v100 is full"}
    there = alike(jobs, jobs * 1.0)
    for found in (warm(there), policy_named(policy)(there)):
        assert "even always on its fastest workers" in found.reasons[0].binding
        assert "it need not end before the last one" in found.reasons[1].binding
        assert "full" not in "".join(reason.binding for reason in found.reasons)


def test_only_jobs_that_need_the_full_workers_are_told_of_them() -> None:
    """Two jobs share the v100 to the end; the job of the k80 is done before."""
    steps = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    jobs = tuple(Active(Job(name, "any", r), r) for name, r in (("a", 100.0), ("b", 100.0), ("c", 50.0)))
    there = Snapshot((WorkerType("v100", 1), WorkerType("k80", 1)), (Placement(0), Placement(1)), jobs, steps)
    told = [reason.binding for reason in makespan.allocate(there).reasons]
    assert told[:2] == ["it ends last, and v100 is full"] * 2
    assert told[2] == "it is finished in 50 s, before the last one"


@examples(25)
@given(st.integers(0, 10**6), st.booleans(), st.integers(2, 14))
def test_full_workers_are_told_exactly_if_they_set_the_makespan(seed: int, pairs: bool, jobs: int) -> None:
    """Workers are full if and only if no job alone on its fastest workers takes the whole makespan."""
    there = crowd(seed, jobs, pairs)
    found = makespan.allocate(there)
    told = [reason.binding for reason in found.reasons]
    alone = any("fastest" in binding for binding in told)
    assert any("full" in binding for binding in told) is not alone or len(found.refused) == jobs


@examples(25)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_jobs_of_a_kind_together_are_as_good_as_one_by_one(seed: int, shared: bool) -> None:
    """Groups give the same makespan as one row for each job, and jobs keep it."""
    rng = np.random.default_rng(seed)
    count, kinds = int(rng.integers(1, 10)), rng.uniform(1, 10, (2, 2))
    kind = rng.integers(0, 2, count)
    remaining = rng.choice([10.0, 100.0, 1000.0], count) * rng.uniform(0.5, 2, count)
    jobs = tuple(Active(Job(str(j), "any", r), r) for j, r in enumerate(remaining.tolist()))
    types = tuple(WorkerType(str(k), int(rng.integers(1, 4))) for k in range(2))
    pairs = Pairs(kind, rng.uniform(0.3, 0.9, (2, 2, 2))) if shared else None
    there = Snapshot(types, (Placement(0), Placement(1)), jobs, kinds[kind], pairs)
    found = makespan.allocate(there)
    assert found.objective == pytest.approx(one_by_one(there), rel=1e-6)
    assert (remaining / found.throughput(there)).max() <= found.objective * (1 + 1e-9)
    assert (found.dense(there).sum(axis=1) <= 1 + 1e-9).all()
    assert (found.used(there) <= there.workers + 1e-9).all()


def one_by_one(there: Snapshot) -> float:
    """The makespan by one program with a row for each job."""
    shares = AllocationVariables(there, (there.remaining_steps, np.arange(len(there.jobs))))
    groups, variables, steps = shares.throughput
    due = there.remaining_steps[shares.member] / there.remaining_steps.max()
    count = shares.groups
    rows = Constraints(
        np.concatenate([groups, np.arange(count)]),
        np.concatenate([variables, np.full(count, shares.variables)]),
        np.concatenate([steps / due[groups], np.full(count, -1.0)]),
        np.zeros(count),
        np.full(count, np.inf),
    )
    cost = np.append(np.zeros(shares.variables), -1.0)
    found = solve(shares.program(cost, rows, extra=((0.0, 1e6),)), "one by one")
    return float(there.remaining_steps.max() / found.x[-1])

"""AlloX: against the public policy, all orders of a few jobs, and by hand."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import allox
from hocket.scheduler.solver.queueing.assignment import Queues
from tests.scheduler.helpers.crowds import assert_it_can_be
from tests.scheduler.helpers.gavel import references, snapshot
from tests.tiers import examples

TYPES = WorkerType("v100", 1), WorkerType("k80", 1)


def _jobs(steps: list[tuple[float, float]], elapsed_s: float = 0.0) -> Snapshot:
    """Jobs of 100 steps, on a V100 and a K80."""
    jobs = tuple(Active(Job(f"job{k}", "any", 1e3), 100.0, elapsed_s * k) for k in range(len(steps)))
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, np.array(steps))


@pytest.mark.parametrize("reference", references("allox"), ids=lambda r: r["input"])
def test_as_many_workers_are_used_as_by_the_public_policy(reference: dict[str, Any]) -> None:
    """Equally many workers of each type are used as by the public policy.

    The order of two equal positions is open.
    """
    given = snapshot(reference["input"])
    found = allox.allocate(given)
    assert found.used(given) == pytest.approx([reference["eval"]["used"][own.name] for own in given.types])
    assert found.gap <= 1e-9
    assert_it_can_be(given, found)


def test_three_jobs_by_hand() -> None:
    """Three jobs of 10, 20 and 100 s on the V100, four times that on the K80.

    All on the V100, the shortest first, end at 10, 30 and 130 s: 170 in all. The second on the K80 would end at 80
    s: 10 + 110 + 80 is more; the first there at 40: 20 + 120 + 40 = 180; the third at 400.
    """
    given = _jobs([(10.0, 2.5), (5.0, 1.25), (1.0, 0.25)])
    found = allox.allocate(given)
    assert found.objective == pytest.approx(170 / 3)
    assert found.dense(given) == pytest.approx(np.array([[1.0, 0], [0, 0], [0, 0]]))
    assert found.reasons[1].binding == "it follows shorter jobs on its worker"


def test_a_job_leaves_workers_on_which_it_does_nothing() -> None:
    """A job measured to make no progress waits again, and gets the other worker."""
    given = _jobs([(0.0, 2.5)])
    assert allox.allocate(given, placed={"job0": 0}).dense(given).tolist() == [[0.0, 1.0]]


def test_jobs_that_run_stay_and_the_oldest_are_looked_at() -> None:
    """Running jobs stay, and only the oldest waiting jobs are considered.

    The V100 is taken. Of two waiting jobs, the older gets the K80.
    """
    given = _jobs([(10.0, 2.5), (5.0, 1.25), (1.0, 0.25)], elapsed_s=10.0)
    found = allox.allocate(given, alpha=0.5, placed={"job0": 0})
    assert found.dense(given) == pytest.approx(np.array([[1.0, 0], [0, 0], [0, 1.0]]))
    assert found.objective == pytest.approx(20 + 400)
    assert found.reasons[1].binding == "older jobs are considered first"
    two = allox.allocate(given, alpha=0.5, placed={"job0": 0, "job1": 0})
    assert two.dense(given)[:2].tolist() == [[1.0, 0.0], [0.0, 0.0]]  # there is one V100: the second waits again


def test_jobs_of_several_workers_are_refused_and_told() -> None:
    """Multi-worker jobs are refused with a reason; the other job runs."""
    jobs = Active(Job("wide", "any", 1e3, 2), 1e3), Active(Job("one", "any", 1e3), 1e3)
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), jobs, np.ones((2, 1)))
    found = allox.allocate(given)
    assert found.dense(given)[:, 0] == pytest.approx([0.0, 1.0])
    assert "AlloX supports single-worker jobs only" in found.refused[0]


def test_a_job_runs_only_where_it_can() -> None:
    """Two jobs that can only use the K80 follow each other; the V100 stays free."""
    given = _jobs([(0.0, 1.0), (0.0, 2.0)])
    found = allox.allocate(given)
    assert found.objective == pytest.approx((50 + 150) / 2)
    assert found.dense(given) == pytest.approx(np.array([[0, 0], [0, 1.0]]))


def _mean_s(needs_s: np.ndarray, workers: list[int]) -> float:
    """Least mean completion time over all queues of each job on a worker."""
    best = np.inf
    for where in product(range(len(workers)), repeat=len(needs_s)):
        total = 0.0
        for worker, kind in enumerate(workers):
            queue = sorted(needs_s[j, kind] for j in range(len(needs_s)) if where[j] == worker)
            total += float(np.cumsum(queue).sum())
        best = min(best, total)
    return best / len(needs_s)


@examples(40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 2), st.integers(1, 2))
def test_no_queues_are_shorter(seed: int, jobs: int, first: int, second: int) -> None:
    """No assignment of a few jobs to workers has a smaller mean completion time."""
    rng = np.random.default_rng(seed)
    steps = rng.uniform(1, 10, (jobs, 2))
    types = WorkerType("a", first), WorkerType("b", second)
    active = tuple(Active(Job(str(k), "any", 1e3), float(rng.uniform(10, 100))) for k in range(jobs))
    given = Snapshot(types, (Placement(0), Placement(1)), active, steps)
    found = allox.allocate(given)
    assert_it_can_be(given, found)
    needs_s = given.remaining_steps[:, None] / steps
    assert found.objective == pytest.approx(_mean_s(needs_s, [0] * first + [1] * second))
    assert len(found.fraction) >= 1


@examples(40)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_no_places_are_cheaper(seed: int, jobs: int) -> None:
    """No permutation of jobs over positions is cheaper, and the bound is met.

    Some jobs cannot run on every type.
    """
    rng = np.random.default_rng(seed)
    needs_s = rng.uniform(1, 10, (jobs, 2))
    needs_s[rng.random(jobs) < 0.3, 0] = np.inf
    workers = [2, 1]
    found = Queues(needs_s, workers)
    places = [(kind, rank) for kind in range(2) for rank in range(1, jobs + 1) for _ in range(workers[kind])]
    best = min(
        sum(rank * needs_s[job, kind] for job, (kind, rank) in enumerate(taken)) for taken in permutations(places, jobs)
    )
    assert found.sum_s == pytest.approx(best)
    assert found.bound_s == pytest.approx(best)
    there = np.bincount(found.place, minlength=len(found.kind))
    assert (there <= np.array(workers)[found.kind]).all()

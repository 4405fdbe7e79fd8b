"""Shortest job first: by hand, and on random jobs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType
from hocket.scheduler.policies import shortest_job_first
from tests.scheduler.helpers.crowds import assert_it_can_be, crowd
from tests.tiers import examples

TYPES = WorkerType("v100", 2), WorkerType("k80", 1)


def _three(scale: int = 1) -> Snapshot:
    """Jobs of 100, 20 and 50 seconds on a V100, four times that on a K80."""
    jobs = tuple(
        Active(Job(name, "any", 1e3, s), steps)
        for name, steps, s in (("c", 400.0, 1), ("a", 80.0, 1), ("b", 200.0, scale))
    )
    return Snapshot(TYPES, (Placement(0), Placement(1)), jobs, np.tile([4.0, 1.0], (3, 1)))


def test_three_jobs_by_hand() -> None:
    """The two shortest jobs have the V100s, the longest the K80."""
    found = shortest_job_first.allocate(_three())
    assert found.dense(_three()) == pytest.approx(np.array([[0, 1.0], [1.0, 0], [1.0, 0]]))
    assert found.objective == pytest.approx(20.0)
    assert found.reasons[1].binding == "it is always on v100, its fastest"


def test_a_longer_one_goes_on_where_one_fits_nowhere() -> None:
    """A longer job passes a job of two workers if only one worker is left."""
    found = shortest_job_first.allocate(_three(2))
    assert found.dense(_three(2)) == pytest.approx(np.array([[1.0, 0], [1.0, 0], [0, 0]]))
    assert "job b, for which too few are left" in found.reasons[2].binding


def test_nobody_joins_the_first() -> None:
    """No job joins the first: on two workers the third joins the second.

    All keep nearly all of their throughput beside each other.
    """
    jobs = tuple(Active(Job(str(k), "any", 1e3), 10.0 * (k + 1)) for k in range(3))
    pairs = Pairs(np.zeros(3, dtype=int), np.full((1, 1, 1), 0.9))
    given = Snapshot((WorkerType("v100", 2),), (Placement(0),), jobs, np.ones((3, 1)), pairs)
    found = shortest_job_first.allocate(given)
    assert found.throughput(given) == pytest.approx([1.0, 0.9, 0.9])


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.integers(1, 14))
def test_the_first_is_finished_as_soon_as_any_can_be(seed: int, pairs: bool, spread: bool, jobs: int) -> None:
    """The first completion is as early as possible.

    No job alone on any workers completes earlier.
    """
    given = crowd(seed, jobs, pairs, spread)
    found = shortest_job_first.allocate(given)
    assert_it_can_be(given, found)
    fits = given.scale[:, None] <= given.workers[given.type_of]
    fastest = (given.throughputs * fits).max(axis=1)
    with np.errstate(divide="ignore"):
        alone_s = given.remaining_steps / fastest
        ends_s = given.remaining_steps / found.throughput(given)
    if np.isfinite(alone_s).any():
        assert found.objective == pytest.approx(alone_s.min())
        assert ends_s.min() == pytest.approx(found.objective)
    assert shortest_job_first.allocate(replace(given, pairs=None)).objective == found.objective

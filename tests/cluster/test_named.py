"""Policies by name, and what those that see no types do with their time."""

import numpy as np
import pytest

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.job import Job
from hocket.cluster.named import evenly, policy_named
from hocket.cluster.snapshot import Active, Snapshot
from hocket.cluster.workers import Column, WorkerType
from hocket.errors import InputError


def snapshot(steps: list[list[float]], scales: list[int] | None = None) -> Snapshot:
    """Two workers of one type, six of the other, a spread column of the second."""
    scales = scales or [1] * len(steps)
    jobs = tuple(Active(Job(str(k), "m", 9.0, s), 9.0) for k, s in enumerate(scales))
    types = WorkerType("fast", 2), WorkerType("slow", 6, 2)
    return Snapshot(types, (Column(0), Column(1), Column(1, False)), jobs, np.array(steps))


def test_who_sees_no_types_spends_its_time_on_all_of_them() -> None:
    """Four jobs on eight workers run all the time, a quarter of it on the fast ones; types where one does not run aside."""
    there = snapshot([[9.0, 1.0, 1.0]] * 3 + [[0.0, 1.0, 1.0]])
    all_on_one = Allocation(np.arange(4), np.full(4, ALONE), np.array([0, 0, 1, 1]), np.ones(4), 1.0)
    assert evenly(all_on_one, there).dense(there).tolist() == [[0.25, 0.75, 0.0]] * 3 + [[0.0, 1.0, 0.0]]


def test_time_is_spread_as_far_as_there_are_workers() -> None:
    """A job that runs on the slow ones alone, beside two of four workers: nobody has more than there is."""
    there = snapshot([[1.0, 0.0, 0.0]] * 3 + [[4.0, 4.0, 4.0]], [1, 1, 1, 4])
    found = evenly(policy_named("max_min_fairness", blind=True)(there), there)
    assert (found.used(there) <= there.workers + 1e-9).all()
    assert (found.dense(there)[:3, 1:] == 0).all()
    assert found.dense(there)[3, 0] == 0


def test_each_policy_has_a_memory_of_its_own() -> None:
    """Two of one name answer alike whatever the other was asked before."""
    one, other = policy_named("max_min_fairness"), policy_named("max_min_fairness")
    there = snapshot([[9.0, 1.0, 1.0]] * 12)
    one(snapshot([[1.0, 5.0, 5.0]] * 20))
    assert one(there).objective == pytest.approx(other(there).objective)


def test_a_policy_that_is_none_is_refused() -> None:
    """With the nearest name."""
    with pytest.raises(InputError, match=r"policy: found 'fifos'.*Did you mean 'fifo'"):
        policy_named("fifos")

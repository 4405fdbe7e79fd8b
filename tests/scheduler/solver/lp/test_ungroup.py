"""Ungrouping: times of groups become times of jobs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.solver.lp.ungroup import spread


def each(jobs: int, entries: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Time of each job."""
    first, second, _, fraction = entries
    both = second != ALONE
    return np.bincount(first, fraction, jobs) + np.bincount(second[both], fraction[both], jobs)


def test_alone_every_job_of_a_group_gets_the_same() -> None:
    """Each job of a group has an equal share; ungrouped jobs have none.

    Groups have two, one and no jobs in use.
    """
    group = np.array([1, 0, -1, 1])
    first, column, time = np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([0.5, 1.0, 0.0])
    entries = spread(group, first, np.full(3, ALONE), column, time)
    assert each(4, entries).tolist() == [0.5, 0.5, 0.0, 0.5]
    assert set(entries[2].tolist()) == {0}


@given(st.integers(1, 9), st.integers(1, 9))
def test_two_groups_side_by_side(n: int, m: int) -> None:
    """Each job has its equal share beside jobs of the other group.

    It has few partners.
    """
    group = np.array([0] * n + [1] * m)
    entries = spread(group, np.array([0]), np.array([1]), np.array([2]), np.array([1.0]))
    time = each(n + m, entries)
    np.testing.assert_allclose(time[:n], 1 / n)
    np.testing.assert_allclose(time[n:], 1 / m)
    assert (group[entries[0]] == 0).all()
    assert (group[entries[1]] == 1).all()
    assert len(entries[0]) <= n + m - 1


@given(st.integers(2, 9))
def test_a_group_with_itself(n: int) -> None:
    """Each job has its equal share, never beside itself, and no pair occurs twice."""
    entries = spread(np.zeros(n, dtype=int), np.array([0]), np.array([0]), np.array([0]), np.array([1.0]))
    np.testing.assert_allclose(each(n, entries), 2 / n)
    assert (entries[0] < entries[1]).all()
    pairs = list(zip(entries[0].tolist(), entries[1].tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_nobody_gets_nothing() -> None:
    """Without jobs there are no entries."""
    none = np.zeros(0, dtype=int)
    assert all(len(part) == 0 for part in spread(none, none, none, none, np.zeros(0)))

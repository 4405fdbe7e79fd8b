"""Split the times of groups of identical jobs among the jobs.

Time that a group runs alone is divided equally. If two groups share workers, their jobs are matched in order, so that
each job gets an equal share with few partners. If jobs of one group share workers with each other, each job is paired
with its two neighbors in a circle.
"""

import numpy as np

from hocket.scheduler.model.allocation import ALONE

# First job, second job or ALONE, column, and fraction of time of each entry of an allocation.
Entries = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_NONE = 1e-12


def spread(group: np.ndarray, first: np.ndarray, second: np.ndarray, column: np.ndarray, time: np.ndarray) -> Entries:
    """Split the time of each variable equally among the jobs of its groups.

    Arguments:
        group: group of each job, -1 for none.
        first, second: group and second group of each variable; ALONE for no second group.
        column: column of each variable: a worker type with consolidated or with spread workers.
        time: value of each variable, summed over the jobs.

    Returns:
        Entries of the allocation.
    """
    order = group.argsort(kind="stable")
    ends = np.bincount(group + 1).cumsum()
    used = time > _NONE
    own = (used & (second == ALONE)).nonzero()[0]
    of = first[own]
    at = ends[of]
    sizes = ends[of + 1] - at
    after = sizes.cumsum()
    offset = (at - after + sizes).repeat(sizes)
    offset += np.arange(len(offset))
    jobs = order[offset]
    parts = [(jobs, np.full(len(jobs), ALONE), column[own].repeat(sizes), (time[own] / sizes).repeat(sizes))]
    if len(own) == np.count_nonzero(used):
        return parts[0]
    for v in np.flatnonzero(used & (second != ALONE)).tolist():
        a, b = order[ends[first[v]] : ends[first[v] + 1]], order[ends[second[v]] : ends[second[v] + 1]]
        i, j, part = _circle(a) if first[v] == second[v] else _matched(a, b)
        parts.append((np.minimum(i, j), np.maximum(i, j), np.full(len(i), column[v]), part * time[v]))
    return tuple(np.concatenate([part[k] for part in parts]) for k in range(4))  # type: ignore[return-value]


def _circle(jobs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of jobs of one group: two arrays of jobs, and each pair's share of time."""
    n = len(jobs)
    if n == 2:
        return jobs[:1], jobs[1:], np.ones(1)
    return jobs, np.roll(jobs, -1), np.full(n, 1 / n)


def _matched(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of jobs of two groups: two arrays of jobs, and each pair's share of time.

    The time, as an interval of length 1, is cut at multiples of 1/n and of 1/m, for groups of n and m jobs.
    """
    n, m = len(a), len(b)
    cuts = np.unique(np.concatenate([np.arange(1, n + 1) * m, np.arange(1, m + 1) * n]))
    begins = np.concatenate([[0], cuts[:-1]])
    return a[begins // m], b[begins // n], (cuts - begins) / (n * m)

"""Interior allocation: among equally good allocations, the analytic center.

An objective such as the largest finish-time fairness does not determine the shares of time of the jobs that are not
at the maximum. By default the spare time goes where it adds most throughput (max-min fairness leaves it to the
scheduling rounds). An interior-point solver, such as the one of the public policies, ends at the analytic center,
where the product of all slacks is largest:

    maximize   sum of log x  +  log(1 - time of a job)  +  log(workers of a type - used)
               +  log(throughput of a job - its demand)

The center is unique, so identical jobs with equal demands get equal shares. One variable per column therefore stands
for a group of identical jobs, or for two groups that share workers. Its logarithm is weighted by the number of jobs or
pairs. The logarithms of a group's time and demand slacks are weighted by the number of jobs.
Source: Boyd and Vandenberghe 2004, section 8.5.3; for groups, Narayanan's dissertation, equations 5.1 to 5.3.
"""

from dataclasses import replace

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.analytic_center import IndependentLimits, LimitMatrix, centre
from hocket.scheduler.solver.lp.ungroup import Entries, spread
from hocket.scheduler.solver.lp.variables import AllocationVariables

__all__ = ["middle"]

_ROOM = 1e-3  # relaxation of demands, needed for a nonempty interior
_NOTHING = 1e-7  # smaller fractions of time are dropped


def middle(allocation: Allocation, snapshot: Snapshot, asked: np.ndarray) -> Allocation:
    """Move an allocation to the analytic center of the set that meets the demands.

    Arguments:
        allocation: allocation that meets the demands.
        asked: demand of each job: steps per second needed for the objective. A thousandth less is accepted.
    """
    shares, found = _grouped(allocation, snapshot, asked)
    if not shares.groups:
        return allocation
    often = _often(shares)
    times = _times(shares, often, found, asked[shares.member] * shares.count)
    first, second, column, fraction = _entries(shares, often, times)
    return replace(allocation, first=first, second=second, column=column, fraction=fraction, grouped=None)


def _grouped(allocation: Allocation, snapshot: Snapshot, asked: np.ndarray) -> tuple[AllocationVariables, np.ndarray]:
    """Groups of identical jobs with equal demands, and the values of their variables."""
    if allocation.grouped is not None:
        shares, times = allocation.grouped
        if shares.snapshot is snapshot and not shares.refused and (asked == asked[shares.member][shares.group]).all():
            return shares, times
    shares = AllocationVariables(snapshot, (asked,))
    return shares, _totals(allocation, shares) if shares.groups else np.zeros(0)


def _often(shares: AllocationVariables) -> np.ndarray:
    """Number of jobs, or of job pairs, that each variable stands for."""
    count, both = shares.count, shares.second != ALONE
    pairs = np.where(both, count[shares.second], 1.0)
    same = both & (shares.first == shares.second)
    return count[shares.first] * np.where(same, (count[shares.first] - 1) / 2, pairs)


def _totals(found: Allocation, shares: AllocationVariables) -> np.ndarray:
    """Value of each variable: time in the allocation, summed over its jobs or pairs."""
    columns = len(shares.snapshot.columns)

    def key(first: np.ndarray, second: np.ndarray, column: np.ndarray) -> np.ndarray:
        return (first * (shares.groups + 1) + second + 1) * columns + column

    first = shares.group[found.first]
    second = np.where(found.pairs, shares.group[found.second], ALONE)
    low = np.where(found.pairs, np.minimum(first, second), first)
    high = np.where(found.pairs, np.maximum(first, second), ALONE)
    own, theirs = key(shares.first, shares.second, shares.column), key(low, high, found.column)
    order = np.argsort(own)
    at = order[np.minimum(np.searchsorted(own, theirs, sorter=order), shares.variables - 1)]
    known = own[at] == theirs
    return np.bincount(at[known], found.fraction[known], shares.variables)


def _times(shares: AllocationVariables, often: np.ndarray, found: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Values of the variables at the analytic center.

    Arguments:
        often: number of jobs or pairs of each variable.
        found: values of the variables to start from; they meet the demands, but may be on the boundary.
        asked: required steps per second, by group, summed over its jobs.
    """
    limits, (group, variable, steps) = shares.limits, shares.throughput
    rows, count = len(limits.upper), shares.count
    most = np.maximum(limits.upper, 1.0)  # no variable uses a type without workers
    whole = steps * count[group]
    fastest = np.zeros(shares.groups)
    np.maximum.at(fastest, group, whole)
    does = whole / fastest[group]
    if len(group) == shares.variables:  # no pairs
        kind = shares.snapshot.type_of[shares.column]
        used: LimitMatrix = IndependentLimits(group, kind, shares.scale[group], does, rows - shares.groups)
    else:
        used = LimitMatrix.of_entries(
            np.concatenate([limits.rows, rows + group]),
            np.concatenate([limits.columns, variable]),
            np.concatenate([limits.values, -does]),
            rows + shares.groups,
        )
    floor = np.minimum(asked / fastest * (1 - _ROOM), -used.of(found)[rows:] * (1 - _ROOM / 4))
    weights = np.concatenate([often, count, np.ones(rows - shares.groups), count])
    even = often * float((most / np.maximum(used.of(often)[:rows], 1e-300)).min()) / 2
    start = (1 - _ROOM / 2) * found + _ROOM / 4 * even
    return centre(start, np.concatenate([most, -floor]), weights, used)


def _entries(shares: AllocationVariables, often: np.ndarray, times: np.ndarray) -> Entries:
    """Split the time of each variable equally among its jobs or pairs.

    Arguments:
        often: number of jobs or pairs of each variable.
        times: values of the variables, summed over their jobs or pairs.

    Returns:
        Entries of the allocation; tiny fractions of time are dropped.
    """
    kept = np.flatnonzero(times > _NOTHING * often)
    first, second, column = shares.first[kept], shares.second[kept], shares.column[kept]
    if (second == ALONE).all():
        return spread(shares.group, first, second, column, times[kept])
    order = np.argsort(shares.group, kind="stable")[np.count_nonzero(shares.group < 0) :]
    size = shares.count.astype(np.int64)
    begins = np.cumsum(size) - size
    pairs = second != ALONE
    across = np.where(pairs, size[second], 1)
    each = size[first] * across  # one group with itself has each pair twice, and each job with itself: filtered below
    own = np.repeat(np.arange(len(kept)), each)
    row, other = np.divmod(np.arange(len(own)) - np.repeat(np.cumsum(each) - each, each), across[own])
    wanted = (first != second)[own] | (row < other)
    own, row, other = own[wanted], row[wanted], other[wanted]
    one, two = order[begins[first[own]] + row], order[begins[second[own]] + other]
    both = pairs[own]
    one, two = np.where(both, np.minimum(one, two), one), np.where(both, np.maximum(one, two), ALONE)
    return one, two, column[own], (times / often)[kept][own]

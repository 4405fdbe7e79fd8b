"""The middle where jobs share workers: as middle.py, with a variable for each pair.

Jobs that are alike, in what is asked for them too, have alike in the middle, as there is one only: so a group of jobs, or two of
them side by side, is one variable, its logarithm counted as often as there are jobs or pairs; limits of jobs as often as jobs.
Of so few limits the Hessian is a diagonal and as many outer products, and a step one small system.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 9.5; groups: equations 5.1 to 5.3.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.middle import ROOM, descend
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._spread import Entries
from hocket.cluster.snapshot import Snapshot

__all__ = ["middle_shared"]

_NOTHING = 1e-7  # of the time


def middle_shared(allocation: Allocation, snapshot: Snapshot, asked: np.ndarray) -> Allocation:
    """The allocation in the middle.

    Arguments:
        allocation: one that gives jobs what is asked.
        asked: steps a second that the objective asks for, by job; less, by a thousandth, will do.
    """
    shares = Shares(snapshot, (asked,))
    if not shares.groups:
        return allocation
    often = _often(shares)
    times = _middle(shares, often, _totals(allocation, shares), asked[shares.member] * shares.count)
    first, second, column, fraction = _entries(shares, times / often)
    return replace(allocation, first=first, second=second, column=column, fraction=fraction)


def _often(shares: Shares) -> np.ndarray:
    """How many jobs, or pairs, a variable stands for."""
    count, both = shares.count, shares.second != ALONE
    pairs = np.where(both, count[shares.second], 1.0)
    same = both & (shares.first == shares.second)
    return count[shares.first] * np.where(same, (count[shares.first] - 1) / 2, pairs)


def _totals(found: Allocation, shares: Shares) -> np.ndarray:
    """Times of variables in an allocation."""
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


class _Limits:
    """The limits' matrix, (limits, variables); as a variable stands in a few limits only, by place in those of the variable.

    Sums over so few entries are quicker than products of matrices, and the same however many threads those would be given.
    """

    def __init__(self, rows: np.ndarray, variables: np.ndarray, values: np.ndarray, count: int) -> None:
        order = np.argsort(variables, kind="stable")
        often = np.bincount(variables)
        place = np.arange(len(order)) - np.repeat(np.cumsum(often) - often, often)
        shape = int(often.max()), len(often)
        self.count, self._rows, self._values = count, np.zeros(shape, dtype=np.int64), np.zeros(shape)
        self._rows[place, variables[order]], self._values[place, variables[order]] = rows[order], values[order]
        self._flat = self._rows.ravel()
        one, two, half = _halves(shape[0])
        self._both = (self._rows[one] * count + self._rows[two]).ravel()
        self._products = self._values[one] * self._values[two] * half

    def of(self, x: np.ndarray) -> np.ndarray:
        """What variables use of each limit."""
        return np.bincount(self._flat, (self._values * x).ravel(), self.count)

    def back(self, prices: np.ndarray) -> np.ndarray:
        """What prices of limits are for each variable."""
        found: np.ndarray = np.add.reduce(self._values * prices[self._rows], axis=0)
        return found

    def squared(self, diagonal: np.ndarray) -> np.ndarray:
        """The matrix, a diagonal one of variables, and the matrix transposed."""
        half = np.bincount(self._both, (self._products * diagonal).ravel(), self.count**2)
        half = half.reshape(self.count, self.count)
        return half + half.T


@lru_cache(maxsize=16)
def _halves(places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every two places once, and of what a matrix has there one half: all of it, but on the diagonal."""
    one, two = np.triu_indices(places)
    return one, two, np.where(one == two, 0.5, 1.0)[:, None]


def _middle(shares: Shares, often: np.ndarray, found: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Newton's method, from an allocation at the edge; times of variables.

    Arguments:
        asked: steps a second, by group, of all its jobs.
    """
    limits, (group, variable, steps) = shares.limits, shares.throughput
    rows, count = len(limits.upper), shares.count
    whole = steps * count[group]
    fastest = np.zeros(shares.groups)
    np.maximum.at(fastest, group, whole)
    used = _Limits(
        np.concatenate([limits.rows, rows + group]),
        np.concatenate([limits.columns, variable]),
        np.concatenate([limits.values, -whole / fastest[group]]),
        rows + shares.groups,
    )
    floor = np.minimum(asked / fastest * (1 - ROOM), -used.of(found)[rows:] * (1 - ROOM / 4))
    most = np.concatenate([limits.upper, -floor])
    weights = np.concatenate([count, np.ones(rows - shares.groups), count])
    even = often * float((limits.upper / np.maximum(used.of(often)[:rows], 1e-300)).min()) / 2
    x = (1 - ROOM / 2) * found + ROOM / 4 * even

    def value(x: np.ndarray, left: np.ndarray) -> float:
        if min(np.minimum.reduce(left), np.minimum.reduce(x)) <= 0:
            return float("inf")
        return -float(often @ np.log(x) + weights @ np.log(left))

    def newton(x: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, float]:
        slope = used.back(weights / left) - often / x
        diagonal = x * x / often  # inverted
        small = used.squared(diagonal)
        small.reshape(-1)[:: used.count + 1] += left * left / weights
        step = diagonal * (used.back(np.linalg.solve(small, used.of(diagonal * slope))) - slope)
        return step, -float(slope @ step)

    return descend(x, lambda x: most - used.of(x), value, newton)


def _entries(shares: Shares, times: np.ndarray) -> Entries:
    """For every job, and every pair of jobs, what its variable has for each."""
    runs = shares.group >= 0
    order = np.argsort(shares.group, kind="stable")[np.count_nonzero(~runs) :]
    begins = np.concatenate([[0], np.cumsum(shares.count.astype(np.int64))])
    kept = np.flatnonzero(times > _NOTHING)
    if (shares.second[kept] == ALONE).all():
        groups = shares.first[kept]
        lengths = begins[groups + 1] - begins[groups]
        ends = np.cumsum(lengths)
        first = order[np.arange(lengths.sum()) + np.repeat(begins[groups] - ends + lengths, lengths)]
        second = np.full(len(first), ALONE)
    else:
        members = np.split(order, begins[1:-1])
        both = list(zip(shares.first[kept].tolist(), shares.second[kept].tolist(), strict=True))
        own = {two: _jobs(members, *two) for two in dict.fromkeys(both)}
        lengths = np.array([len(own[two][0]) for two in both])
        first, second = (np.concatenate([own[two][part] for two in both]) for part in (0, 1))
    return first, second, np.repeat(shares.column[kept], lengths), np.repeat(times[kept], lengths)


def _jobs(members: list[np.ndarray], a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    """The jobs of a group, or all pairs of two groups."""
    if b == ALONE:
        return members[a], np.full(len(members[a]), ALONE)
    if a == b:
        row, other = np.triu_indices(len(members[a]), 1)
        return members[a][row], members[a][other]
    one, two = np.repeat(members[a], len(members[b])), np.tile(members[b], len(members[a]))
    return np.minimum(one, two), np.maximum(one, two)

"""The middle where jobs share workers: as middle.py, with a variable for each pair.

Jobs that are alike, in what is asked for them too, have alike in the middle, as there is one only: so a group of jobs, or two of
them side by side, is one variable, its logarithm counted as often as there are jobs or pairs; limits of jobs as often as jobs.
Of so few limits the Hessian is a diagonal and as many outer products, and a step one small system.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 9.5; groups: equations 5.1 to 5.3.
"""

from dataclasses import replace

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.middle import ROOM
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._spread import Entries
from hocket.cluster.snapshot import Snapshot

__all__ = ["middle_shared"]

_STEPS = 100
_DONE = 1e-3  # of the Newton decrement, squared
_SHRINK, _ENOUGH, _LEAST = 0.5, 0.1, 1e-12
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
    keys = zip(shares.first.tolist(), shares.second.tolist(), shares.column.tolist(), strict=True)
    at = {key: v for v, key in enumerate(keys)}
    first = shares.group[found.first]
    second = np.where(found.pairs, shares.group[found.second], ALONE)
    low = np.where(found.pairs, np.minimum(first, second), first)
    high = np.where(found.pairs, np.maximum(first, second), ALONE)
    times = np.zeros(shares.variables)
    for a, b, c, x in zip(low.tolist(), high.tolist(), found.column.tolist(), found.fraction.tolist(), strict=True):
        if (a, b, c) in at:
            times[at[a, b, c]] += x
    return times


def _middle(shares: Shares, often: np.ndarray, found: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Newton's method, from an allocation at the edge; times of variables.

    Arguments:
        asked: steps a second, by group, of all its jobs.
    """
    limits, (group, variable, steps) = shares.limits, shares.throughput
    rows, count = len(limits.upper), shares.count
    used = np.zeros((rows + shares.groups, shares.variables))
    np.add.at(used, (limits.rows, limits.columns), limits.values)
    whole = steps * count[group]
    fastest = np.zeros(shares.groups)
    np.maximum.at(fastest, group, whole)
    np.add.at(used, (rows + group, variable), -whole / fastest[group])
    floor = np.minimum(asked / fastest * (1 - ROOM), -(used[rows:] @ found) * (1 - ROOM / 4))
    most = np.concatenate([limits.upper, -floor])
    weights = np.concatenate([count, np.ones(rows - shares.groups), count])
    even = often * float((limits.upper / np.maximum(used[:rows] @ often, 1e-300)).min()) / 2
    x = (1 - ROOM / 2) * found + ROOM / 4 * even

    def value(x: np.ndarray) -> float:
        left = most - used @ x
        if left.min() <= 0 or x.min() <= 0:
            return float("inf")
        return -float(often @ np.log(x) + weights @ np.log(left))

    for _ in range(_STEPS):
        left = most - used @ x
        slope = used.T @ (weights / left) - often / x
        diagonal = x * x / often  # inverted
        across = used * diagonal
        small = np.diag(left * left / weights) + across @ used.T
        step = across.T @ np.linalg.solve(small, across @ slope) - diagonal * slope
        decrement, size, now = -float(slope @ step), 1.0, value(x)
        while size > _LEAST and value(x + size * step) > now - _ENOUGH * size * decrement:
            size *= _SHRINK
        if size <= _LEAST:
            break
        x = x + size * step
        if decrement <= _DONE:
            break
    return x


def _entries(shares: Shares, times: np.ndarray) -> Entries:
    """For every job, and every pair of jobs, what its variable has for each."""
    members = [np.flatnonzero(shares.group == g) for g in range(shares.groups)]
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    kept = np.flatnonzero(times > _NOTHING)
    for a, b in zip(shares.first[kept].tolist(), shares.second[kept].tolist(), strict=True):
        if b == ALONE:
            parts.append((members[a], np.full(len(members[a]), ALONE)))
        elif a == b:
            row, other = np.triu_indices(len(members[a]), 1)
            parts.append((members[a][row], members[a][other]))
        else:
            one, two = np.repeat(members[a], len(members[b])), np.tile(members[b], len(members[a]))
            parts.append((np.minimum(one, two), np.maximum(one, two)))
    lengths = [len(first) for first, _ in parts]
    first = np.concatenate([first for first, _ in parts])
    second = np.concatenate([second for _, second in parts])
    return first, second, np.repeat(shares.column[kept], lengths), np.repeat(times[kept], lengths)

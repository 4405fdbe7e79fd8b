"""Round priorities: order entries so that received time follows the allocation.

An entry of an allocation gives a job, or a pair of jobs, a fraction X of the time on a column. In a round, an entry
either runs or does not. Its priority is X / f (Narayanan's dissertation, section 5.5), where f is the received time
over the elapsed time. The highest priority that fits goes first and excludes entries that share a job with it
(Algorithm 2 there). Within a type, the published denominator, the time received by all, is equal for all
entries, so the order is the published one.

Bound on the error of the greedy selection. Let d be the owed time: X times the elapsed time, minus the received time.
Each round adds X - S to d, in rounds, with S = 1 for running entries. The number of selections S is finite. Therefore
d stays bounded, independent of the number of rounds, if every selection made while some entry is owed more than a few
rounds is worth as much as the allocation: sum of d S >= sum of d X (Block and Levin 1970, the perceptron cycling
theorem). With single-worker jobs, the order by X / f usually satisfies this; with scale factors or pairs it often
does not. `balanced` checks it. If it fails, the order by d is better, and knapsack.py finds a selection if one
exists.

An allocation that is not an average of possible rounds cannot be kept by any selection. Example: two jobs of two
workers each on three workers, with a fraction of three quarters each. In the order of owed time, an entry with a
small fraction would wait until the faster-growing debts of others stop growing. `by_delay` therefore orders by owed
time relative to the fraction, and all entries converge to an equal part of their fractions.

Time without a claim (the claiming entries are served or do not fit) is not deducted from the receiver's owed time.
Source: Narayanan's dissertation, section 5.5; Gelfand et al. 2010 on the theorem.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.scheduler.model.allocation import ALONE

__all__ = ["Entries", "balanced", "by_debt", "by_delay", "by_ratio", "choose", "choose_by_type", "enough", "worth"]

_NONE = 1e-9
# Bits of a key: two million concurrent jobs, and more columns than a workers file can define.
_SLOT_BITS, _COLUMN_BITS = 21, 16
_AT_ONCE = 512  # entries visited one by one before infeasible entries are filtered out


@dataclass(frozen=True, eq=False)
class Entries:
    """Candidates for one scheduling round: jobs, or pairs of jobs, each on one kind of workers.

    The entries of the allocation come first. Then come entries with fraction 0, which may fill free workers. All arrays
    have the shape (entries,).

    Attributes:
        first: index of the entry's job, below `jobs`.
        second: index of the job that shares the workers with the first one; ALONE (-1) if there is none.
        column: index of the entry's column. A column is a worker type with consolidated or with spread workers.
        type: index of the worker type of the column.
        need: number of workers that the entry occupies.
        fraction: fraction of the time that the allocation gives the entry, X.
        jobs: number of jobs.
    """

    first: np.ndarray
    second: np.ndarray
    column: np.ndarray
    type: np.ndarray
    need: np.ndarray
    fraction: np.ndarray
    jobs: int

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def key(self) -> np.ndarray:
        """Jobs and column of each entry as one integer, stable between rounds."""
        return ((self.first << _SLOT_BITS) + self.second + 1 << _COLUMN_BITS) + self.column

    @cached_property
    def due(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the entries with a fraction > 0, largest first; negated fractions."""
        has = np.flatnonzero(self.fraction > 0)
        has = has[np.argsort(-self.fraction[has], kind="stable")]
        return has, -self.fraction[has]

    @cached_property
    def queued(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        """All entries sorted by type, then by descending fraction.

        Returns:
            Entry indices, first jobs, negated fractions, and the start of each type.
        """
        order = np.lexsort((-self.fraction, self.type))
        kinds = self.type[order]
        begins = kinds.searchsorted(np.arange(kinds[-1] + 2 if len(kinds) else 1))
        return order, self.first[order], -self.fraction[order], begins.tolist()

    @cached_property
    def single(self) -> bool:
        """True if all entries are single-worker jobs alone, at most once per type."""
        if not len(self) or self.paired or np.maximum.reduce(self.need) > 1:
            return False
        kinds = int(np.maximum.reduce(self.type)) + 1
        return bool(np.maximum.reduce(np.bincount(self.first * kinds + self.type)) <= 1)

    @cached_property
    def paired(self) -> bool:
        """True if any entry has two jobs."""
        return bool((self.second != ALONE).any())

    @cached_property
    def others(self) -> np.ndarray:
        """Indices of the entries with fraction 0."""
        return np.flatnonzero(~(self.fraction > 0))


def by_ratio(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entry indices by descending priority X / f: allocated fraction of the time over received fraction.

    Ties go to the largest owed time, then to the largest fraction, then to the earliest arrival.

    Arguments:
        received: received seconds by entry, > 0; half a round is counted in advance, so new entries start in order
            of X.
        owed: owed seconds by entry.
    """
    due, fraction = entries.due
    order = due[np.lexsort((-owed[due], fraction / received[due]))]  # stable: ties as in `due`
    others = entries.others
    if len(others):
        gifts = owed[others]
        order = np.concatenate([order, others[np.argsort(-gifts, kind="stable")] if gifts.any() else others])
    return order


def by_debt(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entry indices by descending owed seconds.

    Entries without owed time come last, by descending ratio of fraction to received seconds.

    Arguments:
        received: received seconds by entry, > 0.
        owed: owed seconds by entry.
    """
    due = np.where(owed > _NONE, owed, 0.0)
    return np.lexsort((-entries.fraction / received, -due))  # stable: ties keep their order


def by_delay(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entry indices by descending owed seconds divided by the entry's fraction of the time.

    Entries without owed time come last, by descending ratio of fraction to received seconds.

    Arguments:
        received: received seconds by entry, > 0.
        owed: owed seconds by entry.
    """
    delay = np.zeros(len(entries))
    np.divide(owed, entries.fraction, out=delay, where=(owed > _NONE) & (entries.fraction > 0))
    return np.lexsort((-entries.fraction / received, -delay))


def choose(entries: Entries, order: np.ndarray, workers: Sequence[int]) -> np.ndarray:
    """Select entries in the given order (Algorithm 2 of the dissertation).

    An entry is selected if enough workers are free and none of its jobs is selected.

    Arguments:
        order: entry indices.
        workers: number of free workers, by type.
    Returns:
        Selected entry indices, in the given order.
    """
    busy = bytearray(entries.jobs + 1)  # the last entry is for ALONE and never set
    free, left = list(workers), sum(workers)
    chosen: list[int] = []
    while left and len(order):
        part, order = order[:_AT_ONCE], order[_AT_ONCE:]
        rows = [column[part].tolist() for column in (entries.need, entries.type, entries.first, entries.second)]
        for at, n, k, a, b in zip(part.tolist(), *rows, strict=True):
            if busy[a] or busy[b] or n > free[k]:
                continue
            busy[a] = 1
            if b != ALONE:
                busy[b] = 1
            free[k] -= n
            left -= n
            chosen.append(at)
            if not left:
                break
        if len(order):
            order = order[_could(entries, order, busy, free)]
    return np.array(chosen, dtype=np.int64)


def choose_by_type(
    entries: Entries, received: np.ndarray, owed: np.ndarray, workers: Sequence[int], types: Sequence[int]
) -> np.ndarray:
    """Select like `choose` on `by_ratio`, with one queue per type.

    Only entries with idle jobs are sorted. If `entries.single`, the first entries of each queue are selected, up to
    the number of workers.

    Arguments:
        received: received seconds by entry, > 0; half a round is counted in advance.
        owed: owed seconds by entry.
        workers: number of free workers, by type.
        types: order in which the worker types choose.
    """
    queued, first, fraction, begins = entries.queued
    second = entries.second[queued] if entries.paired else None
    rank, gifts = fraction / received[queued], -owed[queued]
    idle = np.ones(entries.jobs + 1, dtype=bool)  # the last entry is for ALONE and never set
    chosen: list[np.ndarray] = []
    for kind in types:
        if kind + 1 >= len(begins) or not workers[kind]:
            continue
        queue = slice(begins[kind], begins[kind + 1])
        free = idle[first[queue]] if second is None else idle[first[queue]] & idle[second[queue]]
        there = begins[kind] + free.nonzero()[0]
        took = queued[there[np.lexsort((gifts[there], rank[there]))]]
        if entries.single:
            took = took[: workers[kind]]
        else:
            took = choose(entries, took, [count * (other == kind) for other, count in enumerate(workers)])
        idle[entries.first[took]] = False
        if second is not None:
            idle[entries.second[took]] = False
            idle[ALONE] = True
        chosen.append(took)
    return np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)


def _could(entries: Entries, order: np.ndarray, busy: bytearray, free: list[int]) -> np.ndarray:
    """Mask over `order`: the entry still fits, and none of its jobs is selected."""
    taken = np.frombuffer(busy, dtype=bool)
    fits = entries.need[order] <= np.array(free)[entries.type[order]]
    found: np.ndarray = fits & ~(taken[entries.first[order]] | taken[entries.second[order]])
    return found


def worth(entries: Entries, due: np.ndarray) -> np.ndarray:
    """Value of running each entry in a round: owed time times workers, or 0.

    Arguments:
        due: seconds owed to each entry at the end of the round if nothing runs.
    """
    return np.where((due > _NONE) & (entries.fraction > 0), due, 0.0) * entries.need


def balanced(entries: Entries, chosen: np.ndarray, due: np.ndarray) -> bool:
    """True if a selection is worth as much as the allocation.

    Owed time then stays bounded.

    Arguments:
        due: seconds owed to each entry at the end of the round if nothing runs.
    """
    each = worth(entries, due)
    return bool(each[chosen].sum() >= enough(entries, each))


def enough(entries: Entries, each: np.ndarray) -> float:
    """Value of the allocation in a round: values times fractions, minus rounding.

    Arguments:
        each: value of each entry, from `worth`.
    """
    return float(each @ entries.fraction) * (1 - _NONE)

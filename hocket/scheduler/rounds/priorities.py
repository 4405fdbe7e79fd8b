"""Rounds: who runs next, so that the time that jobs receive comes to be what the allocation says.

An allocation says which fraction of the time a job, or a pair, is to run on each column. In a round each runs or does not. Its
priority is X / f, what it is to have by what it had (section 5.5); the highest that fits goes first, and whatever shares a job
with it is out (Algorithm 2). f is the time received by the time that passed: of one type the published denominator, the time
that all received on it, is the same for all, so that the order is the published one.

How far the greedy choice can go astray. Let d be the time that is owed: X times the time that passed, less the time received.
Each round adds X - S to it, in rounds, where S is 1 for who runs. There are finitely many choices S, so d stays within a constant
that does not depend on the number of rounds as long as, whenever somebody is owed more than a few rounds, the choice is worth
what the allocation is: sum of d S >= sum of d X (Block and Levin 1970, the perceptron cycling theorem). With jobs of one worker
the order by X / f mostly does that; with scale factors, or pairs, often not. `balanced` tells; the order by d is then better, and
knapsack.py finds a choice where there is one. An allocation that is no average of possible rounds, as of two jobs of two workers
each on three workers, three quarters of the time each, is kept by no choice. By debt whoever has a small fraction would wait there
until the debts of the others, which grow faster, end somewhere; so who is owed most of its own fraction goes first, `by_delay`, and
all come to have as large a part of theirs.

Time that nobody had a right to, because who has one is served or does not fit, is a gift: it is not held against who took it.
Source: section 5.5; Gelfand et al. 2010 on the theorem.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.scheduler.model.allocation import ALONE

__all__ = ["Entries", "balanced", "by_debt", "by_delay", "by_ratio", "choose", "choose_by_type", "enough", "worth"]

_NONE = 1e-9
# Of a key: two million jobs at a time, and more columns than a file of workers can name.
_SLOT_BITS, _COLUMN_BITS = 21, 16
_AT_ONCE = 512  # entries that are looked at one by one, before those that cannot run any more are left out


@dataclass(frozen=True, eq=False)
class Entries:
    """Who could run where: an allocation's entries, then those with fraction 0 that may fill what is left.

    Attributes:
        first, second: jobs, as indices < `jobs`; second is ALONE for one.
        column: by entry. type: of workers, that of the column. need: workers.
        fraction: of the time, X.
        jobs: how many indices there are.
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
        """Jobs and column of each entry as one number: who has the same runs the same."""
        return ((self.first << _SLOT_BITS) + self.second + 1 << _COLUMN_BITS) + self.column

    @cached_property
    def due(self) -> tuple[np.ndarray, np.ndarray]:
        """Entries with a fraction, the largest first; and these fractions, negative."""
        has = np.flatnonzero(self.fraction > 0)
        has = has[np.argsort(-self.fraction[has], kind="stable")]
        return has, -self.fraction[has]

    @cached_property
    def queued(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        """All of them type by type, of a type by falling fraction; their jobs, fractions, negative, and where types begin."""
        order = np.lexsort((-self.fraction, self.type))
        kinds = self.type[order]
        begins = kinds.searchsorted(np.arange(kinds[-1] + 2 if len(kinds) else 1))
        return order, self.first[order], -self.fraction[order], begins.tolist()

    @cached_property
    def single(self) -> bool:
        """Whether every entry is of one job that asks for one worker, and no job stands twice in the queue of a type."""
        if not len(self) or self.paired or np.maximum.reduce(self.need) > 1:
            return False
        kinds = int(np.maximum.reduce(self.type)) + 1
        return bool(np.maximum.reduce(np.bincount(self.first * kinds + self.type)) <= 1)

    @cached_property
    def paired(self) -> bool:
        """Whether any is of two jobs."""
        return bool((self.second != ALONE).any())

    @cached_property
    def others(self) -> np.ndarray:
        """Entries without one."""
        return np.flatnonzero(~(self.fraction > 0))


def by_ratio(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entries by falling priority X / f; of one priority who is owed most first, then who has most, then who came first.

    Arguments:
        received: time, by entry, > 0: a share of a round is counted in advance, so that new entries start by X.
        owed: time, by entry.
    """
    due, fraction = entries.due
    order = due[np.lexsort((-owed[due], fraction / received[due]))]  # stable: of alike ones as in `due`
    others = entries.others
    if len(others):
        gifts = owed[others]
        order = np.concatenate([order, others[np.argsort(-gifts, kind="stable")] if gifts.any() else others])
    return order


def by_debt(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entries by what they are owed; those that are owed nothing by their ratio."""
    due = np.where(owed > _NONE, owed, 0.0)
    return np.lexsort((-entries.fraction / received, -due))  # stable: of alike ones as they stand


def by_delay(entries: Entries, received: np.ndarray, owed: np.ndarray) -> np.ndarray:
    """Entries by how long ago they would have been owed nothing; those that are owed nothing by their ratio."""
    delay = np.zeros(len(entries))
    np.divide(owed, entries.fraction, out=delay, where=(owed > _NONE) & (entries.fraction > 0))
    return np.lexsort((-entries.fraction / received, -delay))


def choose(entries: Entries, order: np.ndarray, workers: Sequence[int]) -> np.ndarray:
    """Algorithm 2: down the order, whoever fits and shares no job with those before.

    Arguments:
        order: indices of entries.
        workers: free, by type.
    Returns:
        indices of entries, in that order.
    """
    busy = bytearray(entries.jobs + 1)  # the last one is nobody, who is never busy
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
    """What `choose` makes of `by_ratio` where types have queues of their own, one after the other.

    Of a queue only those are sorted whose jobs are idle by then; of single entries as many run as there are workers.

    Arguments:
        received, owed: as for `by_ratio`. workers: as for `choose`. types: in this order.
    """
    queued, first, fraction, begins = entries.queued
    second = entries.second[queued] if entries.paired else None
    rank, gifts = fraction / received[queued], -owed[queued]
    idle = np.ones(entries.jobs + 1, dtype=bool)  # the last one is nobody, who is never busy
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
    """Which entries still fit and have no busy job."""
    taken = np.frombuffer(busy, dtype=bool)
    fits = entries.need[order] <= np.array(free)[entries.type[order]]
    found: np.ndarray = fits & ~(taken[entries.first[order]] | taken[entries.second[order]])
    return found


def worth(entries: Entries, due: np.ndarray) -> np.ndarray:
    """What it is worth to run each entry in a round: what it is owed, on all its workers; nothing where nothing is owed."""
    return np.where((due > _NONE) & (entries.fraction > 0), due, 0.0) * entries.need


def balanced(entries: Entries, chosen: np.ndarray, due: np.ndarray) -> bool:
    """Whether a choice is worth what the allocation itself is, and so keeps what is owed within bounds.

    Arguments:
        due: what each entry is owed when the round ends, were nobody to run in it.
    """
    each = worth(entries, due)
    return bool(each[chosen].sum() >= enough(entries, each))


def enough(entries: Entries, each: np.ndarray) -> float:
    """What the allocation is worth, by what each entry is, but for rounding."""
    return float(each @ entries.fraction) * (1 - _NONE)

"""Queues: jobs one after the other, each all the time on the fastest workers that are left.

Where nothing is left and jobs can share, those that wait join one that runs, if both together keep at least half as much again
as one alone: 1.5, the public policy's figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason, Reasons
from hocket.cluster.policies._refusals import refusal
from hocket.cluster.snapshot import Snapshot

_WORTHWHILE = 1.5
_LONG = 100  # jobs in a line: from here on it is quicker to look at many at a time


@dataclass(frozen=True, eq=False)
class Queued:
    """Who runs where: the column of each job, -1 for none; with whom, ALONE for nobody; and who it was that nothing fitted."""

    column: np.ndarray
    beside: np.ndarray
    stuck: int | None

    def allocation(self, objective: float, reasons: Sequence[Reason], refused: dict[int, str]) -> Allocation:
        """All the time for those who run."""
        jobs = np.flatnonzero(
            (self.column >= 0) & ((self.beside == ALONE) | (self.beside > np.arange(len(self.column))))
        )
        return Allocation(
            jobs, self.beside[jobs], self.column[jobs], np.ones(len(jobs)), objective, 0.0, reasons, refused
        )


def queue(snapshot: Snapshot, order: np.ndarray, overtake: bool, untouched: int = 0) -> Queued:
    """Who runs.

    Arguments:
        order: jobs that can run, the first in line first.
        overtake: whether others go on where one fits nowhere; if not, all behind it wait.
        untouched: so many of the first in line are never joined by another.
    """
    long = len(order) > _LONG and not overtake
    column, waiting, stuck = _by_stretches(snapshot, order) if long else _one_by_one(snapshot, order.tolist(), overtake)
    found = Queued(column, np.full(len(column), ALONE, dtype=np.int64), stuck)
    if snapshot.pairs is not None:
        _join(snapshot, found, waiting, order[:untouched].tolist(), overtake)
    return found


def _one_by_one(snapshot: Snapshot, order: list[int], overtake: bool) -> tuple[np.ndarray, list[int], int | None]:
    """The column of each job, who waits, and who it was that nothing fitted."""
    free = [own.workers for own in snapshot.types]
    type_of = [own.type for own in snapshot.columns]
    best = np.argsort(-snapshot.throughputs, axis=1, kind="stable").tolist()
    steps = snapshot.throughputs.tolist()
    scale = [active.job.scale_factor for active in snapshot.jobs]
    column = [-1] * len(scale)
    waiting: list[int] = []
    stuck, room = None, sum(free)
    for place, j in enumerate(order):
        if room <= 0 or (stuck is not None and not overtake):
            waiting.extend(order[place:])
            break
        for c in best[j]:
            if free[type_of[c]] >= scale[j] and steps[j][c] > 0:
                column[j] = c
                free[type_of[c]] -= scale[j]
                room -= scale[j]
                break
        else:
            waiting.append(j)
            stuck = j if stuck is None else stuck
    return np.array(column, dtype=np.int64), waiting, stuck


def _by_stretches(snapshot: Snapshot, order: np.ndarray) -> tuple[np.ndarray, list[int], int | None]:
    """The same where nobody overtakes: stretches of the line in which nobody's fastest column with room runs out of it."""
    free, kind = snapshot.workers.copy(), snapshot.type_of
    column = np.full(len(snapshot.jobs), -1, dtype=np.int64)
    begin, stuck = 0, None
    while begin < len(order) and free.sum() > 0 and stuck is None:
        own = order[begin : begin + int(free.sum())]  # each takes one worker at least
        scale = snapshot.scale[own]
        able = np.where(free[kind] >= scale[:, None], snapshot.throughputs[own], 0.0)
        best = able.argmax(axis=1)
        every = np.arange(len(own))
        taken = np.zeros((len(own), len(free)))
        taken[every, kind[best]] = scale
        np.cumsum(taken, axis=0, out=taken)
        nowhere = able[every, best] <= 0
        stops = nowhere | (taken > free).any(axis=1)
        end = int(stops.argmax()) if stops.any() else len(own)
        column[own[:end]] = best[:end]
        if end:
            free -= taken[end - 1]
        if end < len(own) and nowhere[end]:
            stuck = int(own[end])
        begin += end
    return column, order[begin:].tolist(), stuck


def _join(snapshot: Snapshot, found: Queued, waiting: list[int], untouched: list[int], overtake: bool) -> None:
    assert snapshot.pairs is not None
    kept, classes = snapshot.pairs.kept, snapshot.pairs.classes
    hosts = np.flatnonzero(found.column >= 0)
    hosts = hosts[~np.isin(hosts, untouched)]
    # Hosts of a class, scale factor and column are alike for any guest: of these the first free one in line is taken.
    table, kind = np.unique(
        np.stack([classes[hosts], found.column[hosts], snapshot.scale[hosts].astype(np.int64)]),
        axis=1,
        return_inverse=True,
    )
    free = [hosts[kind.ravel() == k][::-1].tolist() for k in range(table.shape[1])]
    there = np.ones(table.shape[1], dtype=bool)
    for j in waiting:
        mine, yours = kept[classes[j], table[0], table[1]], kept[table[0], classes[j], table[1]]
        able = there & (table[2] == snapshot.scale[j]) & (snapshot.throughputs[j, table[1]] > 0)
        both = np.where(able & (mine > 0) & (yours > 0), mine + yours, 0.0)
        k = int(both.argmax()) if len(both) else -1
        if k < 0 or both[k] <= _WORTHWHILE:
            if overtake:
                continue
            return
        host = free[k].pop()
        there[k] = bool(free[k])
        found.beside[host], found.beside[j] = j, host
        found.column[j] = found.column[host]


def reasons(snapshot: Snapshot, found: Queued, order: list[int], refused: dict[int, str]) -> Reasons:
    """What each job has, and why."""
    return Reasons(len(snapshot.jobs), lambda: _reasons(snapshot, found, order, refused))


def _reasons(snapshot: Snapshot, found: Queued, order: list[int], refused: dict[int, str]) -> tuple[Reason, ...]:
    best = snapshot.throughputs.max(axis=1, initial=0.0)
    here = np.where(found.column >= 0, snapshot.throughputs[np.arange(len(best)), found.column], 0.0)
    fastest = (here >= best).tolist()
    names = [snapshot.column_name(c) for c in range(len(snapshot.columns))]
    first = [Reason(f"it is always on {name}, its fastest", "faster workers") for name in names]
    second = [Reason(f"it is always on {name}: its fastest went to jobs before it", "more of them") for name in names]
    beside = Reason("it shares its workers with another job, as all are taken", "more workers")
    behind = Reason("all workers went to jobs before it", "more workers, or a place before them")
    if found.stuck is not None:
        name = snapshot.jobs[found.stuck].job.id
        behind = Reason(
            f"workers went to jobs before it, and it stands with job {name}, for which too few are left", "more workers"
        )
    told = [behind] * len(snapshot.jobs)
    joined = (found.beside != ALONE).tolist()
    column = found.column.tolist()
    for j in order:
        if column[j] >= 0:
            told[j] = beside if joined[j] else (first if fastest[j] else second)[column[j]]
    for j, why in refused.items():
        told[j] = refusal(why)
    return tuple(told)

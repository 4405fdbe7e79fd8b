"""Queues: jobs one after the other, each all the time on the fastest workers that are left.

Where nothing is left and jobs can share, those that wait join one that runs, if both together keep at least half as much again
as one alone: 1.5, the public policy's figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import refusal, refusals
from hocket.scheduler.solver.queueing.greedy_fastest import served

_WORTHWHILE = 1.5
_KNOWN = 512  # entries: up to here what is alike in all answers is made once
_FIRST, _ALONE, _ALWAYS = np.arange(_KNOWN), np.full(_KNOWN, ALONE), np.ones(_KNOWN)
for _part in (_FIRST, _ALONE, _ALWAYS):
    _part.setflags(write=False)


@dataclass(eq=False, slots=True)
class Queued:
    """Who runs where.

    Attributes:
        order: all that can run, the first in line first; a range for all jobs, as they stand.
        refused: why each of the others can run nowhere, by index.
        jobs, columns: those who run, without those who joined them, in the order of the line.
        worth: the sum of what they do alone, in parts of their fastest, each times how many stand in line from it on.
        pairs: who joined whom: the one that ran, and the one that came.
        stuck: who it was that nothing fitted.
    """

    order: Final[Sequence[int]]
    refused: Final[dict[int, str]]
    jobs: Final[Sequence[int]]
    columns: Final[np.ndarray]
    worth: Final[float]
    pairs: Final[Sequence[tuple[int, int]]]
    stuck: Final[int | None]

    def allocation(self, snapshot: Snapshot, objective: float) -> Allocation:
        """All the time for those who run, with reasons for all."""
        size, reasons = len(self.columns), Reasons(len(snapshot.jobs), lambda: _reasons(snapshot, self))
        first, alone, always = all_the_time(size)
        if not self.pairs and isinstance(self.jobs, range):
            return Allocation(first, alone, self.columns, always, objective, 0.0, reasons, self.refused)
        host = np.array(self.jobs, dtype=np.int64)
        guests = dict(self.pairs)
        guest = np.array([guests.get(j, ALONE) for j in self.jobs], dtype=np.int64)
        first = np.where(guest == ALONE, host, np.minimum(host, guest))
        second = np.where(guest == ALONE, ALONE, np.maximum(host, guest))
        turn = np.argsort(first)
        return Allocation(first[turn], second[turn], self.columns[turn], always, objective, 0.0, reasons, self.refused)


def all_the_time(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of so many jobs, the first ones there are: who it is, who is beside it (nobody), for what part of the time."""
    return _entries(size) if size <= _KNOWN else (np.arange(size), np.full(size, ALONE), np.ones(size))


@lru_cache(maxsize=_KNOWN + 1)
def _entries(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _FIRST[:size], _ALONE[:size], _ALWAYS[:size]


def queue(snapshot: Snapshot, order: Sequence[int], overtake: bool, untouched: int = 0) -> Queued:
    """Who runs.

    Arguments:
        order: jobs, the first in line first, those that can run nowhere at any place; a range for all, as they stand.
        overtake: whether others go on where one fits nowhere; if not, all behind it wait.
        untouched: so many of the first in line are never joined by another.
    """
    refused: dict[int, str] = {}
    found = _served(snapshot, order, overtake)
    if found is None:
        refused = refusals(snapshot)
        order = [j for j in order if j not in refused]
        found = _served(snapshot, order, overtake)
        assert found is not None
    columns, size, worth = found
    jobs, waiting, stuck = order[:size], order[size:], None
    if size < len(columns):
        passed = (columns < 0).nonzero()[0].tolist()
        stuck = order[passed[0]]
        if passed[0] < size:
            out = set(passed)
            jobs = [order[place] for place in range(len(columns)) if place not in out]
            waiting = [*[order[place] for place in passed], *order[len(columns) :]]
        columns = columns[columns >= 0]
    pairs: Sequence[tuple[int, int]] = ()
    if snapshot.pairs is not None:
        pairs = _joined(snapshot, jobs, columns.tolist(), waiting, order[:untouched], overtake)
    return Queued(order, refused, jobs, columns, worth, pairs, stuck)


def _served(snapshot: Snapshot, order: Sequence[int], overtake: bool) -> tuple[np.ndarray, int, float] | None:
    """`served`, of those in this order."""
    steps, scale = snapshot.throughputs, snapshot.scale_factors
    if not isinstance(order, range):
        steps, scale = steps.take(order, axis=0), [scale[j] for j in order]
    workers, kind = [own.workers for own in snapshot.types], [own.type for own in snapshot.columns]
    return served(steps, scale, workers, kind, overtake)


def _joined(
    snapshot: Snapshot,
    jobs: Sequence[int],
    columns: Sequence[int],
    waiting: Sequence[int],
    untouched: Sequence[int],
    overtake: bool,
) -> list[tuple[int, int]]:
    """Who joins whom: each of those who wait, in turn, where both together keep most."""
    assert snapshot.pairs is not None
    if not waiting:
        return []
    kept, classes = snapshot.pairs.kept, snapshot.pairs.classes.tolist()
    scale = snapshot.scale_factors
    # Hosts of a class, column and scale factor are alike for any guest: of these the first free one in line is taken.
    hosts: dict[tuple[int, int, int], list[int]] = {}
    for j, c in sorted(zip(jobs, columns, strict=True), reverse=True):
        if j not in untouched:
            hosts.setdefault((classes[j], c, scale[j]), []).append(j)
    kinds = sorted(hosts)
    chances: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    found: list[tuple[int, int]] = []
    for j in waiting:
        mine = (classes[j], scale[j])
        if mine not in chances:
            chances[mine] = _worthwhile(kept, *mine, kinds)
        own = next((kind for kind in chances[mine] if hosts[kind] and snapshot.throughputs[j, kind[1]] > 0), None)
        if own is not None:
            found.append((hosts[own].pop(), j))
        elif not overtake:
            break
    return found


def _worthwhile(
    kept: np.ndarray, own: int, scale: int, kinds: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Kinds of hosts that a guest of this class and scale factor can join, the best first."""
    alike = [kind for kind in kinds if kind[2] == scale]
    there, column = [kind[0] for kind in alike], [kind[1] for kind in alike]
    both = [
        (-mine - yours, kind)
        for mine, yours, kind in zip(
            kept[own, there, column].tolist(), kept[there, own, column].tolist(), alike, strict=True
        )
        if mine > 0 and yours > 0 and mine + yours > _WORTHWHILE
    ]
    return [kind for _, kind in sorted(both)]


def _reasons(snapshot: Snapshot, found: Queued) -> tuple[Reason, ...]:
    """What each job has, and why."""
    best = snapshot.throughputs.max(axis=1, initial=0.0)
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
    for j, c in zip(found.jobs, found.columns.tolist(), strict=True):
        told[j] = (first if snapshot.throughputs[j, c] >= best[j] else second)[c]
    for host, guest in found.pairs:
        told[host] = told[guest] = beside
    for j, why in found.refused.items():
        told[j] = refusal(why)
    return tuple(told)

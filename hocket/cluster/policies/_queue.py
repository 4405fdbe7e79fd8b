"""Queues: jobs one after the other, each all the time on the fastest workers that are left.

Where nothing is left and jobs can share, those that wait join one that runs, if both together keep at least half as much again
as one alone: 1.5, the public policy's figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason, Reasons
from hocket.cluster.policies._refusals import refusal
from hocket.cluster.policies._turns import in_stretches, one_by_one, worth_of
from hocket.cluster.snapshot import Snapshot

_WORTHWHILE = 1.5
_INDEX = np.dtype(np.int64)
_FEW = 128  # in line: up to here it is quicker to look at one after the other
_KNOWN = 512  # entries: up to here what is alike in all answers is made once
_FIRST, _ALONE, _ALWAYS = np.arange(_KNOWN), np.full(_KNOWN, ALONE), np.ones(_KNOWN)
for _part in (_FIRST, _ALONE, _ALWAYS):
    _part.setflags(write=False)


@dataclass(eq=False, slots=True)
class Queued:
    """Who runs where.

    Attributes:
        jobs, columns: those who run, without those who joined them, in the order of the line.
        worth: the sum of what they do alone, in parts of their fastest, each times how many stand in line from it on.
        pairs: who joined whom: the one that ran, and the one that came.
        stuck: who it was that nothing fitted.
    """

    jobs: Final[Sequence[int]]
    columns: Final[np.ndarray]
    worth: Final[float]
    pairs: Final[Sequence[tuple[int, int]]]
    stuck: Final[int | None]

    def allocation(self, snapshot: Snapshot, objective: float, refused: dict[int, str]) -> Allocation:
        """All the time for those who run, with reasons for all."""
        size, reasons = len(self.columns), Reasons(len(snapshot.jobs), lambda: _reasons(snapshot, self, refused))
        first, alone, always = all_the_time(size)
        if not self.pairs and isinstance(self.jobs, range):
            return Allocation(first, alone, self.columns, always, objective, 0.0, reasons, refused)
        host = np.array(self.jobs, dtype=np.int64)
        guests = dict(self.pairs)
        guest = np.array([guests.get(j, ALONE) for j in self.jobs], dtype=np.int64)
        first = np.where(guest == ALONE, host, np.minimum(host, guest))
        second = np.where(guest == ALONE, ALONE, np.maximum(host, guest))
        turn = np.argsort(first)
        return Allocation(first[turn], second[turn], self.columns[turn], always, objective, 0.0, reasons, refused)


def all_the_time(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries of so many jobs, the first ones there are: who it is, who is beside it (nobody), for what part of the time."""
    return _entries(size) if size <= _KNOWN else (np.arange(size), np.full(size, ALONE), np.ones(size))


@lru_cache(maxsize=_KNOWN + 1)
def _entries(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _FIRST[:size], _ALONE[:size], _ALWAYS[:size]


def queue(snapshot: Snapshot, order: Sequence[int], scale: Sequence[int], overtake: bool, untouched: int = 0) -> Queued:
    """Who runs.

    Arguments:
        order: jobs that can run, the first in line first; a range for all, as they stand. scale: their scale factors.
        overtake: whether others go on where one fits nowhere; if not, all behind it wait.
        untouched: so many of the first in line are never joined by another.
    """
    free = [own.workers for own in snapshot.types]
    most = len(order) if overtake else sum(free)  # each takes one worker at least
    steps = snapshot.able[:most] if isinstance(order, range) else snapshot.able[list(order[:most])]
    if overtake or len(steps) <= _FEW:
        found, passed, worth = one_by_one(snapshot, steps, scale, free, overtake)
        columns = np.fromiter(found, _INDEX, len(found))
    else:
        found, passed = in_stretches(snapshot, steps, scale, free)
        columns = np.array(found, dtype=np.int64)
        worth = worth_of(steps, columns, len(order))
    size = len(found)
    jobs, stuck = order[:size], order[passed[0]] if passed else None
    overtaken = bool(passed) and passed[0] < size
    if overtaken:
        out = set(passed)
        jobs = [order[place] for place in range(size + len(passed)) if place not in out]
    pairs: Sequence[tuple[int, int]] = ()
    if snapshot.pairs is not None:
        waiting = order[size:]
        if overtaken:
            waiting = [*[order[place] for place in passed], *order[size + len(passed) :]]
        pairs = _joined(snapshot, jobs, found, waiting, order[:untouched], overtake)
    return Queued(jobs, columns, worth, pairs, stuck)


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


def _reasons(snapshot: Snapshot, found: Queued, refused: dict[int, str]) -> tuple[Reason, ...]:
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
    for j, why in refused.items():
        told[j] = refusal(why)
    return tuple(told)

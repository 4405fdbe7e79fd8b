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
_LEAST = np.nextafter(0.0, 1.0)  # no throughput is less, but 0
_KNOWN = 512  # entries: up to here what is alike in all answers is made once
_FIRST, _ALONE, _ALWAYS = np.arange(_KNOWN), np.full(_KNOWN, ALONE), np.ones(_KNOWN)
for _part in (_FIRST, _ALONE, _ALWAYS):
    _part.setflags(write=False)


@dataclass(frozen=True, eq=False)
class Queued:
    """Who runs where.

    Attributes:
        jobs, columns: those who run, without those who joined them, in the order of the line.
        pairs: who joined whom: the one that ran, and the one that came.
        stuck: who it was that nothing fitted.
    """

    jobs: Sequence[int]
    columns: np.ndarray
    pairs: Sequence[tuple[int, int]]
    stuck: int | None

    def allocation(self, objective: float, reasons: Sequence[Reason], refused: dict[int, str]) -> Allocation:
        """All the time for those who run."""
        size = len(self.columns)
        known = size <= _KNOWN
        always = _ALWAYS[:size] if known else np.ones(size)
        if not self.pairs and self.jobs == range(size):
            first, alone = (_FIRST[:size], _ALONE[:size]) if known else (np.arange(size), np.full(size, ALONE))
            return Allocation(first, alone, self.columns, always, objective, 0.0, reasons, refused)
        host = np.array(self.jobs, dtype=np.int64)
        guests = dict(self.pairs)
        guest = np.array([guests.get(j, ALONE) for j in self.jobs], dtype=np.int64)
        first = np.where(guest == ALONE, host, np.minimum(host, guest))
        second = np.where(guest == ALONE, ALONE, np.maximum(host, guest))
        turn = np.argsort(first)
        return Allocation(first[turn], second[turn], self.columns[turn], always, objective, 0.0, reasons, refused)


def queue(snapshot: Snapshot, order: Sequence[int], scale: Sequence[int], overtake: bool, untouched: int = 0) -> Queued:
    """Who runs.

    Arguments:
        order: jobs that can run, the first in line first. scale: their scale factors.
        overtake: whether others go on where one fits nowhere; if not, all behind it wait.
        untouched: so many of the first in line are never joined by another.
    """
    jobs: Sequence[int]
    waiting: Sequence[int]
    if overtake:
        jobs, columns, waiting, stuck = _overtaking(snapshot, order, scale)
    else:
        columns, stuck = _in_line(snapshot, order, scale)
        jobs, waiting = order[: len(columns)], order[len(columns) :]
    pairs = [] if snapshot.pairs is None else _joined(snapshot, jobs, columns, waiting, order[:untouched], overtake)
    return Queued(jobs, np.array(columns, dtype=np.int64), pairs, stuck)


def _overtaking(
    snapshot: Snapshot, order: Sequence[int], scale: Sequence[int]
) -> tuple[list[int], list[int], list[int], int | None]:
    """Who runs, on which columns, who waits, and who it was that nothing fitted."""
    free = [own.workers for own in snapshot.types]
    type_of = [own.type for own in snapshot.columns]
    best = np.argsort(-snapshot.throughputs, axis=1, kind="stable").tolist()
    steps = snapshot.throughputs.tolist()
    jobs: list[int] = []
    columns: list[int] = []
    waiting: list[int] = []
    stuck, room = None, sum(free)
    for place, (j, needs) in enumerate(zip(order, scale, strict=True)):
        if room <= 0:
            waiting.extend(order[place:])
            break
        for c in best[j]:
            if free[type_of[c]] >= needs and steps[j][c] > 0:
                jobs.append(j)
                columns.append(c)
                free[type_of[c]] -= needs
                room -= needs
                break
        else:
            waiting.append(j)
            stuck = j if stuck is None else stuck
    return jobs, columns, waiting, stuck


def _in_line(snapshot: Snapshot, order: Sequence[int], scale: Sequence[int]) -> tuple[list[int], int | None]:
    """Columns of those who run where nobody overtakes, the first ones in line, and who it was that nothing fitted.

    Fastest columns are looked up for all who are left whenever a type is full; one by one only for those who do not fit there.
    """
    free = [*[own.workers for own in snapshot.types], 0]
    kind = [*[own.type for own in snapshot.columns], len(free) - 1]
    most = min(len(order), sum(free))  # each takes one worker at least
    able = np.empty((most, len(kind)))
    able[:, :-1] = snapshot.throughputs[:most] if order == range(len(order)) else snapshot.throughputs[order[:most]]
    able[:, -1] = _LEAST  # the last column is for those who run nowhere: it has no worker
    found: list[int] = []
    while len(found) < most:
        begin, full = len(found), -1
        for c, needs in zip(able[begin:].argmax(axis=1).tolist(), scale[begin:most], strict=True):
            own = kind[c]
            left = free[own] - needs
            if left < 0:
                place = len(found)
                c = _next(able[place].tolist(), free, kind, needs)
                if c < 0:
                    return found, order[place]
                own = kind[c]
                left = free[own] - needs
            found.append(c)
            free[own] = left
            if not left:
                full = own
                break
        if full < 0 or not any(free):
            break
        for c, own in enumerate(kind):
            if own == full:
                able[len(found) :, c] = 0.0
    return found, None


def _next(steps: list[float], free: list[int], kind: list[int], needs: int) -> int:
    """The fastest column with enough workers, -1 for none."""
    best, most = -1, 0.0
    for c, speed in enumerate(steps):
        if speed > most and free[kind[c]] >= needs:
            best, most = c, speed
    return best


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
    scale = [active.job.scale_factor for active in snapshot.jobs]
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


def reasons(snapshot: Snapshot, found: Queued, refused: dict[int, str]) -> Reasons:
    """What each job has, and why."""
    return Reasons(len(snapshot.jobs), lambda: _reasons(snapshot, found, refused))


def _reasons(snapshot: Snapshot, found: Queued, refused: dict[int, str]) -> tuple[Reason, ...]:
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

"""Priority queue: in order, each job gets the fastest remaining workers.

A job with workers runs all the time; the others wait. With space sharing, a waiting job may share the workers of a
running job, called its host. Each of the two then keeps a fraction of its throughput alone. The fractions must add up
to more than 1.5, the threshold of the policy that Gavel's authors published.
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
_KNOWN = 512  # largest number of entries with cached arrays
_FIRST, _ALONE, _ALWAYS = np.arange(_KNOWN), np.full(_KNOWN, ALONE), np.ones(_KNOWN)
for _part in (_FIRST, _ALONE, _ALWAYS):
    _part.setflags(write=False)


@dataclass(eq=False, slots=True)
class Queued:
    """Result of a priority queue.

    Attributes:
        order: jobs that can run, in queue order; a range if these are all jobs in index order.
        refused: reason by job index, for jobs that cannot run.
        jobs, columns: jobs that got workers of their own, in queue order, and their columns.
        worth: value of these jobs: sum of throughput alone, relative to the job's fastest column, times the number of
            jobs from this job to the end of the queue.
        pairs: (host, waiting job that shares the host's workers).
        stuck: first job that did not fit; None if there is none.
    """

    order: Final[Sequence[int]]
    refused: Final[dict[int, str]]
    jobs: Final[Sequence[int]]
    columns: Final[np.ndarray]
    worth: Final[float]
    pairs: Final[Sequence[tuple[int, int]]]
    stuck: Final[int | None]

    def allocation(self, snapshot: Snapshot, objective: float) -> Allocation:
        """Allocation with the running jobs all the time, and a reason for each job."""
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
    """Arrays first, second and fraction for jobs 0 to size - 1, alone, all the time."""
    return _entries(size) if size <= _KNOWN else (np.arange(size), np.full(size, ALONE), np.ones(size))


@lru_cache(maxsize=_KNOWN + 1)
def _entries(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _FIRST[:size], _ALONE[:size], _ALWAYS[:size]


def queue(snapshot: Snapshot, order: Sequence[int], overtake: bool, untouched: int = 0) -> Queued:
    """Give each job, in queue order, the fastest of the remaining workers.

    Arguments:
        order: jobs in queue order, including jobs that cannot run; a range for all jobs in index order.
        overtake: True if later jobs may pass a job that does not fit; False to stop there.
        untouched: number of jobs at the head of the queue that do not share their workers with others.
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
    """Call greedy_fastest.py's `served` for the jobs in this order."""
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
    """Let each waiting job, in order, share the workers of a running job, its host.

    The host is one with the largest sum of both jobs' remaining fractions of throughput.

    Arguments:
        jobs, columns: running jobs and their columns.
        waiting: waiting jobs, in queue order.
        untouched: running jobs that do not share their workers.
        overtake: False to stop at the first waiting job without a host.

    Returns:
        Pairs (host, waiting job).
    """
    assert snapshot.pairs is not None
    if not waiting:
        return []
    kept, classes = snapshot.pairs.kept, snapshot.pairs.classes.tolist()
    scale = snapshot.scale_factors
    # Hosts with equal class, column and scale factor are interchangeable; the first free one in the queue is taken.
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
    """Kinds of running jobs with which a waiting job can usefully share workers.

    Arguments:
        kept: see Pairs.
        own, scale: space-sharing class and scale factor of the waiting job.
        kinds: space-sharing class, column and scale factor of each kind of running jobs.

    Returns:
        The useful kinds, by descending sum of remaining throughputs.
    """
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
    """Reason for each job."""
    best = snapshot.able.max(axis=1, initial=0.0)  # earlier jobs cannot take workers that are too few for the job
    names = [snapshot.column_name(c) for c in range(len(snapshot.columns))]
    first = [Reason(f"it is always on {name}, its fastest", "faster workers") for name in names]
    second = [
        Reason(f"it is always on {name}: earlier jobs took its fastest workers", "more of its fastest workers")
        for name in names
    ]
    beside = Reason("it shares its workers with another job, as all are taken", "more workers")
    behind = Reason("earlier jobs took all workers", "more workers, or an earlier place in the queue")
    if found.stuck is not None:
        name = snapshot.jobs[found.stuck].job.id
        behind = Reason(
            f"earlier jobs took workers, and it waits behind job {name}, for which too few are left", "more workers"
        )
    told = [behind] * len(snapshot.jobs)
    for j, c in zip(found.jobs, found.columns.tolist(), strict=True):
        told[j] = (first if snapshot.throughputs[j, c] >= best[j] else second)[c]
    for host, guest in found.pairs:
        told[host] = told[guest] = beside
    for j, why in found.refused.items():
        told[j] = refusal(why)
    return tuple(told)

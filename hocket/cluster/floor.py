"""Floor: which workers there are, and which leases hold on them.

Rules of this file: a worker is in one lease at most, and so is a job; leases change all at once, when a round begins, after
everything that is to run has its workers; in between they only end.
Source: sections 5.5 and 5.6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hocket.cluster.events import Command, Preempt, Renew, Start
from hocket.cluster.lease import Lease
from hocket.cluster.placement import Wish, place, place_singles
from hocket.cluster.workers import Column, WorkerType

__all__ = ["Chosen", "Floor", "Running"]


class Chosen(NamedTuple):
    """Who is to run in the next round: an entry of the book, and whether it has a right to."""

    jobs: tuple[str, ...]
    column: int
    need: int
    entry: int
    claimed: bool


@dataclass(slots=True)
class Running:
    """A lease that holds, why, since when its time is not in the book, and who of its jobs still runs."""

    lease: Lease
    entry: int
    claimed: bool
    since_s: float
    jobs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.jobs = set(self.lease.jobs)


class Floor:
    """Workers and leases.

    Attributes:
        types: with as many workers as are up. up: their numbers, by type, rising.
        running: by number of the lease. ran: jobs that were ever started, and are not finished.
    """

    def __init__(self, types: Sequence[WorkerType], columns: Sequence[Column]) -> None:
        self.types = list(types)
        self.columns = tuple(columns)
        self.up = [list(range(t.workers)) for t in types]
        self.running: dict[int, Running] = {}
        self.ran: set[str] = set()
        self._of: dict[str, int] = {}
        self._given = 0

    @property
    def workers(self) -> np.ndarray:
        """That are up, by type."""
        return np.array([len(up) for up in self.up], dtype=np.int64)

    def running_of(self, job: str) -> Running | None:
        """The lease in which a job runs."""
        number = self._of.get(job)
        return None if number is None else self.running[number]

    def leave(self, job: str) -> Running | None:
        """A job runs no more; what it was in, if nothing of that runs any more: that lease is over."""
        number = self._of.pop(job, None)
        if number is None:
            return None
        running = self.running[number]
        running.jobs.discard(job)
        return None if running.jobs else self.running.pop(number)

    def join(self, kind: int, workers: Iterable[int]) -> None:
        """Workers are up from now on."""
        self._set_up(kind, set(self.up[kind]) | set(workers))

    def lose(self, kind: int, workers: Iterable[int]) -> list[Running]:
        """Workers are gone; the leases that had some of them are over."""
        gone = set(workers)
        self._set_up(kind, set(self.up[kind]) - gone)
        hit = [
            r
            for r in self.running.values()
            if self.columns[r.lease.column].type == kind and gone & set(r.lease.workers)
        ]
        for running in hit:
            del self.running[running.lease.number]
            for job in running.jobs:
                del self._of[job]
        return hit

    def _set_up(self, kind: int, workers: set[int]) -> None:
        self.up[kind] = sorted(workers)
        self.types[kind] = replace(self.types[kind], workers=len(workers))

    def turn(self, chosen: Sequence[Chosen], now_s: float, until_s: float, overhead_s: float) -> list[Command]:
        """Give the floor to those who were chosen; whoever stays where it is keeps its lease.

        Arguments:
            overhead_s: that a job loses which ran before and starts elsewhere.
        """
        stays = {(r.lease.jobs, r.lease.column): r for r in self.running.values() if len(r.jobs) == len(r.lease.jobs)}
        before = [stays.get((one.jobs, one.column)) for one in chosen]
        workers = self._place(chosen, before)
        after: dict[int, Running] = {}
        kept: list[Lease] = []
        started: list[Command] = []
        for one, was, own in zip(chosen, before, workers, strict=True):
            if was is not None and was.lease.workers == own:
                was.entry, was.claimed, was.since_s = one.entry, one.claimed, now_s
                after[was.lease.number] = was
                kept.append(was.lease)
                continue
            lease = Lease(self._given, one.jobs, one.column, own, now_s)
            self._given += 1
            after[lease.number] = Running(lease, one.entry, one.claimed, now_s)
            started.append(Start(lease, tuple(overhead_s if job in self.ran else 0.0 for job in one.jobs), until_s))
        told: list[Command] = [Preempt(r.lease) for number, r in self.running.items() if number not in after]
        self.running = after
        self._of = {job: number for number, r in after.items() for job in r.jobs}
        self.ran.update(self._of)
        if kept:
            told.append(Renew(tuple(kept), until_s))
        return told + started

    def _place(self, chosen: Sequence[Chosen], before: Sequence[Running | None]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = [()] * len(chosen)
        of_type: list[list[int]] = [[] for _ in self.up]
        for i, one in enumerate(chosen):
            of_type[self.columns[one.column].type].append(i)
        for kind, own in enumerate(of_type):
            per_server = self.types[kind].per_server
            if all(chosen[i].need == 1 for i in own):
                old = [-1 if was is None else was.lease.workers[0] for was in map(before.__getitem__, own)]
                for i, worker in zip(own, place_singles(old, self.up[kind], per_server), strict=True):
                    found[i] = (worker,)
                continue
            wishes = [self._wish(chosen[i], before[i]) for i in own]
            for i, workers in zip(own, place(wishes, self.up[kind], per_server), strict=True):
                found[i] = workers
        return found

    def _wish(self, one: Chosen, was: Running | None) -> Wish:
        spread = not self.columns[one.column].consolidated
        return Wish(one.need, spread, () if was is None else was.lease.workers)

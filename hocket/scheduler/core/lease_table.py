"""Workers of the cluster and active leases.

Rules of this file: a worker is in at most one lease, and so is a job. All leases change together when a round begins,
after every selected job has its workers. During a round, leases only end. A change with an invalid type or worker
number raises InputError and changes nothing.
Source: Narayanan's dissertation, sections 5.5 and 5.6.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.events import Command, Preempt, Renew, Start
from hocket.scheduler.model.lease import Lease
from hocket.scheduler.model.worker_types import ClusterSpec
from hocket.scheduler.rounds.placement import place, place_singles

__all__ = ["SelectedJobs", "LeaseClaims", "LeaseTable"]

_MOST_WORKERS = 10**6  # maximum worker number of a type, plus one


class LeaseClaims(NamedTuple):
    """Ledger entry of each lease, and whether the allocation grants the time.

    Attributes:
        entry: index of the ledger entry, by lease.
        claimed: True where the entry was owed time, False where it fills free workers.
    """

    entry: np.ndarray
    claimed: np.ndarray

    def part(self, which: np.ndarray | list[int]) -> "LeaseClaims":
        """Claims of some of the leases, by mask or indices."""
        return LeaseClaims(self.entry[which], self.claimed[which])


class SelectedJobs(NamedTuple):
    """Jobs selected for the next round, with their columns and workers.

    Attributes:
        key: identifier of jobs and column, stable between rounds; an entry with the same key keeps its workers.
        jobs: ids of one job, or of two that share workers.
        column: column of each entry.
        need: number of workers.
        claims: ledger entry of each lease.
    """

    key: list[int]
    jobs: list[tuple[str, ...]]
    column: list[int]
    need: list[int]
    claims: LeaseClaims


class LeaseTable:
    """Workers that are up, and the leases that have not ended.

    Attributes:
        types: worker types, with the number of workers that are up.
        up: numbers of the workers that are up, by type, ascending.
        workers: number of workers that are up, by type.
        columns: placements.
        type_of, consolidated: worker type index, and True for consolidated placement, by column.
        running: active leases by number.
        since_s: time at which all active leases were granted or renewed.
        ended: ids of jobs that stopped while the job sharing their lease continues.
        ran: ids of unfinished jobs that were started at least once.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self.types = list(cluster.types)
        self.columns = cluster.columns
        self.type_of = np.array([column.type for column in self.columns], dtype=np.int64)
        self.consolidated = np.array([column.consolidated for column in self.columns], dtype=bool)
        self.up = [list(range(t.workers)) for t in self.types]
        self.workers = np.array([t.workers for t in self.types], dtype=np.int64)
        self.running: dict[int, Lease] = {}
        self.since_s = 0.0
        self.ended: set[str] = set()
        self.ran: set[str] = set()
        self._type_of, self._spread = self.type_of.tolist(), (~self.consolidated).tolist()
        self._given = 0
        none = np.zeros(0, dtype=np.int64)
        self._turned: tuple[list[int], LeaseClaims] = (
            [],
            LeaseClaims(none, none.astype(bool)),
        )  # lease numbers and claims, in selection order
        self._keys: list[int] = []  # in selection order
        self._stays: dict[int, Lease] = {}  # leases with all jobs running, by key
        self._of: dict[str, int] | None = {}  # lease number by job; None until needed

    def claims(self) -> LeaseClaims:
        """Claims of the active leases, in the order of selection."""
        numbers, claims = self._turned
        if len(numbers) == len(self.running):
            return claims
        return claims.part([k for k, number in enumerate(numbers) if number in self.running])

    def cost_usd(self, time_s: float) -> float:
        """Cost of the active leases for the given seconds, in dollars."""
        leased = ((self.types[self._type_of[lease.column]], len(lease.workers)) for lease in self.running.values())
        return sum(own.price_usd_per_hour * workers for own, workers in leased) * time_s / 3600

    def placed(self) -> dict[str, int]:
        """Column index of each running job, by id."""
        return {name: r.column for r in self.running.values() for name in r.jobs if name not in self.ended}

    def leave(self, job: str) -> tuple[Lease | None, list[Lease], LeaseClaims]:
        """Take a job off its workers; its lease ends if no other job of the lease still runs.

        Returns:
            The lease of the job, or None; a list with this lease if none of its jobs runs any more, else empty; the
                claims of the leases in the list.
        """
        if self._of is None:
            self._of = {name: n for n, lease in self.running.items() for name in lease.jobs if name not in self.ended}
        number = self._of.pop(job, None)
        if number is None:
            return None, *self._over([])
        lease = self.running[number]
        self._stays.pop(self._keys[self._turned[0].index(number)], None)
        self.ended.add(job)
        return lease, *self._over([number] if self.ended.issuperset(lease.jobs) else [])

    def _over(self, ended: list[int]) -> tuple[list[Lease], LeaseClaims]:
        """End leases, given by number, and return them with their claims."""
        numbers, claims = self._turned
        places = list(map(numbers.index, ended))
        leases = list(map(self.running.pop, ended))
        for lease, k in zip(leases, places, strict=True):
            self._stays.pop(self._keys[k], None)
            self.ended.difference_update(lease.jobs)
        return leases, claims.part(places)

    def price(self, kind: int, usd_per_hour: float) -> None:
        """Change the price of a worker of a type.

        Arguments:
            kind: index of the worker type.
        """
        self._check(kind, ())
        self.types[kind] = replace(self.types[kind], price_usd_per_hour=usd_per_hour)

    def join(self, kind: int, workers: Collection[int]) -> None:
        """Add workers that have joined or come back.

        Arguments:
            kind: index of the worker type.
            workers: worker numbers within the type.
        """
        self._check(kind, workers)
        self._set_up(kind, set(self.up[kind]) | set(workers))

    def lose(self, kind: int, workers: Collection[int]) -> tuple[list[Lease], LeaseClaims]:
        """Mark workers as lost, end their leases, and return these with their claims.

        Arguments:
            kind: index of the worker type.
            workers: indices of the workers within the type.
        """
        self._check(kind, workers)
        gone = set(workers)
        self._set_up(kind, set(self.up[kind]) - gone)
        self._of = None
        running = self.running.items()
        return self._over(
            [n for n, r in running if self.columns[r.column].type == kind and not gone.isdisjoint(r.workers)]
        )

    def _check(self, kind: int, workers: Collection[int]) -> None:
        """Check that a worker type and worker numbers are valid."""
        if not 0 <= kind < len(self.types):
            raise InputError("workers: type", str(kind), f"an index < {len(self.types)}")
        if any(not 0 <= worker < _MOST_WORKERS for worker in workers):
            raise InputError("workers", str(workers)[:80], f"numbers from 0 to {_MOST_WORKERS - 1}")

    def _set_up(self, kind: int, workers: set[int]) -> None:
        self.up[kind] = sorted(workers)
        self.types[kind] = replace(self.types[kind], workers=len(workers))
        self.workers[kind] = len(workers)

    def turn(self, chosen: SelectedJobs, now_s: float, until_s: float, overhead_s: float) -> list[Command]:
        """Replace the leases by leases of the selected jobs. A job that does not move keeps its lease.

        Arguments:
            until_s: end of the round.
            overhead_s: seconds that a job loses if it ran before and starts on other workers.
        """
        leases: list[Any] = list(map(self._stays.get, chosen.key))  # missing leases are filled in below
        moving: dict[int, tuple[int, ...]] = {}
        if None in leases or max(chosen.need, default=1) > 1:  # single-worker jobs gain nothing by moving
            moving = self._place(chosen, [() if lease is None else lease.workers for lease in leases])
        for k in moving:
            leases[k] = None
        kept = tuple([lease for lease in leases if lease is not None])
        started, ran = [], self.ran
        lost_s, nothing = (overhead_s,), (0.0,)
        number, names, columns = self._given, chosen.jobs, chosen.column
        for k in sorted(moving):
            jobs = names[k]
            lease = leases[k] = Lease(number, jobs, columns[k], moving[k], now_s)
            number += 1
            if len(jobs) == 1:
                (job,) = jobs
                started.append(Start(lease, lost_s if job in ran else nothing, until_s))
                ran.add(job)
            else:
                started.append(Start(lease, tuple([overhead_s if job in ran else 0.0 for job in jobs]), until_s))
                ran.update(jobs)
        self._given = number
        numbers = [lease.number for lease in leases]
        after = dict(zip(numbers, leases, strict=True))
        told: list[Command] = [Preempt(lease) for number, lease in self.running.items() if number not in after]
        self.running, self.since_s, self._turned, self._keys = after, now_s, (numbers, chosen.claims), chosen.key
        self._stays = dict(zip(chosen.key, leases, strict=True))
        self._of, self.ended = None, set()
        if kept:
            told.append(Renew(kept, until_s))
        return told + started

    def _place(self, chosen: SelectedJobs, before: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Choose workers for the entries that cannot stay or did not run before.

        Arguments:
            before: previous worker numbers of each entry; empty if it did not run.
        Returns:
            The workers of each moved entry, by index.
        """
        columns, needs, type_of = chosen.column, chosen.need, self._type_of
        large: set[int] = set()
        if max(needs, default=1) > 1:
            large = {type_of[column] for column, need in zip(columns, needs, strict=True) if need > 1}
        found: dict[int, tuple[int, ...]] = {}
        moving: list[list[int]] = [[] for _ in self.up]
        taken: list[list[int]] = [[] for _ in self.up]
        all_own: list[list[int]] = [[] for _ in self.up]
        for k, (column, workers) in enumerate(zip(columns, before, strict=True)):
            kind = type_of[column]
            if kind in large:
                all_own[kind].append(k)
            elif not workers:
                moving[kind].append(k)
            else:
                taken[kind].append(workers[0])
        for kind, (own, up) in enumerate(zip(all_own, self.up, strict=True)):
            per_server = self.types[kind].per_server
            if moving[kind]:
                given = place_singles(len(moving[kind]), taken[kind], up, per_server)
                found.update(zip(moving[kind], zip(given, strict=True), strict=True))
            elif own and not all(_stays_put(before[k], self._spread[columns[k]], per_server) for k in own):
                wishes = [(needs[k], self._spread[columns[k]], before[k]) for k in own]
                for k, workers in zip(own, place(wishes, up, per_server), strict=True):
                    if workers != before[k]:
                        found[k] = workers
        return found


def _stays_put(workers: tuple[int, ...], spread: bool, per_server: int) -> bool:
    """True if moving cannot improve an entry; if this holds for all of a type, nothing moves there.

    Arguments:
        workers: previous worker numbers; empty if it did not run.
    """
    need = len(workers)
    if need <= 1 or spread:
        return need > 0
    return len({worker // per_server for worker in workers}) <= -(-need // per_server)

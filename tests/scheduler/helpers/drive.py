"""Driver for tests of the core: acts as a simulator and keeps its own records."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hocket.scheduler.core.core import Core, Policy
from hocket.scheduler.core.events import (
    Command,
    Event,
    JobArrived,
    JobFinished,
    Preempt,
    Progressed,
    Renew,
    RoundEnded,
    Start,
    Stop,
    StopOne,
    WakeAt,
)
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.lease import Lease
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.model.worker_types import ClusterSpec, Placement, WorkerType


def fixed(first: object, second: object, column: object, fraction: object) -> Policy:
    """A policy that always returns the same entries, for the jobs that are present."""

    def policy(snapshot: Snapshot) -> Allocation:
        names = {active.job.id: j for j, active in enumerate(snapshot.jobs)}
        a = np.array([names.get(str(j), -2) for j in np.asarray(first).tolist()])
        b = np.array([ALONE if j == ALONE else names.get(str(j), -2) for j in np.asarray(second).tolist()])
        here = (a != -2) & (b != -2)
        columns, fractions = np.asarray(column), np.asarray(fraction, dtype=float)
        low, high = np.where(b == ALONE, a, np.minimum(a, b)), np.where(b == ALONE, b, np.maximum(a, b))
        return Allocation(low[here], high[here], columns[here], fractions[here], 0.0)

    return policy


def even(snapshot: Snapshot) -> Allocation:
    """A policy with equal time for every job on each column, within the limits."""
    scale, workers = snapshot.scale, snapshot.workers[snapshot.type_of]
    able = (snapshot.throughputs > 0) & (scale[:, None] <= workers)
    time = np.where(able, 1.0 / np.maximum(1, able.sum(axis=1, keepdims=True)), 0.0)
    asked = np.bincount(snapshot.type_of, (time * scale[:, None]).sum(axis=0), len(snapshot.types))
    there = np.minimum(1.0, snapshot.workers / np.maximum(asked, 1e-9))
    jobs, columns = np.nonzero(time)
    fractions = time[jobs, columns] * there[snapshot.type_of[columns]]
    return Allocation(jobs, np.full(len(jobs), ALONE), columns, fractions, 0.0)


@dataclass
class Driver:
    """Send events to a core, and check its commands.

    Attributes:
        held: leases by number.
        time_s: seconds of each job, or pair, on each column.
        busy_s: worker-seconds by type.
    """

    core: Core
    now_s: float = 0.0
    wake_s: float | None = None
    held: dict[int, Lease] = field(default_factory=dict)
    time_s: dict[tuple[tuple[str, ...], int], float] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    said: list[tuple[float, Command]] = field(default_factory=list)

    def tell(self, event: Event, now_s: float | None = None) -> list[Command]:
        """Send an event and carry out its commands; check every lease rule."""
        now_s = self.now_s if now_s is None else now_s
        for lease in self.held.values():
            key = (lease.jobs, lease.column)
            self.time_s[key] = self.time_s.get(key, 0.0) + now_s - self.now_s
            kind = self.core.columns[lease.column].type
            self.busy_s[kind] = self.busy_s.get(kind, 0.0) + (now_s - self.now_s) * len(lease.workers)
        self.now_s = now_s
        told = self.core.handle(event, now_s)
        for command in told:
            self._carry_out(command)
        self.said += [(now_s, command) for command in told]
        assert self.held == {lease.number: lease for lease in self.core.leases}
        self._check_leases()
        return told

    def _carry_out(self, command: Command) -> None:
        match command:
            case WakeAt(at_s):
                assert at_s >= self.now_s
                self.wake_s = at_s
            case Start(lease, overhead_s, until_s):
                assert len(overhead_s) == len(lease.jobs)
                assert until_s == self.now_s + self.core.settings.round_s
                assert all(lease.number > other for other in self.held)
                self.held[lease.number] = lease
                self._check_leases()  # also while commands are carried out: who leaves leaves first
            case Renew(leases):
                assert all(self.held[lease.number] == lease for lease in leases)
            case Preempt(lease) | Stop(lease):
                assert self.held.pop(lease.number) == lease
            case StopOne(lease, job):
                assert self.held[lease.number] == lease
                assert job in lease.jobs
                assert len(lease.jobs) == 2
            case _:
                pass

    def _check_leases(self) -> None:
        jobs = [job for lease in self.held.values() for job in lease.jobs]
        assert len(set(jobs)) == len(jobs), "a job is in two leases"
        types = [self.core.columns[lease.column].type for lease in self.held.values()]
        workers = [(k, w) for k, lease in zip(types, self.held.values(), strict=True) for w in lease.workers]
        assert len(set(workers)) == len(workers), "a worker is in two leases"
        assert all(w in self.core.floor.up[k] for k, w in workers), "a worker that is not there"

    def rounds(self, count: int) -> None:
        """Run several rounds without other events."""
        for _ in range(count):
            assert self.wake_s is not None
            self.tell(RoundEnded(), self.wake_s)

    def arrive(self, jobs: Iterable[tuple[Job, tuple[float, ...]]]) -> None:
        """Let jobs arrive now."""
        for job, throughputs in jobs:
            self.tell(JobArrived(job, throughputs))

    def finish(self, job: str, now_s: float | None = None) -> list[Command]:
        """Finish a job."""
        return self.tell(JobFinished(job), now_s)

    def progress(self, **remaining: float) -> None:
        """Report the remaining steps of jobs."""
        self.tell(Progressed(tuple(remaining), tuple(remaining.values())))


def cluster(*workers: int, per_server: int = 1, spread: bool = False) -> ClusterSpec:
    """A cluster of types with given numbers of workers.

    Arguments:
        spread: True if each type has a second column.
    """
    types = tuple(WorkerType(f"type{k}", count, per_server) for k, count in enumerate(workers))
    columns = tuple(Placement(k, whole) for whole in ((True, False) if spread else (True,)) for k in range(len(types)))
    return ClusterSpec(types, columns)


def driver(workers: tuple[int, ...], policy: Policy, per_server: int = 1, **settings: object) -> Driver:
    """A driver of a new core with given numbers of workers."""
    return Driver(Core(cluster(*workers, per_server=per_server), policy, Settings(**settings)))  # type: ignore[arg-type]

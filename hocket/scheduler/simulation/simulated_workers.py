"""Simulated workers: progress of jobs under leases.

Rules of this file: values of all jobs are arrays, by index in the workload. A job's steps are counted when an event
concerns the job, at the throughput in the table. A job that shares its workers runs at the pair's throughput until
the round ends.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from hocket.scheduler.core.events import Start
from hocket.scheduler.model.lease import Lease
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec
from hocket.scheduler.simulation.metrics import JobRecord
from hocket.scheduler.simulation.workload import Workload

_LEAST = 1e-9  # minimum remaining steps of an unfinished job
_PER_HOUR = 3600.0


Held = tuple[tuple[int, ...], Lease]  # indices of a lease's jobs, and the lease


class SimulatedWorkers:
    """Progress of jobs under leases; jobs are numbered as in the workload.

    Attributes:
        running: lease number of each running job, in order of start.
        held: active leases, with the indices of their jobs, by number.
        remaining: remaining steps, by job.
        finished_s: completion time, by job; None before.
        busy_s: seconds that the steps of the last count took, by job.
        finishes: (time, job) of completions in this round, latest first.
        ends_s: time at which no job has work left in this round.
        moves: True if some job makes progress in this round.
        price_changes: (time, type, dollars per hour).
        spans: ended leases, with the fields of Span; plain tuples, because the garbage collector stops tracking them.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: ClusterSpec,
        table: ThroughputTable,
        whole_steps: bool,
    ) -> None:
        jobs, types, columns = workload.jobs, cluster.types, cluster.columns
        count = len(jobs)
        self.jobs, self.types, self.columns, self.whole_steps = jobs, types, columns, whole_steps
        self.place = {job.id: k for k, job in enumerate(jobs)}
        self._own: list[tuple[int, ...]] = [(k,) for k in range(count)]  # index tuple of each single-job lease
        self.rows = workload.rows(table)
        self.alone: list[list[float]] = table.throughputs(self.rows, cluster).tolist()
        at = table.places_of(cluster)
        self._beside = table.beside[:, :, at]
        self.remaining = np.array([job.steps for job in jobs])
        self.speed, self.since_s, self.busy_s = np.zeros(count), np.zeros(count), np.zeros(count)
        self.started_s: list[float | None] = [None] * count
        self.finished_s: list[float | None] = [None] * count
        self.worker_s, self.cost_usd = [[0.0] * len(types) for _ in jobs], [0.0] * count
        self.preemptions = [0] * count
        self.refused: dict[int, str] = {}
        self._type_of = [c.type for c in columns]
        self.prices = [t.price_usd_per_hour for t in types]
        self.running: dict[int, int] = {}
        self.held: dict[int, Held] = {}
        self._paid: dict[int, tuple[float, float]] = {}  # partly charged leases: time and amount so far
        self.finishes: list[tuple[float, int]] = []
        self._jobs: np.ndarray | None = None  # running jobs; None after a change
        self._starting: list[int] = []
        self._speeds: list[float] = []
        self._from_s: list[float] = []
        self.ends_s = self.settled_s = 0.0
        self.moves = False
        self.spans: list[tuple[tuple[int, ...], int, int, float, float, float]] = []
        self.price_changes: list[tuple[float, int, float]] = []

    def start(self, starts: Iterable[Start], now_s: float) -> None:
        """Start jobs on workers; the overhead passes before the first step."""
        place, running, held, alone = self.place, self.running, self.held, self.alone
        starting, speeds, from_s, self._jobs = self._starting, self._speeds, self._from_s, None
        own, first = self._own, len(starting)
        for lease, overhead_s, _ in starts:
            number, names, column, _, _ = lease
            if len(names) == 1:
                j = place[names[0]]
                jobs = own[j]
                speeds.append(alone[j][column])
                from_s.append(now_s + overhead_s[0])
                running[j] = number
            else:
                jobs = tuple([place[name] for name in names])
                speeds += self.speeds(jobs, column)
                from_s += [now_s + lost_s for lost_s in overhead_s]
                running.update(dict.fromkeys(jobs, number))
            held[number] = jobs, lease
            starting += jobs
        for j in starting[first:]:
            if self.started_s[j] is None:
                self.started_s[j] = now_s
            if self.refused:
                self.refused.pop(j, None)

    def _begin(self) -> None:
        """Write the jobs started since the last call to the arrays, in one batch."""
        if self._starting:
            started = np.array(self._starting)
            self.speed[started], self.since_s[started] = self._speeds, self._from_s
            self._starting, self._speeds, self._from_s = [], [], []

    def speeds(self, jobs: tuple[int, ...], column: int) -> tuple[float, ...]:
        """Steps per second of one job, or of each of two jobs that share workers."""
        if len(jobs) == 1:
            return (self.alone[jobs[0]][column],)
        a, b = self.rows[jobs[0]], self.rows[jobs[1]]
        return float(self._beside[a, b, column]), float(self._beside[b, a, column])

    def settle(self, now_s: float, jobs: np.ndarray | None = None) -> np.ndarray:
        """Count the steps of running jobs up to now, and return the job indices.

        Arguments:
            jobs: indices of the running jobs to count; None for all.
        """
        found = self._jobs_running() if jobs is None else jobs
        self._count(found, now_s)
        if jobs is None:
            self.settled_s = now_s
        return found

    def jobs_on(self, kind: int, workers: Iterable[int]) -> np.ndarray:
        """Indices of the running jobs with a lease on any of these workers.

        Arguments:
            kind: index of the worker type.
            workers: worker numbers within the type.
        """
        gone = set(workers)
        found = [
            j
            for jobs, lease in self.held.values()
            if self._type_of[lease.column] == kind and not gone.isdisjoint(lease.workers)
            for j in jobs
            if j in self.running
        ]
        return np.array(found, dtype=np.int64)

    def _jobs_running(self) -> np.ndarray:
        if self._jobs is None:
            self._jobs = np.fromiter(self.running, dtype=np.int64, count=len(self.running))
        return self._jobs

    def _count(self, jobs: np.ndarray, now_s: float) -> None:
        self._begin()
        speed, since_s = self.speed[jobs], self.since_s[jobs]
        done = self._steps(speed * np.maximum(now_s - since_s, 0.0))
        self.busy_s[jobs] = np.divide(done, speed, out=np.zeros(len(jobs)), where=speed > 0)
        self.remaining[jobs] = np.maximum(self.remaining[jobs] - done, _LEAST)
        self.since_s[jobs] = np.maximum(since_s, now_s)

    def _steps(self, amount: np.ndarray) -> np.ndarray:
        """Steps that are credited to jobs for the time since the last count.

        With `whole_steps` (SimulatorOptions), the fraction of the last step is lost. A job that is too slow for one
        step is still credited its fraction, as otherwise it would never finish.

        Arguments:
            amount: computed steps of each job since the last count, with fractions.
        """
        if not self.whole_steps:
            return amount
        whole = np.floor(amount + 1e-6)
        return np.where(whole < 1, amount, whole)

    def plan(self, until_s: float) -> None:
        """Compute the completions in this round, which ends at `until_s` at the latest."""
        self._begin()
        self.finishes, self.ends_s, self.moves = [], until_s, False
        if not self.running:
            return
        jobs = self._jobs_running()
        speed, since_s, remaining = self.speed[jobs], self.since_s[jobs], self.remaining[jobs]
        able = self._steps(speed * np.maximum(until_s - since_s, 0.0))
        done = remaining <= able
        self.moves = bool(np.maximum.reduce(speed) > 0)
        if np.minimum.reduce(speed) <= 0:  # a job without progress is busy until the end
            speed = np.where(speed > 0, speed, np.inf)
            since_s = np.where(speed < np.inf, since_s, until_s)
        if self.whole_steps:
            self.ends_s = min(until_s, float(np.maximum.reduce(since_s + np.minimum(remaining, able) / speed)))
        ends = done.nonzero()[0]
        if len(ends):
            ends_s = since_s[ends] + remaining[ends] / speed[ends]
            self.finishes = sorted(zip(ends_s.tolist(), jobs[ends].tolist(), strict=True), reverse=True)
            if len(ends) == len(jobs):
                self.ends_s = min(until_s, float(ends_s.max()))

    def finish(self, job: int, now_s: float) -> None:
        """Record a job's completion; its lease ends with the last of its jobs."""
        self.remaining[job], self.finished_s[job] = 0.0, now_s
        number, self._jobs = self.running.pop(job), None
        held = self.held[number]
        if len(held[0]) == 1 or not any(map(self.running.__contains__, held[0])):
            self._over([self.held.pop(number)], now_s)

    def stop_one(self, job: int, now_s: float) -> None:
        """Stop an unfinished job; its lease continues for the job beside it."""
        if job in self.running:
            self._count(np.array([job], dtype=np.int64), now_s)
            del self.running[job]
            self._jobs = None

    def leave(self, numbers: Iterable[int], now_s: float, saved: bool) -> None:
        """End leases, and stop their jobs.

        Arguments:
            numbers: ids of the leases. A lease that ended already is skipped.
            saved: True to count the steps up to now, False to lose them.
        """
        running, preemptions, every, ended, self._jobs = self.running, self.preemptions, self.held, [], None
        count = saved and now_s > self.settled_s
        for number in numbers:
            held = every.pop(number, None)
            if held is None:
                continue
            jobs, _ = held
            if len(jobs) > 1:
                jobs = tuple([j for j in jobs if j in running])
            if count:
                self._count(np.array(jobs, dtype=np.int64), now_s)
            for j in jobs:
                del running[j]
                preemptions[j] += 1
            ended.append(held)
        self._over(ended, now_s)

    def _over(self, ended: Sequence[Held], now_s: float) -> None:
        type_of = self._type_of
        self.spans += [
            (jobs, type_of[column], len(workers), began_s, now_s, cost_usd)
            for (jobs, (_, _, column, workers, began_s)), cost_usd in zip(ended, self._pay(ended, now_s), strict=True)
        ]
        if self._paid:
            for _, lease in ended:
                self._paid.pop(lease.number, None)

    def _pay(self, leases: Iterable[Held], now_s: float) -> list[float]:
        """Charge each lease for the time since its start, or since the last price change.

        The amount is added to the worker seconds and costs of its jobs.

        Returns:
            Dollars of each lease since its start.
        """
        worker_s, cost_usd, prices, type_of, paid = self.worker_s, self.cost_usd, self.prices, self._type_of, self._paid
        found = []
        for jobs, (number, _, column, workers, paid_s) in leases:
            kind, before_usd = type_of[column], 0.0
            if number in paid:
                paid_s, before_usd = paid[number]
            amount = (now_s - paid_s) * len(workers) / len(jobs)
            each_usd = amount * prices[kind] / _PER_HOUR
            for j in jobs:
                worker_s[j][kind] += amount
                cost_usd[j] += each_usd
            found.append(before_usd + each_usd * len(jobs))
        return found

    def price(self, kind: int, usd_per_hour: float, now_s: float) -> None:
        """Change the price of a worker type.

        Arguments:
            kind: index of the worker type.
        """
        held = [own for own in self.held.values() if self._type_of[own[1].column] == kind]
        for (_, lease), cost_usd in zip(held, self._pay(held, now_s), strict=True):
            self._paid[lease.number] = now_s, cost_usd
        self.prices[kind] = usd_per_hour
        self.price_changes.append((now_s, kind, usd_per_hour))

    def close(self, now_s: float) -> None:
        """End the simulation: count and charge running leases up to now."""
        self.settle(now_s)
        self._over(list(reversed(self.held.values())), now_s)
        self.held.clear()

    def records(self, count: int, table: ThroughputTable) -> tuple[JobRecord, ...]:
        """Outcomes of the first `count` jobs."""
        at = [table.column[t.table_name, True] for t in self.types]
        alone = table.alone[self.rows[:count]][:, at].tolist()
        return tuple(
            JobRecord(
                self.jobs[k],
                tuple(alone[k]),
                self.started_s[k],
                self.finished_s[k],
                tuple(self.worker_s[k]),
                self.cost_usd[k],
                self.preemptions[k],
                self.refused.get(k, ""),
            )
            for k in range(count)
        )

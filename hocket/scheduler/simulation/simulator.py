"""Discrete-event simulator of a cluster: drives the scheduler's core with a workload.

The simulator sends the core the events of a real service (arrivals, progress, completions, ends of rounds). It
carries out the core's commands on simulated workers, where jobs run at the throughputs of a table. A simulation ends
when its counted jobs are finished: those in the range `first` to `last` of the options, by default all.
Source: Narayanan's dissertation, sections 5.5 and 5.7.1; simulator_options.py lists the choices that these sections
leave open.
"""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.core import Core, Policy
from hocket.scheduler.core.events import (
    Command,
    Event,
    JobArrived,
    JobFinished,
    JobWithdrawn,
    Note,
    Preempt,
    PriceChanged,
    Progressed,
    Refuse,
    Renew,
    RoundEnded,
    SharingMeasured,
    Start,
    Stop,
    StopOne,
    WakeAt,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.estimator.simulated_estimates import Learner
from hocket.scheduler.model.job import LATEST_S
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.model.worker_types import ClusterSpec, WorkerType
from hocket.scheduler.simulation.metrics import ClusterRun, Span
from hocket.scheduler.simulation.simulated_workers import SimulatedWorkers
from hocket.scheduler.simulation.simulator_options import SimulatorOptions
from hocket.scheduler.simulation.stalled import Stalled
from hocket.scheduler.simulation.workload import Workload
from hocket.util.gc_pause import paused

__all__ = ["Simulation", "simulate"]

_LATEST_S = 10 * LATEST_S  # far beyond the last arrival


def simulate(
    workload: Workload,
    types: Sequence[WorkerType],
    table: ThroughputTable,
    policy: Policy,
    options: SimulatorOptions | None = None,
    given: Sequence[tuple[float, Event]] = (),
) -> ClusterRun:
    """Simulate a workload on a cluster.

    Arguments:
        table: true throughputs.
        given: external events with their times in seconds, in time order: price changes, workers joined or lost.

    Raises:
        InputError: jobs or types that the table does not have, invalid events, or counted jobs that can never
            complete, with names and reasons.
    """
    return Simulation(workload, types, table, policy, options, given).run()


class Simulation:
    """One simulation run: the event loop and the execution of the core's commands.

    Arguments:
        table: true throughputs.
        given: external events with their times in seconds, in time order: price changes, workers joined or lost.

    Attributes:
        core: the core that is driven; before `run`, it has not handled any event.
    """

    @paused()
    def __init__(
        self,
        workload: Workload,
        types: Sequence[WorkerType],
        table: ThroughputTable,
        policy: Policy,
        options: SimulatorOptions | None = None,
        given: Sequence[tuple[float, Event]] = (),
    ) -> None:
        if not types:
            raise InputError("worker types", "none", "at least one")
        types, options = tuple(types), options or SimulatorOptions()
        self.options, self.types, self.table, self.given = options, types, table, given
        cluster = ClusterSpec(types, table.columns(types, options.spread))
        self.machine = SimulatedWorkers(workload, cluster, table, options.whole_steps)
        self.jobs, self._names = workload.jobs, [job.id for job in workload.jobs]
        self._learner = _learner(table, cluster, options)
        known = options.known or (self._learner.known if self._learner else table)
        self._rows = workload.rows(known)
        self._known = known.throughputs(self._rows, cluster).tolist()
        kept = known.pairs(self._rows, cluster).kept if options.space_sharing else None
        self._measured: set[tuple[int, int, int]] | None = set() if options.known and options.space_sharing else None
        entities = options.entities or workload.entities
        self.core = Core(cluster, policy, options.settings, kept, entities, options.budget_usd)
        self._observer: Callable[[Event, float], None] | None = None
        self._tell_finished: Callable[[int], None] | None = None
        self.now_s, self.wake_s, self.round_s, self.until_s = 0.0, inf, inf, 0.0
        self.came = self.gone = self.rounds = 0
        self._stalled = Stalled(self.jobs, options.settings.recompute_after_s)
        self.up, self.up_since_s = [t.workers for t in types], [0.0] * len(types)
        self.capacity_s = [0.0] * len(types)
        self.notes: dict[str, None] = {}
        counted = range(len(self.jobs))[options.first : options.last]
        self.waiting, self._finished = set(counted), 0

    @paused()
    def run(
        self,
        observer: Callable[[Event, float], None] | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> ClusterRun:
        """Simulate until all counted jobs are finished (options `first` and `last`).

        Arguments:
            observer: function that is called with each event and its time in seconds since the start, after the core
                has handled the event; for example `Journal.record`.
            tell: function that is called with the number of finished counted jobs, each time one finishes.
        """
        self._observer, self._tell_finished = observer, tell
        while self._goes_on() and self.step():
            pass
        self.machine.close(self.now_s)
        for kind in range(len(self.types)):
            self._workers(kind, 0)
        if self._learner is not None:
            self.notes[self._learner.note(self._rows[: self.came].tolist())] = None
        machine = self.machine
        return ClusterRun(
            self.types,
            machine.records(self.came, self.table),
            tuple(map(Span._make, machine.spans)),
            self.now_s,
            self.rounds,
            self.core.asking.calls,
            tuple(self.capacity_s),
            tuple(self.notes),
            tuple(machine.price_changes),
        )

    def _goes_on(self) -> bool:
        """True if a counted job can still complete.

        A job that the core refused can complete only if external events are still to come.
        """
        refused = self.machine.refused
        if not refused or self.gone < len(self.given) or (self.given and self.round_s < inf):
            return bool(self.waiting)
        return any(k not in refused for k in self.waiting)

    def step(self) -> bool:
        """Process the next event; return False if there is none.

        Order at equal times: completions, external events, arrivals, end of the round.
        """
        machine = self.machine
        finish_s = machine.finishes[-1][0] if machine.finishes else inf
        given_s = self.given[self.gone][0] if self.gone < len(self.given) else inf
        arrives_s = self.jobs[self.came].arrived_s if self.came < len(self.jobs) else inf
        round_s = self.round_s
        if not machine.running and self.options.cut_rounds and self.wake_s < inf:
            round_s = min(self.wake_s, max(arrives_s, self.now_s))
        next_s = min(finish_s, given_s, arrives_s, round_s)
        if next_s == inf:
            raise self._stalled.error(self.waiting, self.core, machine)
        if next_s > _LATEST_S:
            raise self._stalled.error(self.waiting, self.core, machine, f"no end after {self.rounds} rounds")
        self.now_s = max(self.now_s, next_s)
        if next_s == finish_s:
            self._finish()
        elif next_s == given_s:
            self._give(self.given[self.gone][1])
            self.gone += 1
        elif next_s == arrives_s:
            job, k = self.jobs[self.came], self.came
            self.came += 1
            self._tell(JobArrived(job, tuple(self._known[k]), int(self._rows[k]) if self._shares else -1))
        else:
            return self._end_round(min(given_s, arrives_s))
        return True

    @property
    def _shares(self) -> bool:
        return self.options.space_sharing

    def _finish(self) -> None:
        _, k = self.machine.finishes.pop()
        self.machine.finish(k, self.now_s)
        counts = k in self.waiting
        self.waiting.discard(k)
        self._tell(JobFinished(self.jobs[k].id))
        if counts:
            self._finished += 1
            if self._tell_finished is not None:
                self._tell_finished(self._finished)
        if not self.machine.running and self.options.cut_rounds:
            self.round_s = self.now_s

    def _end_round(self, coming_s: float) -> bool:
        machine = self.machine
        self._progress()
        if self._measured is not None:
            self._measure(self._measured)
        if self._learner is not None:
            self._learn(self._learner)
        self.wake_s = inf
        self.rounds += 1
        self._tell(RoundEnded())
        self.until_s = self.now_s + self.options.settings.round_s if machine.running else self.now_s
        machine.plan(self.until_s)
        self.round_s = machine.ends_s if machine.running and self.options.cut_rounds else self.wake_s
        if not self._stalled.is_after_round(self.core, machine, coming_s, self.now_s):
            return True
        if machine.refused.keys() >= self.waiting:
            return False
        raise self._stalled.error(self.waiting, self.core, machine)

    def _progress(self, warned: WorkersLost | None = None) -> None:
        """Report the progress of all running jobs, or of the jobs on workers with a notice.

        Arguments:
            warned: the workers that leave; None for all jobs.
        """
        machine = self.machine
        ran = machine.settle(self.now_s, None if warned is None else machine.jobs_on(warned.type, warned.workers))
        if len(ran):
            names = tuple(map(self._names.__getitem__, ran.tolist()))
            busy_s = tuple(self.machine.busy_s[ran].tolist()) if self.options.whole_steps else ()
            self._tell(Progressed(names, tuple(self.machine.remaining[ran].tolist()), busy_s))

    def _measure(self, known: set[tuple[int, int, int]]) -> None:
        """Report the throughputs of jobs that share workers.

        Each pair of classes on a column is reported once.

        Arguments:
            known: (class, class, column) of the pairs reported so far; updated.
        """
        machine = self.machine
        for jobs, lease in list(machine.held.values()):
            if len(jobs) < 2:
                continue
            (a, b), column = jobs, lease.column
            key = int(self._rows[a]), int(self._rows[b]), column
            if key in known:
                continue
            known |= {key, (key[1], key[0], column)}
            kept = np.array(machine.speeds(jobs, column)) / np.array(
                [machine.alone[a][column], machine.alone[b][column]]
            )
            self._tell(SharingMeasured(*key, *kept.tolist()))

    def _learn(self, learner: Learner) -> None:
        """Update sharing estimates from the pairs of this round, and report changes."""
        rows, speeds = self._rows, self.machine.speeds
        ran = [(jobs, lease.column) for jobs, lease in self.machine.held.values() if len(jobs) == 2]
        for event in learner.learn((int(rows[a]), int(rows[b]), c, speeds((a, b), c)) for (a, b), c in ran):
            self._tell(event)

    def _give(self, event: Event) -> None:
        machine = self.machine
        if isinstance(event, PriceChanged):
            machine.price(event.type, event.price_usd_per_hour, self.now_s)
        elif isinstance(event, WorkersLost | WorkersJoined):
            change = len(event.workers) * (1 if isinstance(event, WorkersJoined) else -1)
            self._workers(event.type, self.up[event.type] + change)
            if isinstance(event, WorkersLost) and event.warned:
                self._progress(event)  # only these jobs save their work
        self._tell(event)
        if isinstance(event, JobWithdrawn):
            self.waiting.discard(machine.place[event.job])
        if machine.running:
            machine.plan(self.until_s)
            self.round_s = machine.ends_s if self.options.cut_rounds else self.wake_s

    def _workers(self, kind: int, count: int) -> None:
        self.capacity_s[kind] += self.up[kind] * (self.now_s - self.up_since_s[kind])
        self.up[kind], self.up_since_s[kind] = count, self.now_s

    def _tell(self, event: Event) -> None:
        commands, machine, now_s = self.core.handle(event, self.now_s), self.machine, self.now_s
        if self._observer is not None:
            self._observer(event, now_s)
        if not commands:
            return
        preempted, stopped, started, others = [], [], [], []
        for command in commands:
            if isinstance(command, Preempt):
                preempted.append(command.lease.number)
            elif isinstance(command, Start):
                started.append(command)
            elif isinstance(command, Stop):
                stopped.append(command.lease.number)
            elif not isinstance(command, Renew):  # renewed leases continue unchanged
                others.append(command)
        if preempted:
            machine.leave(preempted, now_s, True)
        if stopped:
            machine.leave(stopped, now_s, False)
        if started:
            machine.start(started, now_s)
        for command in others:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        machine = self.machine
        if isinstance(command, WakeAt):
            self.wake_s = command.at_s if self.options.cut_rounds else max(command.at_s, self.until_s)
            self.round_s = min(self.round_s, self.wake_s) if machine.running else self.wake_s
        elif isinstance(command, StopOne):
            machine.stop_one(machine.place[command.job], self.now_s)
        elif isinstance(command, Refuse):
            machine.refused[machine.place[command.job]] = command.reason
        else:
            assert isinstance(command, Note)
            self.notes[command.text] = None


def _learner(table: ThroughputTable, cluster: ClusterSpec, options: SimulatorOptions) -> Learner | None:
    if options.estimating is None:
        return None
    if not options.space_sharing or options.known is not None:
        found = "no space sharing" if not options.space_sharing else "throughputs that are given as `known`"
        raise InputError("options: estimating", found, "space sharing with throughputs that are to be estimated")
    return Learner(table, cluster, options.estimating)

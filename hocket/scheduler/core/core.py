"""Scheduler core: a state machine from events and times to commands.

Rules of this file: the core never reads a clock, waits, draws random numbers without a seed, or does I/O. Two cores
that handle the same events at the same times reach the same state and return the same commands. The core does not
know whether it is simulated.

    core = Core(cluster, policy, settings)
    commands = core.handle(JobArrived(job, throughputs), now_s)

The driver reports events in time order and carries out each command before it reports the next event. A round begins
with RoundEnded. The core first selects the round's jobs (priorities.py) and places them (placement.py). Only then
does it end, renew and grant leases (lease_table.py), so no job is preempted for a job that does not start. Jobs that
arrive during a round wait for the next round; if no round is running, the core requests one with WakeAt.
Source: Narayanan's dissertation, sections 5.3 and 5.5.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.core.event_checks import (
    check_arrival,
    check_measured,
    check_progress,
    check_sharing,
    check_workers,
)
from hocket.scheduler.core.events import (
    Command,
    Event,
    JobArrived,
    JobFailed,
    JobFinished,
    JobWithdrawn,
    Note,
    Preempt,
    PriceChanged,
    Progressed,
    Refuse,
    RoundEnded,
    SharingMeasured,
    Stop,
    StopOne,
    ThroughputMeasured,
    WakeAt,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.core.job_table import JobTable
from hocket.scheduler.core.lease_table import LeaseClaims, LeaseTable
from hocket.scheduler.core.ledger import Ledger
from hocket.scheduler.core.policy_runner import Policy, PolicyRunner
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.lease import Lease
from hocket.scheduler.model.snapshot import Entity, Snapshot
from hocket.scheduler.model.worker_types import ClusterSpec
from hocket.scheduler.rounds.selection import RoundSelection

__all__ = ["Core", "Policy"]


class Core:
    """Cluster state as known to the scheduler.

    Attributes (read-only):
        roster: table of unfinished jobs.
        floor: workers and leases.
        asking: the policy and the age of its last allocation.
        book: the current allocation and the time received under it.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        policy: Policy,
        settings: Settings | None = None,
        kept: np.ndarray | None = None,
        entities: tuple[Entity, ...] = (),
        budget_usd: float | None = None,
    ) -> None:
        """
        Arguments:
            policy: function from a snapshot to an allocation; `settings` say when it is called again.
            kept: fraction of its throughput that a job of each space-sharing class keeps beside each other class, see
                Pairs.kept; None without space sharing.
        """
        self.settings = settings or Settings()
        self.columns = cluster.columns
        self.roster = JobTable(len(self.columns))
        self.floor = LeaseTable(cluster)
        self.asking = PolicyRunner(policy, self.settings, kept, entities, budget_usd)
        self.book = Ledger(self.settings.round_s, self.floor.type_of, self.settings.gifts == "counted")
        self.choice = RoundSelection(self.settings)
        self.refused: dict[str, str] = {}
        self.rounds = 0
        self.now_s = 0.0
        self.began_s: float | None = None  # start of the current round
        self.changed = False  # jobs arrived or left since the ledger was updated
        self.asked = False  # a first round is already requested

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """Update the state for an event and return the commands to carry out.

        Raises:
            InputError: the event is invalid, such as a second job with the same name; the state is unchanged.
        """
        if not self.now_s <= now_s < float("inf"):
            raise InputError(
                "event: time", f"{now_s:g} s", f"a finite time, not before the last event's, {self.now_s:g} s"
            )
        spent_usd = self.asking.spent_usd
        if self.asking.budget_usd is not None:
            self.asking.spent_usd += self.floor.cost_usd(now_s - self.now_s)
        try:
            told: list[Command] = _HANDLERS[type(event)](self, event, now_s)
        except Exception:
            self.asking.spent_usd = spent_usd
            raise
        self.now_s = now_s
        if isinstance(event, RoundEnded):
            self.asked = False
        elif self.roster.slot and not self.floor.running and not self.asked:
            self.asked = True
            told.append(WakeAt(now_s))
        return told

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Active leases."""
        return tuple(self.floor.running.values())

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the unfinished jobs, in order of arrival."""
        return tuple(self.roster.slot)

    def snapshot(self, now_s: float) -> Snapshot:
        """Snapshot for the policy at this time."""
        return self.asking.snapshot(self.roster, self.floor, now_s)

    # Job events.

    def _arrived(self, event: JobArrived, now_s: float) -> list[Command]:
        if event.job.id in self.roster.slot:
            raise InputError(f"job {event.job.id}", "a second job with this name", "a unique name")
        check_arrival(event, len(self.columns), self.asking.kept)
        self.roster.add(event.job, event.throughputs, event.sharing)
        self.asking.stale = self.changed = True
        return []

    def _progressed(self, event: Progressed, now_s: float) -> list[Command]:
        check_progress(event)
        self.roster.progress(event.jobs, event.remaining_steps, event.busy_s)
        return []

    def _finished(self, event: JobFinished, now_s: float) -> list[Command]:
        self.roster.find(event.job)
        return self._gone(event.job, "finished", now_s)

    def _withdrawn(self, event: JobWithdrawn, now_s: float) -> list[Command]:
        self.roster.find(event.job)
        return self._gone(event.job, "withdrawn", now_s)

    def _failed(self, event: JobFailed, now_s: float) -> list[Command]:
        self.roster.find(event.job)
        failed = self.roster.attempts.get(event.job, 0) + 1
        reason = event.reason or "it failed"
        if failed >= self.settings.attempts:
            told = self._gone(event.job, reason, now_s)
            return [*told, Refuse(event.job, f"given up after {failed} failed attempts in a row: {reason}")]
        self.roster.attempts[event.job] = failed
        return self._leaves(event.job, reason, now_s)

    def _gone(self, job: str, reason: str, now_s: float) -> list[Command]:
        told = self._leaves(job, reason, now_s)
        self.roster.remove(job)
        self.refused.pop(job, None)
        self.floor.ran.discard(job)
        self.asking.stale = self.changed = True
        return told

    def _leaves(self, job: str, reason: str, now_s: float) -> list[Command]:
        lease, over, claims = self.floor.leave(job)
        if over:
            self._enter(claims, now_s)
            return [Stop(one, reason) for one in over]
        return [] if lease is None else [StopOne(lease, job, reason)]

    # Worker, price and throughput events.

    def _lost(self, event: WorkersLost, now_s: float) -> list[Command]:
        check_workers(event.type, event.workers, len(self.floor.types))
        over, claims = self.floor.lose(event.type, event.workers)
        self._enter(claims, now_s)
        self.asking.stale = self.asking.must = True
        if event.warned:
            return [Preempt(lease) for lease in over]
        return [Stop(lease, "its workers were lost") for lease in over]

    def _joined(self, event: WorkersJoined, now_s: float) -> list[Command]:
        check_workers(event.type, event.workers, len(self.floor.types))
        self.floor.join(event.type, event.workers)
        self.asking.stale = self.asking.must = True
        return []

    def _price(self, event: PriceChanged, now_s: float) -> list[Command]:
        check_workers(event.type, (), len(self.floor.types))
        types = self.floor.types
        types[event.type] = replace(types[event.type], price_usd_per_hour=event.price_usd_per_hour)
        self.asking.stale = True
        return []

    def _throughput(self, event: ThroughputMeasured, now_s: float) -> list[Command]:
        slot = self.roster.find(event.job)
        check_measured(f"job {event.job}: throughput", event.column, event.steps_per_s, len(self.columns))
        self.roster.throughputs[slot, event.column] = event.steps_per_s
        self.asking.stale = True
        return []

    def _sharing(self, event: SharingMeasured, now_s: float) -> list[Command]:
        kept = self.asking.kept
        check_sharing(event, len(self.columns), kept)
        assert kept is not None  # check_sharing refuses every class otherwise
        kept[event.sharing, event.beside, event.column] = event.kept
        kept[event.beside, event.sharing, event.column] = event.kept_beside
        self.asking.stale = True
        return []

    # Rounds.

    def _round(self, event: RoundEnded, now_s: float) -> list[Command]:
        asked, trouble = self.asking.ask(
            self.roster, self.floor, now_s
        )  # first, so that a failure leaves the state unchanged
        self._enter(self.floor.claims(), now_s, self.roster.busy_s)
        self.roster.busy_s[:] = 0.0
        if self.began_s is not None:
            self.book.pass_time(now_s - self.began_s)
        told: list[Command] = [Note(trouble)] if trouble else []
        told += self._open(asked, now_s)
        until_s = now_s + self.settings.round_s
        overhead_s = self.settings.checkpoint_s + self.settings.restart_s
        chosen = self.choice.make(self.book, self.roster, self.floor.workers.tolist(), self.rounds)
        told += self.floor.turn(chosen, now_s, until_s, overhead_s)
        self.began_s = now_s if self.floor.running else None
        self.rounds += 1
        if self.floor.running or (self.roster.slot and self.asking.waits):
            told.append(WakeAt(until_s))
        return told

    def _enter(self, claims: LeaseClaims, now_s: float, busy_s: np.ndarray | None = None) -> None:
        """Credit the time of leases since the round began to the ledger.

        Arguments:
            claims: ledger entries of these leases.
            busy_s: seconds of the round that each job was running, by slot, if reported; 0 for unreported jobs.
        """
        time_s: np.ndarray | float = now_s - self.floor.since_s
        if busy_s is not None and busy_s.any():
            known_s = self.book.of_jobs(claims.entry, busy_s)
            time_s = np.where(known_s > 0, np.minimum(known_s, time_s), time_s)
        self.book.run(*claims, time_s)

    def _open(self, allocation: Allocation | None, now_s: float) -> list[Command]:
        """Load a new allocation into the ledger, or keep the old one for current jobs."""
        roster, slots, workers = self.roster, self.roster.slots(), self.floor.workers
        told: list[Command] = []
        if allocation is not None:
            self.asking.holds(allocation, now_s)
        if allocation is not None:
            told += self._refuse({roster.alone[slots[j]][0]: why for j, why in allocation.refused.items()})
            self.book.open(allocation, slots, roster, workers, self._fillers(slots, True))
            told += [Note(allocation.note)] if allocation.note else []
        elif self.changed or self.asking.must:
            self.book.keep(slots, roster, workers, self._fillers(slots, self.settings.newcomers == "fill"))
        self.changed = False
        roster.recycle()
        return told

    def _fillers(self, slots: np.ndarray, fill: bool) -> np.ndarray:
        """Slots of the jobs that may use free workers of a round: none, or all that are not refused.

        Arguments:
            slots: slots of all current jobs.
            fill: False for none.
        """
        if not (fill and self.settings.fill and self.asking.fills):
            return slots[:0]
        if not self.refused:
            return slots
        return np.array([slot for name, slot in self.roster.slot.items() if name not in self.refused], dtype=np.int64)

    def _refuse(self, refused: dict[str, str]) -> list[Command]:
        new: list[Command] = [Refuse(job, why) for job, why in refused.items() if self.refused.get(job) != why]
        self.refused = refused
        return new


_HANDLERS: dict[type, Callable[..., list[Command]]] = {
    JobArrived: Core._arrived,
    Progressed: Core._progressed,
    JobFinished: Core._finished,
    JobFailed: Core._failed,
    JobWithdrawn: Core._withdrawn,
    RoundEnded: Core._round,
    WorkersLost: Core._lost,
    WorkersJoined: Core._joined,
    PriceChanged: Core._price,
    ThroughputMeasured: Core._throughput,
    SharingMeasured: Core._sharing,
}

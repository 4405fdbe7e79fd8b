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

from typing import assert_never

import numpy as np

from hocket.errors import InputError
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
        self.roster = JobTable(len(self.columns), None if kept is None else len(kept))
        self.floor = LeaseTable(cluster)
        self.asking = PolicyRunner(policy, self.settings, kept, entities, budget_usd)
        self.book = Ledger(self.settings.round_s, self.floor.type_of, self.settings.gifts == "counted")
        self.choice = RoundSelection(self.settings)
        self.refused: dict[str, str] = {}
        self.rounds = 0
        self.now_s = 0.0
        self.spent_usd = 0.0  # counted only with a budget
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
        spent_usd = self.spent_usd
        if self.asking.budget_usd is not None:
            spent_usd += self.floor.cost_usd(now_s - self.now_s)
        told: list[Command] = []
        match event:
            case JobArrived(job, throughputs, sharing):
                self.roster.add(job, throughputs, sharing)
                self.asking.stale = self.changed = True
            case Progressed(jobs, remaining_steps, busy_s):
                self.roster.progress(jobs, remaining_steps, busy_s)
            case JobFinished(name):
                told = self._gone(name, "finished", now_s)
            case JobWithdrawn(name):
                told = self._gone(name, "withdrawn", now_s)
            case JobFailed(name, reason):
                told = self._failed(name, reason or "it failed", now_s)
            case RoundEnded():
                told = self._round(now_s, spent_usd)
            case WorkersLost(kind, workers, warned):
                told = self._lost(kind, workers, warned, now_s)
            case WorkersJoined(kind, workers):
                self.floor.join(kind, workers)
                self.asking.stale = self.asking.must = True
            case PriceChanged(kind, price_usd_per_hour):
                self.floor.price(kind, price_usd_per_hour)
                self.asking.stale = True
            case ThroughputMeasured(name, column, steps_per_s):
                self.roster.measured(name, column, steps_per_s)
                self.asking.stale = True
            case SharingMeasured(own, beside, column, kept, kept_beside):
                self.asking.sharing_measured(own, beside, column, kept, kept_beside)
            case _:
                assert_never(event)
        self.now_s, self.spent_usd = now_s, spent_usd
        if isinstance(event, RoundEnded):
            self.asked = False
        elif self.roster.slot and not self.floor.running and not self.asked:
            self.asked = True
            told.append(WakeAt(now_s))
        return told

    @property
    def leases(self) -> tuple[Lease, ...]:
        """Leases in this round that have not ended."""
        return tuple(self.floor.running.values())

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the unfinished jobs, in order of arrival."""
        return tuple(self.roster.slot)

    def snapshot(self, now_s: float) -> Snapshot:
        """Snapshot for the policy at this time."""
        return self.asking.snapshot(self.roster, self.floor, now_s, self.spent_usd)

    # Jobs and workers that leave.

    def _failed(self, job: str, reason: str, now_s: float) -> list[Command]:
        """Restart a failed job, or give it up after too many failures in a row."""
        self.roster.find(job)
        failed = self.roster.attempts.get(job, 0) + 1
        if failed >= self.settings.attempts:
            told = self._gone(job, reason, now_s)
            return [*told, Refuse(job, f"given up after {failed} failed attempts in a row: {reason}")]
        self.roster.attempts[job] = failed
        return self._leaves(job, reason, now_s)

    def _gone(self, job: str, reason: str, now_s: float) -> list[Command]:
        self.roster.find(job)
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

    def _lost(self, kind: int, workers: tuple[int, ...], warned: bool, now_s: float) -> list[Command]:
        over, claims = self.floor.lose(kind, workers)
        self._enter(claims, now_s)
        self.asking.stale = self.asking.must = True
        if warned:
            return [Preempt(lease) for lease in over]
        return [Stop(lease, "its workers were lost") for lease in over]

    # Rounds.

    def _round(self, now_s: float, spent_usd: float) -> list[Command]:
        """Begin a round: load a new allocation, or keep the old one for current jobs; then select, place and lease."""
        roster, floor, asking = self.roster, self.floor, self.asking
        # First, so that a failure leaves the state unchanged.
        allocation, trouble = asking.ask(roster, floor, now_s, spent_usd)
        self._enter(floor.claims(), now_s, roster.busy_s)
        roster.busy_s[:] = 0.0
        if self.began_s is not None:
            self.book.pass_time(now_s - self.began_s)
        told: list[Command] = [Note(trouble)] if trouble else []
        slots = roster.slots()
        if allocation is not None:
            told += self._refuse({roster.alone[slots[j]][0]: why for j, why in allocation.refused.items()})
            self.book.open(allocation, slots, roster, floor.workers, self._fillers(slots, True))
            told += [Note(allocation.note)] if allocation.note else []
        elif self.changed or asking.must:
            self.book.keep(slots, roster, floor.workers, self._fillers(slots, self.settings.newcomers == "fill"))
        self.changed = False
        roster.recycle()
        until_s = now_s + self.settings.round_s
        overhead_s = self.settings.checkpoint_s + self.settings.restart_s
        chosen = self.choice.make(self.book, roster, floor.workers.tolist(), self.rounds)
        told += floor.turn(chosen, now_s, until_s, overhead_s)
        self.began_s = now_s if floor.running else None
        self.rounds += 1
        if floor.running or (roster.slot and asking.waits):
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

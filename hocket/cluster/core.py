"""Core: the scheduler as a state machine. An event and the time go in, commands come out.

Rules of this file: nothing here asks for the time, waits, draws without a seed, or touches anything outside: two cores that were
told the same events at the same times are in the same state and said the same. It does not know whether it is simulated.

    core = Core(types, columns, policy, settings)
    commands = core.handle(JobArrived(job, throughputs), now_s)

Whoever drives it tells events in the order of time and carries out each command before the next event. A round begins when
RoundEnded is told: the jobs that run in it are chosen (rounds.py) and placed (placement.py) first; only then are leases ended,
renewed and given (floor.py), so that nobody is preempted for a job that does not start. Jobs that arrive during a round wait for
the next; where none is under way, the core asks for one with WakeAt.
Source: sections 5.3 and 5.5.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.book import Book
from hocket.cluster.checks import check_arrival, check_measured, check_progress, check_sharing, check_workers
from hocket.cluster.choice import Choice
from hocket.cluster.events import (
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
    ThroughputMeasured,
    WakeAt,
    WorkersJoined,
    WorkersLost,
)
from hocket.cluster.floor import Chosen, Floor, Running
from hocket.cluster.lease import Lease
from hocket.cluster.policies._lp import SolverTrouble
from hocket.cluster.roster import Roster
from hocket.cluster.settings import Settings
from hocket.cluster.snapshot import Entity, Pairs, Snapshot
from hocket.cluster.workers import Column, WorkerType
from hocket.errors import InputError

__all__ = ["Core", "Policy"]

Policy = Callable[[Snapshot], Allocation]


class Core:
    """The state of a cluster, as far as the scheduler knows it.

    Attributes:
        roster: jobs. floor: workers and leases. book: the allocation, and what was received of it. kept: as given, with one class
            more, of jobs that share with nobody. All are to read only.
    """

    def __init__(
        self,
        types: Sequence[WorkerType],
        columns: Sequence[Column],
        policy: Policy,
        settings: Settings | None = None,
        kept: np.ndarray | None = None,
        entities: tuple[Entity, ...] = (),
        budget_usd: float | None = None,
    ) -> None:
        """
        Arguments:
            policy: from a snapshot to an allocation; it is asked again as `settings` say.
            kept: what classes of jobs keep beside each other, see Pairs; None if jobs do not share workers.
        """
        self.settings = settings or Settings()
        self.columns, self.entities, self.budget_usd = tuple(columns), entities, budget_usd
        self._policy = policy
        self.kept = None if kept is None else _with_nobody(kept)
        self._type_of = np.array([c.type for c in self.columns], dtype=np.int64)
        self._whole = np.array([c.consolidated for c in self.columns], dtype=bool)
        self.roster = Roster(len(self.columns))
        self.floor = Floor(types, columns)
        self.book = Book(self.settings.round_s, self._type_of, self.settings.gifts == "counted")
        self.choice = Choice(self.settings)
        self.refused: dict[str, str] = {}
        self._busy_s: dict[str, float] = {}  # of the round that ends, as told
        self.rounds = 0
        self.now_s = 0.0
        self.began_s: float | None = None  # the round that is under way
        self.made_s: float | None = None  # the allocation
        self.holds_s, self.fills = float("inf"), True  # for how long; free workers may be given away
        self.stale = self.must = self.changed = False  # it is to be made anew; at once; jobs came or went
        self.asked = False  # for a round to begin, before any is under way
        self.search_at, self.search_every = (
            0,
            1,
        )  # rounds: when next, and how seldom, where no choice keeps an allocation

    def handle(self, event: Event, now_s: float) -> list[Command]:
        """What to do about an event.

        Raises:
            InputError: the event cannot be, such as a second job of one name; the state is as before.
        """
        if not self.now_s <= now_s < float("inf"):
            raise InputError("event: time", f"{now_s:g} s", f"not before the last event's, {self.now_s:g} s")
        told: list[Command] = _HANDLERS[type(event)](self, event, now_s)
        self.now_s = now_s
        if isinstance(event, RoundEnded):
            self.asked = False
        elif self.roster.slot and not self.floor.running and not self.asked:
            self.asked = True
            told.append(WakeAt(now_s))
        return told

    @property
    def leases(self) -> tuple[Lease, ...]:
        """That hold now."""
        return tuple(running.lease for running in self.floor.running.values())

    @property
    def jobs(self) -> tuple[str, ...]:
        """That are not finished, in the order in which they came."""
        return tuple(self.roster.slot)

    def snapshot(self, now_s: float) -> Snapshot:
        """What a policy is told at this moment."""
        roster, slots = self.roster, self.roster.slots()
        pairs = None
        if self.kept is not None:
            classes = roster.sharing[slots]
            pairs = Pairs(np.where(classes < 0, len(self.kept) - 1, classes), self.kept.copy())
        return Snapshot(
            tuple(self.floor.types),
            self.columns,
            roster.active(now_s),
            roster.throughputs[slots],
            pairs,
            self.entities,
            self.budget_usd,
            now_s,
            {job: r.lease.column for r in self.floor.running.values() for job in r.jobs},
            self.settings.checkpoint_s + self.settings.restart_s,
            self.settings.round_s,
        )

    # Jobs come and go.

    def _arrived(self, event: JobArrived, now_s: float) -> list[Command]:
        if event.job.id in self.roster.slot:
            raise InputError(f"job {event.job.id}", "a job of this name", "a name that is free")
        check_arrival(event, len(self.columns), self.kept)
        self.roster.add(event.job, event.throughputs, event.sharing)
        self.stale = self.changed = True
        return []

    def _progressed(self, event: Progressed, now_s: float) -> list[Command]:
        slots = [self._slot(job) for job in event.jobs]
        check_progress(event)
        for job, slot, steps in zip(event.jobs, slots, event.remaining_steps, strict=True):
            if self.roster.attempts and steps < self.roster.remaining_steps[slot]:
                self.roster.attempts.pop(job, None)
        self.roster.remaining_steps[slots] = event.remaining_steps
        self._busy_s = dict(zip(event.jobs, event.busy_s, strict=True)) if event.busy_s else {}
        return []

    def _finished(self, event: JobFinished, now_s: float) -> list[Command]:
        self._slot(event.job)
        return self._gone(event.job, "finished", now_s)

    def _withdrawn(self, event: JobWithdrawn, now_s: float) -> list[Command]:
        self._slot(event.job)
        return self._gone(event.job, "withdrawn", now_s)

    def _failed(self, event: JobFailed, now_s: float) -> list[Command]:
        self._slot(event.job)
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
        self.stale = self.changed = True
        return told

    def _leaves(self, job: str, reason: str, now_s: float) -> list[Command]:
        over = self.floor.leave(job)
        if over is None:
            return []
        self._enter(over, now_s)
        return [Stop(over.lease, reason)]

    def _slot(self, job: str) -> int:
        if job not in self.roster.slot:
            raise InputError(f"job {job}", "no job of this name", "one that came and is not finished")
        return self.roster.slot[job]

    # Workers and figures change.

    def _lost(self, event: WorkersLost, now_s: float) -> list[Command]:
        check_workers(event.type, event.workers, len(self.floor.types))
        over = self.floor.lose(event.type, event.workers)
        for running in over:
            self._enter(running, now_s)
        self.stale = self.must = True
        if event.warned:
            return [Preempt(running.lease) for running in over]
        return [Stop(running.lease, "its workers went away") for running in over]

    def _joined(self, event: WorkersJoined, now_s: float) -> list[Command]:
        check_workers(event.type, event.workers, len(self.floor.types))
        self.floor.join(event.type, event.workers)
        self.stale = self.must = True
        return []

    def _price(self, event: PriceChanged, now_s: float) -> list[Command]:
        check_workers(event.type, (), len(self.floor.types))
        types = self.floor.types
        types[event.type] = replace(types[event.type], price_usd_per_hour=event.price_usd_per_hour)
        self.stale = True
        return []

    def _throughput(self, event: ThroughputMeasured, now_s: float) -> list[Command]:
        slot = self._slot(event.job)
        check_measured(f"job {event.job}: throughput", event.column, event.steps_per_s, len(self.columns))
        self.roster.throughputs[slot, event.column] = event.steps_per_s
        self.stale = True
        return []

    def _sharing(self, event: SharingMeasured, now_s: float) -> list[Command]:
        kept = self.kept
        check_sharing(event, len(self.columns), kept)
        assert kept is not None  # or there would be no class
        kept[event.sharing, event.beside, event.column] = event.kept
        kept[event.beside, event.sharing, event.column] = event.kept_beside
        self.stale = True
        return []

    # Rounds.

    def _round(self, event: RoundEnded, now_s: float) -> list[Command]:
        asked, trouble = self._ask(now_s)  # first: if the policy fails, nothing has changed
        for running in self.floor.running.values():
            self._enter(running, now_s, max((self._busy_s.get(job, 0.0) for job in running.lease.jobs), default=0.0))
        self._busy_s = {}
        if self.began_s is not None:
            self.book.pass_time(now_s - self.began_s)
        told: list[Command] = [Note(trouble)] if trouble else []
        told += self._open(asked, now_s)
        until_s = now_s + self.settings.round_s
        overhead_s = self.settings.checkpoint_s + self.settings.restart_s
        told += self.floor.turn(self._choose(), now_s, until_s, overhead_s)
        self.began_s = now_s if self.floor.running else None
        self.rounds += 1
        if self.floor.running or (self.roster.slot and (self.stale or self.holds_s < float("inf"))):
            told.append(WakeAt(until_s))
        return told

    def _enter(self, running: Running, now_s: float, busy_s: float = 0.0) -> None:
        """Put the time that a lease had into the book; busy: if it is known for how much of it a job was at work."""
        time_s = now_s - running.since_s
        self.book.run(running.entry, min(time_s, busy_s) if busy_s else time_s, running.claimed)
        running.since_s = now_s

    def _ask(self, now_s: float) -> tuple[Allocation | None, str]:
        """A new allocation, if one is due; and why there is none, if the solver failed."""
        settings, workers = self.settings, self.floor.workers
        made_s = self.made_s if self.made_s or settings.hold_first else None
        late = made_s is None or now_s - made_s >= settings.recompute_after_s
        old = self.made_s is not None and now_s - self.made_s >= self.holds_s
        due = self.stale or old or settings.recompute == "rounds"
        if not self.roster.slot or not (self.must or (late and due)):
            return None, ""
        self.roster.count_isolated(np.where(self._whole, workers[self._type_of], 0))
        try:
            return self._policy(self.snapshot(now_s)), ""
        except SolverTrouble as trouble:
            return None, f"{trouble}; the last allocation holds on"

    def _open(self, allocation: Allocation | None, now_s: float) -> list[Command]:
        """Open the book with a new allocation, or keep the old one for whoever is here."""
        roster, slots, workers = self.roster, self.roster.slots(), self.floor.workers
        told: list[Command] = []
        if allocation is not None:
            self.holds_s, self.fills = allocation.holds_s, allocation.fill
        fill = self.settings.fill and self.fills
        if allocation is not None:
            self.book.open(allocation, slots, roster, workers, fill)
            told += self._refuse({roster.name(slots[j]): why for j, why in allocation.refused.items()})
            told += [Note(allocation.note)] if allocation.note else []
            self.made_s, self.stale, self.must = now_s, False, False
        elif self.changed or self.must:
            self.book.keep(slots, roster, workers, fill and self.settings.newcomers == "fill")
        self.changed = False
        roster.recycle()
        return told

    def _refuse(self, refused: dict[str, str]) -> list[Command]:
        new: list[Command] = [Refuse(job, why) for job, why in refused.items() if self.refused.get(job) != why]
        self.refused = refused
        return new

    def _choose(self) -> list[Chosen]:
        """Who runs in the round that begins."""
        book, entries, name = self.book, self.book.entries, self.roster.name
        chosen = self.choice.make(book, self.floor.workers.tolist(), self.rounds)
        claimed = (book.due_s()[chosen] > 0).tolist()
        first, second = entries.first[chosen].tolist(), entries.second[chosen].tolist()
        column, need = entries.column[chosen].tolist(), entries.need[chosen].tolist()
        return [
            Chosen((name(a),) if b == ALONE else (name(a), name(b)), c, n, e, own)
            for a, b, c, n, e, own in zip(first, second, column, need, chosen.tolist(), claimed, strict=True)
        ]


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


def _with_nobody(kept: np.ndarray) -> np.ndarray:
    """One class more, at the end, that shares with nobody."""
    found = np.zeros((kept.shape[0] + 1, kept.shape[1] + 1, kept.shape[2]))
    found[:-1, :-1] = kept
    return found

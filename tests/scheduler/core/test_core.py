"""Scheduler core: invariants under random events, and determinism.

Capacity holds, a job is in one lease, time is conserved, and equal events give equal results.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.core.core import Core
from hocket.scheduler.core.events import (
    JobArrived,
    JobFailed,
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
    ThroughputMeasured,
    WakeAt,
    WorkersJoined,
    WorkersLost,
)
from hocket.scheduler.core.policy_by_name import policy_named
from hocket.scheduler.core.settings import Settings
from hocket.scheduler.journal.core_state import state_of
from hocket.scheduler.model.allocation import ALONE, Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies import max_min_fairness
from hocket.scheduler.policies.isolated import isolated_times
from hocket.scheduler.solver.lp.linear_program import SolverTrouble
from tests.scheduler.helpers.drive import Driver, cluster, driver, even, fixed
from tests.tiers import examples


def job(name: str, scale: int = 1, steps: float = 1e6, arrived_s: float = 0.0) -> Job:
    """A job of an arbitrary type."""
    return Job(name, "any", steps, scale, arrived_s)


def one(drive: Driver, name: str, scale: int = 1, steps: float = 1e6) -> None:
    """An arrival, now, of a job that runs everywhere."""
    drive.arrive([(job(name, scale, steps, drive.now_s), (1.0,) * len(drive.core.columns))])


def pairing(snapshot: Snapshot) -> Allocation:
    """Policy: neighbours of one scale factor share; other jobs are alone.

    All are on the first column.
    """
    first, second = [], []
    waiting = list(range(len(snapshot.jobs)))
    while waiting:
        a = waiting.pop(0)
        mates = [b for b in waiting if snapshot.scale[b] == snapshot.scale[a]]
        if mates:
            waiting.remove(mates[0])
        first.append(a)
        second.append(mates[0] if mates else ALONE)
    asked = float(snapshot.scale[first].sum()) if first else 1.0
    x = min(1.0, float(snapshot.workers[0]) / asked)
    kind = np.zeros(len(first), dtype=int)
    return Allocation(np.array(first, dtype=int), np.array(second, dtype=int), kind, np.full(len(first), x), 0.0)


class Story:
    """Random events drawn by hypothesis, sent to a driver."""

    def __init__(self, drive: Driver, draw: Callable[[Any], Any]) -> None:
        self.drive, self.draw, self.count = drive, draw, 0

    def step(self) -> None:
        """Send one event."""
        drive = self.drive
        happens = [self.arrives]
        if drive.wake_s is not None and drive.wake_s >= drive.now_s:
            happens += [self.turns] * 3
        if drive.core.jobs:
            happens += [self.leaves, self.fails, self.measures]
        happens += [self.workers, self.price]
        self.draw(st.sampled_from(happens))()

    def later(self) -> float:
        """A time before the next round."""
        drive = self.drive
        end = drive.now_s + 100 if drive.wake_s is None else max(drive.now_s, drive.wake_s)
        return drive.now_s + self.draw(st.sampled_from([0.0, 0.25, 1.0])) * (end - drive.now_s)

    def arrives(self) -> None:
        self.count += 1
        columns = len(self.drive.core.columns)
        steps = self.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=columns, max_size=columns))
        scale = self.draw(st.sampled_from([1, 1, 2, 3, 4]))
        now_s = self.later()
        sharing = self.draw(st.sampled_from([-1, 0])) if self.drive.core.asking.kept is not None else -1
        self.drive.tell(JobArrived(job(f"j{self.count}", scale, 1e5, now_s), tuple(steps), sharing), now_s)

    def turns(self) -> None:
        assert self.drive.wake_s is not None
        ran = [name for lease in self.drive.held.values() for name in lease.jobs if name in self.drive.core.jobs]
        at_s = self.drive.wake_s
        if ran:
            slots = [self.drive.core.roster.slot[name] for name in ran]
            left = tuple((self.drive.core.roster.remaining_steps[slots] * 0.9).tolist())
            self.drive.tell(Progressed(tuple(ran), left), at_s)
        self.drive.tell(RoundEnded(), at_s)

    def leaves(self) -> None:
        name = self.draw(st.sampled_from(self.drive.core.jobs))
        kind = self.draw(st.sampled_from([JobFinished, JobWithdrawn]))
        self.drive.tell(kind(name), self.later())

    def fails(self) -> None:
        self.drive.tell(JobFailed(self.draw(st.sampled_from(self.drive.core.jobs)), "out of memory"), self.later())

    def measures(self) -> None:
        name = self.draw(st.sampled_from(self.drive.core.jobs))
        self.drive.tell(ThroughputMeasured(name, 0, self.draw(st.sampled_from([0.0, 0.7, 2.0]))), self.later())

    def workers(self) -> None:
        kind = self.draw(st.integers(0, len(self.drive.core.floor.types) - 1))
        which = tuple(self.draw(st.sets(st.integers(0, 7), max_size=4)))
        event = self.draw(st.sampled_from([WorkersLost, WorkersJoined]))
        self.drive.tell(event(kind, which), self.later())

    def price(self) -> None:
        self.drive.tell(PriceChanged(0, self.draw(st.sampled_from([0.0, 0.5, 3.0]))), self.later())


SETTINGS = [
    Settings(),
    Settings(order="deficit", recompute="rounds"),
    Settings(queue="types", shuffle=True, balance_after=None, recompute_after_s=1000.0, seed=7),
    Settings(fill=False, balance_after=0.0, checkpoint_s=5.0, restart_s=10.0, attempts=2),
]


@pytest.mark.parametrize("policy", [even, pairing], ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("how", SETTINGS, ids=range(len(SETTINGS)))
@given(data=st.data())
@examples(25)
@pytest.mark.thinned
def test_whatever_happens_the_rules_of_leases_hold(policy: Any, how: Settings, data: st.DataObject) -> None:
    """Lease rules hold at every moment (see Driver), and time is conserved.

    No worker and no job is in two leases, and no lease has missing workers. A second core with the same events
    returns the same commands and reaches the same state.
    """
    there = cluster(5, 4, per_server=2, spread=True)
    kept = np.full((1, 1, len(there.columns)), 0.6) if policy is pairing else None
    drive = Driver(Core(there, policy, how, kept))
    again = Core(there, policy, how, kept)
    log: list[tuple[Any, float]] = []
    handle = drive.core.handle

    def spy(event: Any, now_s: float) -> Any:
        log.append((event, now_s))
        return handle(event, now_s)

    drive.core.handle = spy  # type: ignore[method-assign]
    story = Story(drive, data.draw)
    for _ in range(data.draw(st.integers(1, 25))):
        story.step()
    for kind, busy_s in drive.busy_s.items():
        own = sum(s * _scale(log, names) for (names, c), s in drive.time_s.items() if there.columns[c].type == kind)
        assert busy_s == pytest.approx(own)
    told = [(now_s, command) for event, now_s in log for command in again.handle(event, now_s)]
    assert told == drive.said
    assert json.dumps(state_of(again)) == json.dumps(state_of(drive.core))


def _scale(log: list[tuple[Any, float]], names: tuple[str, ...]) -> int:
    return next(e.job.scale_factor for e, _ in log if isinstance(e, JobArrived) and e.job.id == names[0])


def test_the_book_says_what_everybody_received_and_is_owed() -> None:
    """Received and owed time of the ledger equal the driver's count.

    Owed time is X times the elapsed time, minus the time that was not a gift.
    """
    first, fraction = ["a", "b", "c"], [0.9, 0.6, 0.2]
    drive = driver((2,), fixed(first, [ALONE] * 3, [0] * 3, fraction), balance_after=None)
    for name in first:
        one(drive, name)
    drive.rounds(41)
    had = [drive.time_s[(name,), 0] for name in first]
    book = drive.core.book
    assert (book.received_s - 180).tolist() == had
    assert sum(had) == 2 * 40 * 360
    gifts = book.owed_s - (np.array(fraction) * drive.now_s - had)
    assert (gifts > -1e-6).all()  # one worker in six is given out to nobody: what is received beyond X is a gift
    assert gifts.sum() == pytest.approx(0.3 * 40 * 360, rel=0.1)


def test_a_policy_that_fails_leaves_everything_as_it_was() -> None:
    """A policy's exception is passed on and leaves the state unchanged.

    The round can be sent again, with another outcome, as if for the first time.
    """
    broken = [False]

    def policy(snapshot: Snapshot) -> Allocation:
        if broken[0]:
            raise ArithmeticError("a mistake")
        return even(snapshot)

    drive, other = driver((1,), policy), driver((1,), policy)
    for each in (drive, other):
        one(each, "a")
        each.rounds(1)
        one(each, "b")
    broken[0] = True
    with pytest.raises(ArithmeticError):
        drive.core.handle(RoundEnded(), 360.0)
    broken[0] = False
    assert drive.tell(RoundEnded(), 360.0) == other.tell(RoundEnded(), 360.0)
    assert state_of(drive.core) == state_of(other.core)


def test_a_policy_that_refuses_later_leaves_the_last_allocation_in_force() -> None:
    """A policy's InputError is raised only before the first allocation.

    Later the last allocation stays in effect, with a note.
    """
    refuses = [True]

    def policy(snapshot: Snapshot) -> Allocation:
        if refuses[0]:
            raise InputError("prices", "none", "some")
        return even(snapshot)

    drive = driver((1,), policy)
    one(drive, "a")
    with pytest.raises(InputError, match="prices"):
        drive.core.handle(RoundEnded(), 0.0)
    refuses[0] = False
    (start, *_) = drive.tell(RoundEnded())
    assert isinstance(start, Start)
    refuses[0] = True
    one(drive, "b")
    note, *others = drive.tell(RoundEnded(), 360.0)
    assert note == Note("prices: found none; expected some; the last allocation stays in effect")
    assert others == [Renew((start.lease,), 720.0), WakeAt(720.0)]


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 1e12, 1e-15])
def test_a_price_that_cannot_be_is_refused(price: float) -> None:
    """An invalid price is refused and changes nothing."""
    drive = driver((1,), even)
    before = state_of(drive.core)
    with pytest.raises(InputError, match="worker type type0: price_usd_per_hour"):
        drive.tell(PriceChanged(0, price))
    assert state_of(drive.core) == before


@pytest.mark.parametrize("policy", ["min_cost", "min_cost_slo"])
def test_a_price_that_becomes_nothing_stops_no_round(policy: str) -> None:
    """A price of zero never stops a round.

    If one type becomes free, jobs move there. If all do, the last allocation holds, with a note.
    """
    drive = driver((1, 1), policy_named(policy), fill=False)
    for kind in (0, 1):
        drive.tell(PriceChanged(kind, 1.0 + kind))
    drive.arrive([(job("a"), (1.0, 1.0))])
    drive.rounds(1)
    assert [lease.column for lease in drive.held.values()] == [0]
    drive.tell(PriceChanged(1, 0.0))
    drive.rounds(1)
    assert [lease.column for lease in drive.held.values()] == [1]
    drive.tell(PriceChanged(0, 0.0))
    note, *_ = drive.tell(RoundEnded(), 720.0)
    assert isinstance(note, Note)
    assert "price_usd_per_hour" in note.text
    assert [lease.column for lease in drive.held.values()] == [1]


@pytest.mark.parametrize("gone", [JobWithdrawn, JobFinished, JobFailed])
def test_who_leaves_a_pair_is_stopped_and_the_other_gets_a_lease_of_its_own(gone: Any) -> None:
    """A job that leaves a pair is stopped; the other gets its own lease next round.

    The lease of two stays unchanged until the round ends. If the second job ends, too, the lease ends.
    """
    drive = driver((1,), pairing, attempts=1)
    drive.core = Core(cluster(1), pairing, Settings(attempts=1), np.full((1, 1, 1), 0.6))
    for name in "ab":
        drive.tell(JobArrived(job(name), (1.0,), 0))
    drive.rounds(1)
    (lease,) = drive.held.values()
    stop, *refused = drive.tell(gone("a"), 100.0)
    assert (type(stop), stop[:2]) == (StopOne, (lease, "a"))
    assert bool(refused) == (gone is JobFailed)
    assert drive.core.floor.placed() == {"b": 0}
    preempt, start, _ = drive.tell(RoundEnded(), 360.0)
    assert preempt == Preempt(lease)
    assert (start.lease.jobs, start.lease.workers) == (("b",), lease.workers)
    (told,) = drive.tell(gone("b"), 400.0)[:1]
    assert (type(told), told[0]) == (Stop, start.lease)


def test_a_first_job_gets_a_round_at_once() -> None:
    """A first job starts at once: the core asks to be woken now.

    The job starts without overhead, for a round of six minutes.
    """
    drive = driver((1,), even)
    assert drive.tell(JobArrived(job("a"), (1.0,)), 50.0) == [WakeAt(50.0)]
    assert drive.tell(JobArrived(job("b"), (1.0,)), 50.0) == []
    start, wake = drive.tell(RoundEnded(), 50.0)
    assert isinstance(start, Start)
    assert (start.lease.jobs, start.overhead_s, start.until_s) == (("a",), (0.0,), 410.0)
    assert wake == WakeAt(410.0)


def test_who_stays_keeps_its_lease_and_who_moves_is_charged() -> None:
    """Renewal keeps the lease number; a preempted job pays overhead when it restarts.

    The overhead is its checkpoint and its restart.
    """
    drive = driver((1,), even, checkpoint_s=3.0, restart_s=4.0)
    one(drive, "a")
    drive.rounds(1)
    (lease,) = drive.held.values()
    assert drive.tell(RoundEnded(), 360.0) == [Renew((lease,), 720.0), WakeAt(720.0)]
    one(drive, "b")
    drive.rounds(1)  # both are due the same, and who came first goes first
    preempt, start, _ = drive.tell(RoundEnded(), 1080.0)
    assert preempt == Preempt(lease)
    assert (start.lease.jobs, start.overhead_s) == (("b",), (0.0,))
    back = next(c for _ in range(9) for c in drive.tell(RoundEnded(), drive.wake_s) if isinstance(c, Start))
    assert (back.lease.jobs, back.overhead_s) == (("a",), (7.0,))


def test_nobody_is_preempted_for_a_job_that_does_not_start() -> None:
    """No job is preempted for a larger job that does not fit.

    A job of three workers waits for a fourth worker that is taken; the running jobs continue.
    """
    policy = fixed(["a", "b", "big"], [ALONE] * 3, [0, 0, 0], [1.0, 1.0, 1.0])
    drive = driver((3,), policy, balance_after=None)
    one(drive, "a")
    one(drive, "b")
    drive.rounds(1)
    one(drive, "big", scale=4)
    for _ in range(10):
        told = drive.tell(RoundEnded(), drive.wake_s)
        assert [type(command) for command in told] == [Renew, WakeAt]


def test_each_who_is_preempted_makes_room_for_who_starts() -> None:
    """In every round of a crowded cluster, freed workers are given to waiting jobs."""
    drive = driver((4, 4), even, per_server=4)
    for k, scale in enumerate([1, 1, 2, 2, 4, 4, 1, 1]):
        one(drive, str(k), scale)
    for _ in range(100):
        assert drive.wake_s is not None
        told = drive.tell(RoundEnded(), drive.wake_s)
        kind = drive.core.columns
        freed = {(kind[c.lease.column].type, w) for c in told if isinstance(c, Preempt) for w in c.lease.workers}
        given_ = {(kind[c.lease.column].type, w) for c in told if isinstance(c, Start) for w in c.lease.workers}
        assert freed <= given_


def test_a_job_that_fails_tries_again_until_it_is_given_up() -> None:
    """A job is given up after three failed attempts in a row.

    Progress between failures resets the count.
    """
    drive = driver((1,), even, attempts=3)
    one(drive, "a")
    for _ in range(2):
        drive.rounds(1)
        (lease,) = drive.held.values()
        assert drive.tell(JobFailed("a", "killed")) == [Stop(lease, "killed"), WakeAt(drive.now_s)]
    drive.progress(a=5e5)
    for _ in range(2):
        drive.rounds(1)
        drive.tell(JobFailed("a", "killed"))
    drive.rounds(1)
    stop, refuse = drive.tell(JobFailed("a", "killed"))
    assert isinstance(stop, Stop)
    assert refuse == Refuse("a", "given up after 3 failed attempts in a row: killed")
    assert drive.core.jobs == ()


def test_a_job_that_shares_goes_on_when_the_other_ends() -> None:
    """The lease of two holds until the round ends.

    Then the remaining job gets its own lease.
    """
    drive = driver((1,), pairing)
    drive.core = Core(cluster(1), pairing, Settings(), np.full((1, 1, 1), 0.6))
    for name in "ab":
        drive.tell(JobArrived(job(name), (1.0,), 0))
    drive.rounds(1)
    (lease,) = drive.held.values()
    assert lease.jobs == ("a", "b")
    assert drive.finish("a", 100.0) == [StopOne(lease, "a", "finished")]
    preempt, start, _ = drive.tell(RoundEnded(), 360.0)
    assert preempt == Preempt(lease)
    assert start.lease.jobs == ("b",)


def test_workers_that_go_take_their_leases_along() -> None:
    """Lost workers end their leases; the job restarts on a remaining worker.

    When workers come back, both jobs run.
    """
    drive = driver((2,), even)
    one(drive, "a")
    one(drive, "b")
    drive.rounds(1)
    hit = next(lease for lease in drive.held.values() if lease.workers == (0,))
    assert drive.tell(WorkersLost(0, (0,)), 10.0) == [Stop(hit, "its workers were lost")]
    drive.rounds(1)
    assert [lease.workers for lease in drive.held.values()] == [(1,)]
    drive.tell(WorkersJoined(0, (0, 5)), drive.now_s)
    drive.rounds(1)
    assert len(drive.held) == 2
    assert drive.core.floor.types[0].workers == 3


def test_a_job_that_can_run_nowhere_is_refused_once_and_the_others_run() -> None:
    """A job that cannot run is refused once, with the policy's reason.

    The refusal is repeated only if the reason changes. When workers join, the job runs.
    """
    drive = driver((2,), max_min_fairness.allocate)
    one(drive, "a")
    one(drive, "big", scale=4)
    drive.rounds(1)
    refusals = [command for _, command in drive.said if isinstance(command, Refuse)]
    assert [command.job for command in refusals] == ["big"]
    assert "4 workers" in refusals[0].reason
    drive.rounds(3)
    assert [command for _, command in drive.said if isinstance(command, Refuse)] == refusals
    drive.tell(WorkersJoined(0, (2, 3)))
    drive.rounds(6)
    assert any(lease.jobs == ("big",) for _, c in drive.said if isinstance(c, Start) for lease in [c.lease])


def test_solver_trouble_leaves_the_last_allocation_and_says_so() -> None:
    """If the solver fails, the last allocation stays in effect, with a note.

    New jobs fill free workers. Later the policy is called again.
    """
    trouble = [False]

    def policy(snapshot: Snapshot) -> Allocation:
        if trouble[0]:
            raise SolverTrouble("fairness: time limit")
        return even(snapshot)

    drive = driver((2,), policy)
    one(drive, "a")
    drive.rounds(1)
    trouble[0] = True
    one(drive, "b")
    told = drive.tell(RoundEnded(), 360.0)
    assert told[0] == Note("fairness: time limit; the last allocation stays in effect")
    assert {lease.jobs for lease in drive.held.values()} == {("a",), ("b",)}
    trouble[0] = False
    assert not any(isinstance(command, Note) for command in drive.tell(RoundEnded(), 720.0))


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        ({}, [1, 1, 2, 2, 2]),
        ({"recompute": "rounds"}, [1, 2, 3, 4, 5]),
        ({"recompute_after_s": 1000.0}, [1, 1, 1, 2, 2]),
    ],
)
def test_when_allocations_are_made(how: dict[str, Any], asked: list[int]) -> None:
    """Allocations follow events, every round, or a minimum delay of 1,000 s.

    A job arrives after the second round.
    """
    calls = [0]

    def policy(snapshot: Snapshot) -> Allocation:
        calls[0] += 1
        return even(snapshot)

    drive = driver((2,), policy, **how)
    one(drive, "a")
    found = []
    for k in range(5):
        drive.rounds(1)
        found.append(calls[0])
        if k == 1:
            one(drive, "b")
    assert found == asked


@pytest.mark.parametrize(("newcomers", "runs"), [("fill", True), ("wait", False)])
def test_newcomers_fill_or_wait_until_the_next_allocation(newcomers: str, runs: bool) -> None:
    """A free worker goes to a newcomer, or stays free, until the next allocation."""
    drive = driver((2,), even, recompute_after_s=800.0, newcomers=newcomers)
    one(drive, "a")
    drive.rounds(1)
    one(drive, "b")
    drive.rounds(1)
    assert any(lease.jobs == ("b",) for lease in drive.held.values()) is runs
    drive.rounds(2)
    assert any(lease.jobs == ("b",) for lease in drive.held.values())


def test_a_refused_job_fills_no_worker_until_the_next_allocation() -> None:
    """A refused job leaves free workers to a newcomer, with a new allocation or the old one."""
    drive = driver((4,), policy_named("allox"), recompute_after_s=800.0)
    one(drive, "two", scale=2)
    one(drive, "one")
    drive.rounds(1)
    assert [lease.jobs for lease in drive.held.values()] == [("one",)]
    one(drive, "new")
    drive.rounds(1)
    assert [lease.jobs for lease in drive.held.values()] == [("one",), ("new",)]


def test_a_policy_is_told_what_happened() -> None:
    """Snapshots contain the current state and the isolated time.

    The state is remaining steps, elapsed time, prices, throughputs and workers.
    """
    seen: list[Snapshot] = []

    def policy(snapshot: Snapshot) -> Allocation:
        seen.append(snapshot)
        return even(snapshot)

    drive = driver((2, 2), policy)
    one(drive, "a", steps=1000.0)
    one(drive, "b", scale=2)
    drive.rounds(1)
    drive.tell(PriceChanged(1, 2.5), 100.0)
    drive.tell(ThroughputMeasured("a", 1, 3.0), 100.0)
    drive.tell(WorkersLost(0, (1,)), 100.0)
    drive.tell(Progressed(("a",), (640.0,)), 360.0)
    drive.tell(RoundEnded(), 360.0)
    last = seen[-1]
    assert last.remaining_steps.tolist() == [640.0, 1e6]
    assert last.elapsed_s.tolist() == [360.0, 360.0]
    assert last.prices.tolist() == [0.0, 2.5]
    assert last.throughputs.tolist() == [[1.0, 3.0], [1.0, 1.0]]
    assert last.workers.tolist() == [1, 2]
    assert [active.isolated_s for active in last.jobs] == [360.0, 0.0]  # half of four workers is more than it can use


@pytest.mark.parametrize("others", [(), ("eight",)])
def test_isolated_time_is_that_of_the_isolated_policy(others: tuple[str, ...]) -> None:
    """Steps done count with the rates of isolated_times, the reference of finish-time fairness.

    A job of four workers cannot use its share of three workers, and a job of eight that runs nowhere has no share.
    """
    seen: list[Snapshot] = []

    def policy(snapshot: Snapshot) -> Allocation:
        seen.append(snapshot)
        return even(snapshot)

    drive = driver((4, 3), policy)
    one(drive, "four", scale=4, steps=1000.0)
    one(drive, "one", steps=1000.0)
    for name in others:
        one(drive, name, scale=8)
    drive.rounds(1)
    drive.tell(Progressed(("four", "one"), (640.0, 700.0)), 360.0)
    one(drive, "new")
    drive.rounds(1)
    rate = (isolated_times(seen[0]) * seen[0].throughputs).sum(axis=1)
    told = [active.isolated_s for active in seen[1].jobs]
    assert told[:2] == pytest.approx([360.0 / rate[0], 300.0 / rate[1]])
    assert set(told[2:]) == {0.0}


def test_sharing_that_was_measured_counts_both_ways() -> None:
    """Measured sharing of two classes is in the next snapshot, in both directions.

    A job without a class shares with no job.
    """
    core = Core(cluster(1), even, None, np.full((2, 2, 1), 0.5))
    core.handle(JobArrived(job("a"), (1.0,), 1), 0.0)
    core.handle(JobArrived(job("b"), (1.0,)), 0.0)
    core.handle(SharingMeasured(0, 1, 0, 0.7, 0.3), 0.0)
    pairs = core.snapshot(0.0).pairs
    assert pairs is not None
    assert pairs.kept[:, :, 0].tolist() == [[0.5, 0.7, 0], [0.3, 0.5, 0], [0, 0, 0]]
    assert pairs.classes.tolist() == [1, 2]


WRONG = [
    (JobArrived(job("a"), (1.0,)), "job a: found a second job with this name"),
    (JobArrived(job("b"), (1.0, 2.0)), "job b: throughputs: found 2; expected 1"),
    (JobArrived(job("b"), (float("nan"),)), "job b: throughputs"),
    (JobFinished("c"), "job c: found no job with this name"),
    (JobFailed("c"), "job c"),
    (JobWithdrawn("c"), "job c"),
    (Progressed(("a",), (0.0,)), "progress: remaining_steps"),
    (Progressed(("a",), ()), "progress: remaining_steps"),
    (Progressed(("a",), (1.0,), (-1.0,)), "progress: busy_s"),
    (Progressed(("a",), (1.0,), (1.0, 2.0)), "progress: busy_s"),
    (Progressed(("c",), (1.0,)), "job c"),
    (WorkersLost(3, (0,)), "workers: type: found 3"),
    (WorkersJoined(0, (-1,)), "workers: found"),
    (WorkersJoined(0, (10**9,)), "workers: found"),
    (PriceChanged(0, -1.0), "price_usd_per_hour"),
    (ThroughputMeasured("a", 1, 1.0), "job a: throughput: column"),
    (ThroughputMeasured("a", 0, float("inf")), "job a: throughput"),
    (SharingMeasured(0, 0, 0, 1.0, 1.0), "sharing"),
]


@pytest.mark.parametrize(("event", "says"), WRONG, ids=[f"{type(e).__name__}-{k}" for k, (e, _) in enumerate(WRONG)])
def test_an_event_that_cannot_be_changes_nothing(event: Any, says: str) -> None:
    """An invalid event raises one clear error and changes nothing."""
    drive = driver((1,), even)
    one(drive, "a")
    drive.rounds(1)
    before = json.dumps(state_of(drive.core))
    with pytest.raises(InputError, match=says):
        drive.core.handle(event, 10.0)
    assert json.dumps(state_of(drive.core)) == before


@pytest.mark.parametrize("now_s", [-1.0, float("nan"), float("inf")])
def test_time_does_not_go_back(now_s: float) -> None:
    """Events must be in time order."""
    drive = driver((1,), even)
    one(drive, "a")
    with pytest.raises(InputError, match="event: time"):
        drive.core.handle(RoundEnded(), now_s)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"round_s": 0.0}, "round_s"),
        ({"checkpoint_s": -1.0}, "checkpoint_s"),
        ({"checkpoint_s": 200.0, "restart_s": 160.0}, "a sum below round_s"),
        ({"order": "fifo"}, "order: found 'fifo'; expected one of ratio, deficit"),
        ({"balance_after": -1.0}, "balance_after"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], says: str) -> None:
    """Invalid settings are refused, with the setting and its valid values."""
    with pytest.raises(InputError, match=says):
        replace(Settings(), **wrong)

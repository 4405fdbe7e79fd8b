"""Uniform progress: meet deadlines at spot prices (Can't Be Late).

A job with a deadline should progress in proportion to time: half of its steps in half of the time. The published
rules follow. C is the time of the remaining work on demand, R is the time until the deadline, and d is the cost of a
move in seconds.

- uniform progress: an idle job that is behind moves to on-demand workers if no spot workers are available;
- taking risks: an idle job moves to available spot workers, ahead or behind, and stays until they are reclaimed;
- hysteresis: a job on on-demand workers moves to spot workers only when its progress has reached the amount due in
  2 d. It stays while there are no spot workers: the authors' program does not return it to waiting, which would cost
  one more move. If moves are free (d = 0), it moves as soon as spot workers are available;
- safety net: with R < C + 2 d, an idle job runs on demand until it completes.

Our additions: decisions are made when rounds begin, so the safety net is one round longer. A lost spot worker loses
the work of the current round. Jobs of one cluster compete: the least slack goes first, then the earliest arrival.
Jobs without a deadline use remaining spot workers, and wait otherwise. A job without a deadline that cannot run on
any spot type, or in a cluster without spot workers, uses remaining on-demand workers. A job without an allocation
waits: free workers are not filled.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import refusal, refusals
from hocket.scheduler.solver.lp.session import Session

__all__ = ["PAPER", "allocate"]

PAPER = "Can't Be Late: Optimizing Spot Instance Savings under Deadlines (Wu et al., NSDI 2024)"
SHARES, ENTITIES = False, False
_NOWHERE = -1
_OFF_SPOT = "a sooner deadline, or fewer spot workers"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation for one round: each job runs all the time or not at all.

    The objective is the cost in dollars per hour.
    """
    refused = refusals(snapshot)
    choice = _Choice(snapshot)
    cases = [_Case(snapshot, j, choice) for j in range(len(snapshot.jobs)) if j not in refused]
    told = [refusal(refused.get(j, "")) for j in range(len(snapshot.jobs))]
    column = np.full(len(snapshot.jobs), _NOWHERE, dtype=np.int64)
    for case in sorted(cases, key=lambda case: case.turn):
        column[case.job], told[case.job] = case.decide(choice)
    jobs = np.flatnonzero(column >= 0)
    paid = float((snapshot.prices[column[jobs]] * snapshot.scale[jobs]).sum())
    entries = jobs, np.full(len(jobs), ALONE), column[jobs], np.ones(len(jobs))
    # Time alone changes a decision only if there is a deadline; without one, the allocation does not expire.
    holds_s = 0.0 if any(case.left_s < float("inf") for case in cases) else float("inf")
    return Allocation(*entries, paid, 0.0, tuple(told), refused, holds_s=holds_s, fill=False)


class _Choice:
    """Free workers, and the choice of workers for each job."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.spot = np.array([own.spot for own in snapshot.types], dtype=bool)[snapshot.type_of]
        self.free = snapshot.workers.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            self.dollars = snapshot.prices * snapshot.scale[:, None] / snapshot.throughputs

    def room(self, job: int, spot: bool) -> np.ndarray:
        """Indices of the columns with enough free workers for the job.

        Arguments:
            spot: True for spot columns, False for on-demand columns.
        """
        there = self.free[self.snapshot.type_of] >= self.snapshot.scale[job]
        return np.flatnonzero(there & (self.spot == spot) & (self.snapshot.throughputs[job] > 0))

    def waits_in_vain(self, job: int) -> bool:
        """True if no type of spot workers, free or not, can run the job."""
        return not (self.spot & (self.snapshot.throughputs[job] > 0)).any()

    def demand_steps(self, job: int) -> float:
        """Steps per second on the fastest on-demand workers.

        Without on-demand workers, the fastest workers of any kind count.
        """
        fits = self.snapshot.workers[self.snapshot.type_of] >= self.snapshot.scale[job]
        steps = np.where(fits, self.snapshot.throughputs[job], 0.0)
        return float(steps[~self.spot].max(initial=0.0)) or float(steps.max())

    def take(self, job: int, columns: np.ndarray, within_s: float | None, now: int) -> int:
        """Take the column with the lowest cost per step, or return _NOWHERE.

        Arguments:
            columns: candidates.
            within_s: time limit in seconds; if some candidate completes within it, others are ignored. If none does,
                the fastest is taken. None for no limit.
            now: current column of the job, or _NOWHERE.
        """
        if not len(columns):
            return _NOWHERE
        if within_s is not None:
            ends_s = self.snapshot.remaining_steps[job] / self.snapshot.throughputs[job, columns]
            in_time = ends_s + np.where(columns == now, 0.0, self.snapshot.changeover_s) <= within_s
            columns = columns[in_time] if in_time.any() else columns[[int(ends_s.argmin())]]
        if now in columns and self.dollars[job, now] <= self.dollars[job, columns].min():
            found = now
        else:
            found = int(columns[self.dollars[job, columns].argmin()])
        self.keep(job, found)
        return found

    def keep(self, job: int, column: int) -> None:
        """Mark the workers of a column as taken by a job."""
        self.free[self.snapshot.type_of[column]] -= self.snapshot.scale[job]


@dataclass(frozen=True)
class _Case:
    """One job, with the rules that choose its column."""

    snapshot: Snapshot
    job: int
    choice: _Choice

    @property
    def now(self) -> int:
        """Current column, or _NOWHERE."""
        return self.snapshot.placed.get(self.snapshot.jobs[self.job].job.id, _NOWHERE)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, negative after it; inf without a deadline."""
        active = self.snapshot.jobs[self.job]
        return float("inf") if active.job.slo_s is None else active.job.slo_s - active.elapsed_s

    @property
    def needs_s(self) -> float:
        """Seconds that the remaining work takes on on-demand workers."""
        return float(self.snapshot.remaining_steps[self.job]) / self.choice.demand_steps(self.job)

    @property
    def spare_s(self) -> float:
        return self.left_s - self.needs_s

    @property
    def turn(self) -> tuple[bool, float, float, str]:
        """Sort key; smaller goes first.

        Keys are unique, so the order of jobs in the snapshot does not matter.
        """
        job = self.snapshot.jobs[self.job].job
        return not self.stays, self.spare_s, job.arrived_s, job.id

    @property
    def on_spot(self) -> bool:
        return self.now >= 0 and bool(self.choice.spot[self.now])

    @property
    def on_demand(self) -> bool:
        """True if the job has a deadline and is on on-demand workers."""
        return self.now >= 0 and not self.on_spot and self.left_s < float("inf")

    @property
    def stays(self) -> bool:
        """True if the job should stay on its spot workers.

        The slack must cover a round and two moves; a round and one move if the spot workers are as fast as on-demand
        workers.
        """
        as_fast = self.on_spot and self.snapshot.throughputs[self.job, self.now] >= self.choice.demand_steps(self.job)
        enough = self.spare_s >= self.snapshot.changeover_s + self.snapshot.round_s if as_fast else not self.pressed
        return self.on_spot and enough and self.snapshot.throughputs[self.job, self.now] > 0

    @property
    def pressed(self) -> bool:
        return self.spare_s < 2 * self.snapshot.changeover_s + self.snapshot.round_s

    def ahead_s(self) -> float:
        """Seconds by which the job is ahead of uniform progress; inf without a deadline."""
        active = self.snapshot.jobs[self.job]
        if active.job.slo_s is None:
            return float("inf")
        return (1 - active.remaining_steps / active.job.steps) * active.job.slo_s - active.elapsed_s

    def decide(self, choice: _Choice) -> tuple[int, Reason]:
        """Choose the job's column (_NOWHERE to wait), mark its workers, give the reason."""
        spot = choice.room(self.job, True)
        if self.stays and self.now in spot:
            choice.keep(self.job, self.now)
            return self.now, Reason(f"it stays on {self._name(self.now)} while that is available", _OFF_SPOT)
        if self.pressed:
            return self._on_demand(choice, "its deadline leaves no time to wait for spot workers")
        ahead_s, changes_s = self.ahead_s(), 2 * self.snapshot.changeover_s
        if self.on_demand and not len(spot):
            return self._on_demand(choice, "no spot workers are available, and it stays until they are")
        if self.on_demand and ahead_s < changes_s and changes_s > 0:
            return self._on_demand(
                choice, f"it stays until it is {changes_s:.0f} s ahead, and it is {ahead_s:.0f} s ahead"
            )
        found = choice.take(self.job, spot, None, self.now)
        if found >= 0:
            return found, Reason(f"{self._name(found)} is available, and {self._spare()}", _OFF_SPOT)
        if self.left_s == float("inf") and choice.waits_in_vain(self.job):
            return self._on_demand(choice, "it has no deadline, and no spot workers to wait for")
        if self.left_s == float("inf"):
            return _NOWHERE, Reason("it has no deadline, and waits for spot workers", "a deadline, or spot workers")
        if ahead_s < 0:
            return self._on_demand(choice, f"no spot workers are available, and it is {-ahead_s:.0f} s behind")
        why = f"it waits for spot workers: it is {ahead_s:.0f} s ahead, and {self._spare()}"
        return _NOWHERE, Reason(why, "spot workers, or a sooner deadline")

    def _on_demand(self, choice: _Choice, why: str) -> tuple[int, Reason]:
        found = choice.take(self.job, choice.room(self.job, False), self.left_s, self.now)
        if found < 0:
            found = choice.take(self.job, choice.room(self.job, True), self.left_s, self.now)
        if found < 0:
            return _NOWHERE, Reason(f"{why}, but no workers are left", "more workers")
        if self.spare_s < 0:
            why = f"its deadline cannot be met: it needs {self.needs_s:.0f} s, and {max(self.left_s, 0):.0f} s are left"
        return found, Reason(f"{why}: it is on {self._name(found)}", "a later deadline, or spot workers")

    def _spare(self) -> str:
        return "it has no deadline" if self.left_s == float("inf") else f"it has {self.spare_s:.0f} s to spare"

    def _name(self, column: int) -> str:
        return self.snapshot.column_name(column)

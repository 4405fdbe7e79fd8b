"""Uniform progress: deadlines at the price of spot workers, which may be gone at any time.

A job with a deadline is to be as far on as the time until it: half of its steps in half of the time. Its rules, as published, where
C is the time that the rest of its work takes on demand, R the time until the deadline and d what a change of workers costs:

- uniform progress: a job that is idle and behind goes on workers on demand when no spot workers are there;
- taking risks: a job that is idle goes on spot workers when they are there, ahead or behind, and stays until they are gone;
- hysteresis: a job on workers on demand goes on spot workers only once it is as far as it is to be in 2 d, and stays as long as there
  are none: the authors' program does not let it wait again, which would cost one more change. Where changing costs nothing (d = 0)
  it goes when they are there;
- safety net: with R < C + 2 d a job that is idle goes on demand to its end.

What is ours: decisions are made when rounds begin, so that the safety net has the length of one more; a spot worker that is lost takes
what was done since then along. Jobs of one cluster compete: who has least time to spare comes first, and of those that have as much
who came first. Jobs without a deadline take spot workers that are left, and wait otherwise; one that runs on no type of spot workers,
or in a cluster without any, takes workers on demand that are left. A job that gets nothing is to wait: workers that are left free are
not given to it.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import refusal, refusals
from hocket.scheduler.solver.lp.session import Session

__all__ = ["PAPER", "allocate"]

PAPER = "Can't Be Late: Optimizing Spot Instance Savings under Deadlines (Wu et al., NSDI 2024)"
_NOWHERE = -1
_OFF_SPOT = "a sooner deadline, or fewer spot workers"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation, all the time or none for each job, until the next round; its objective is what it costs, in dollars an hour."""
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
    # Time alone changes a decision only where there is a deadline: without one the answer holds until something happens.
    holds_s = 0.0 if any(case.left_s < float("inf") for case in cases) else float("inf")
    return Allocation(*entries, paid, 0.0, tuple(told), refused, holds_s=holds_s, fill=False)


class _Choice:
    """Workers that are left, and which of them a job takes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.spot = np.array([own.spot for own in snapshot.types], dtype=bool)[snapshot.type_of]
        self.free = snapshot.workers.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            self.dollars = snapshot.prices * snapshot.scale[:, None] / snapshot.throughputs

    def room(self, job: int, spot: bool) -> np.ndarray:
        """Columns that the job could take now."""
        there = self.free[self.snapshot.type_of] >= self.snapshot.scale[job]
        return np.flatnonzero(there & (self.spot == spot) & (self.snapshot.throughputs[job] > 0))

    def waits_in_vain(self, job: int) -> bool:
        """True if no type of spot workers, free or not, can run the job."""
        return not (self.spot & (self.snapshot.throughputs[job] > 0)).any()

    def demand_steps(self, job: int) -> float:
        """Steps a second on the fastest workers on demand; on any, where there are none."""
        fits = self.snapshot.workers[self.snapshot.type_of] >= self.snapshot.scale[job]
        steps = np.where(fits, self.snapshot.throughputs[job], 0.0)
        return float(steps[~self.spot].max(initial=0.0)) or float(steps.max())

    def take(self, job: int, columns: np.ndarray, within_s: float | None, now: int) -> int:
        """The cheapest for a step of these columns, of those that end in time if there is a time and one does; or none."""
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
        """It has these."""
        self.free[self.snapshot.type_of[column]] -= self.snapshot.scale[job]


@dataclass(frozen=True)
class _Case:
    """One job, and where it is now."""

    snapshot: Snapshot
    job: int
    choice: _Choice

    @property
    def now(self) -> int:
        """Its column, or none."""
        return self.snapshot.placed.get(self.snapshot.jobs[self.job].job.id, _NOWHERE)

    @property
    def left_s(self) -> float:
        """Until the deadline."""
        active = self.snapshot.jobs[self.job]
        return float("inf") if active.job.slo_s is None else active.job.slo_s - active.elapsed_s

    @property
    def needs_s(self) -> float:
        """On demand."""
        return float(self.snapshot.remaining_steps[self.job]) / self.choice.demand_steps(self.job)

    @property
    def spare_s(self) -> float:
        return self.left_s - self.needs_s

    @property
    def turn(self) -> tuple[bool, float, float, str]:
        """What is less goes first; no two jobs are alike, so that it is no matter in which order they are told."""
        job = self.snapshot.jobs[self.job].job
        return not self.stays, self.spare_s, job.arrived_s, job.id

    @property
    def on_spot(self) -> bool:
        return self.now >= 0 and bool(self.choice.spot[self.now])

    @property
    def on_demand(self) -> bool:
        """It is, and has a deadline to be there for."""
        return self.now >= 0 and not self.on_spot and self.left_s < float("inf")

    @property
    def stays(self) -> bool:
        """Whether it is on spot workers and loses no time there against workers on demand, with enough to spare to go on."""
        as_fast = self.on_spot and self.snapshot.throughputs[self.job, self.now] >= self.choice.demand_steps(self.job)
        enough = self.spare_s >= self.snapshot.changeover_s + self.snapshot.round_s if as_fast else not self.pressed
        return self.on_spot and enough and self.snapshot.throughputs[self.job, self.now] > 0

    @property
    def pressed(self) -> bool:
        return self.spare_s < 2 * self.snapshot.changeover_s + self.snapshot.round_s

    def ahead_s(self) -> float:
        """How far its progress is ahead of the deadline's."""
        active = self.snapshot.jobs[self.job]
        if active.job.slo_s is None:
            return float("inf")
        return (1 - active.remaining_steps / active.job.steps) * active.job.slo_s - active.elapsed_s

    def decide(self, choice: _Choice) -> tuple[int, Reason]:
        """Its column, and why."""
        spot = choice.room(self.job, True)
        if self.stays and self.now in spot:
            choice.keep(self.job, self.now)
            return self.now, Reason(f"it stays on {self._name(self.now)} as long as that is there", _OFF_SPOT)
        if self.pressed:
            return self._on_demand(choice, "its deadline leaves no time to wait for spot workers")
        ahead_s, changes_s = self.ahead_s(), 2 * self.snapshot.changeover_s
        if self.on_demand and not len(spot):
            return self._on_demand(choice, "no spot workers are there, and it stays until they are")
        if self.on_demand and ahead_s < changes_s and changes_s > 0:
            return self._on_demand(choice, f"it stays until it is {changes_s:.0f} s ahead, and it is {ahead_s:.0f} s")
        found = choice.take(self.job, spot, None, self.now)
        if found >= 0:
            return found, Reason(f"{self._name(found)} is there, and {self._spare()}", _OFF_SPOT)
        if self.left_s == float("inf") and choice.waits_in_vain(self.job):
            return self._on_demand(choice, "it has no deadline, and no spot workers to wait for")
        if self.left_s == float("inf"):
            return _NOWHERE, Reason("it has no deadline, and waits for spot workers", "a deadline, or spot workers")
        if ahead_s < 0:
            return self._on_demand(choice, f"no spot workers are there, and it is {-ahead_s:.0f} s behind")
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

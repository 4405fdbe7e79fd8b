"""Uniform progress: deadlines at the price of spot workers, which may be gone at any time.

A job with a deadline is to be as far on as the time until it: half of its steps in half of the time. Then

- a job on spot workers stays as long as they are there, and any other moves to them when they are;
- without them, a job that is behind goes on workers on demand, and stays until it is ahead by two changes of workers;
- a job that is ahead waits, as long as it can still be finished on demand in time; when that is as long as its work and two
  changes, it goes on demand to its end.

Jobs without a deadline take spot workers that are left, and wait otherwise. Who has least time to spare comes first. A spot type
is one whose name says so, or that is named; its workers are those that can be had now.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason
from hocket.cluster.policies._refusals import refusal, refusals
from hocket.cluster.session import Session
from hocket.cluster.snapshot import Snapshot
from hocket.errors import InputError, nearest

__all__ = ["PAPER", "allocate"]

PAPER = "Can't Be Late: Optimizing Spot Instance Savings under Deadlines (Wu et al., NSDI 2024)"
_NOWHERE = -1


def allocate(
    snapshot: Snapshot,
    session: Session | None = None,
    spot: Collection[str] | None = None,
    placed: Mapping[str, int] | None = None,
    changeover_s: float = 0.0,
    round_s: float = 0.0,
) -> Allocation:
    """The allocation, all the time or none for each job; its objective is what it costs, in dollars an hour.

    Arguments:
        spot: names of types that may be gone at any time; None for those with "spot" in their names.
        placed: columns of jobs that run, by id.
        changeover_s: that a job loses when it goes on other workers.
        round_s: until the policy is asked again, at most.

    Raises:
        InputError: there is no type of a name in spot.
    """
    refused = refusals(snapshot)
    choice = _Choice(snapshot, _spot_columns(snapshot, spot), changeover_s)
    cases = [
        _Case(snapshot, j, choice, (placed or {}).get(snapshot.jobs[j].job.id, _NOWHERE), changeover_s, round_s)
        for j in range(len(snapshot.jobs))
        if j not in refused
    ]
    told = [refusal(refused.get(j, "")) for j in range(len(snapshot.jobs))]
    column = np.full(len(snapshot.jobs), _NOWHERE, dtype=np.int64)
    for case in sorted(cases, key=lambda case: (not case.stays, case.spare_s, case.job)):
        column[case.job], told[case.job] = case.decide(choice)
    jobs = np.flatnonzero(column >= 0)
    paid = float((snapshot.prices[column[jobs]] * snapshot.scale[jobs]).sum())
    entries = jobs, np.full(len(jobs), ALONE), column[jobs], np.ones(len(jobs))
    return Allocation(*entries, paid, 0.0, tuple(told), refused)


def _spot_columns(snapshot: Snapshot, spot: Collection[str] | None) -> np.ndarray:
    names = [own.name for own in snapshot.types]
    for name in spot or ():
        if name not in names:
            raise InputError("spot", repr(name), "the name of a worker type", nearest(name, names))
    is_spot = np.array([("spot" in name.lower()) if spot is None else name in spot for name in names], dtype=bool)
    return is_spot[snapshot.type_of] if len(names) else np.zeros(0, dtype=bool)


class _Choice:
    """Workers that are left, and which of them a job takes."""

    def __init__(self, snapshot: Snapshot, spot: np.ndarray, changeover_s: float) -> None:
        self.snapshot, self.spot, self.changeover_s = snapshot, spot, changeover_s
        self.free = snapshot.workers.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            self.dollars = snapshot.prices * snapshot.scale[:, None] / snapshot.throughputs

    def room(self, job: int, spot: bool) -> np.ndarray:
        """Columns that the job could take now."""
        there = self.free[self.snapshot.type_of] >= self.snapshot.scale[job]
        return np.flatnonzero(there & (self.spot == spot) & (self.snapshot.throughputs[job] > 0))

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
            in_time = ends_s + np.where(columns == now, 0.0, self.changeover_s) <= within_s
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
    now: int
    changeover_s: float
    round_s: float

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
    def on_spot(self) -> bool:
        return self.now >= 0 and bool(self.choice.spot[self.now])

    @property
    def stays(self) -> bool:
        """Whether it is on spot workers and loses no time there against workers on demand, with enough to spare to go on."""
        as_fast = self.on_spot and self.snapshot.throughputs[self.job, self.now] >= self.choice.demand_steps(self.job)
        enough = self.spare_s >= self.changeover_s + self.round_s if as_fast else not self.pressed
        return self.on_spot and enough

    @property
    def pressed(self) -> bool:
        return self.spare_s < 2 * self.changeover_s + self.round_s

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
            return self.now, Reason(f"it stays on {self._name(self.now)} as long as that is there")
        if self.pressed:
            return self._on_demand(choice, "its deadline leaves no time to wait for spot workers")
        found = choice.take(self.job, spot, None, self.now)
        if found >= 0:
            return found, Reason(f"{self._name(found)} is there, and {self._spare()}")
        if self.left_s == float("inf"):
            return _NOWHERE, Reason("it has no deadline, and waits for spot workers", "a deadline, or spot workers")
        on_demand = self.now >= 0 and not self.on_spot
        ahead_s = self.ahead_s()
        if ahead_s < 0:
            return self._on_demand(choice, f"no spot workers are there, and it is {-ahead_s:.0f} s behind")
        if on_demand and ahead_s < 2 * self.changeover_s:
            return self._on_demand(choice, "no spot workers are there, and it is not far enough ahead to stop")
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

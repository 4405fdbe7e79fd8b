"""Deadlines: choose which deadlines to keep if not all can be met.

A linear program minimizes the unmet demand. If some demand is unmet, the program's duals price the demand of each job
and give a lower bound of the number of jobs to give up. That many of the most expensive jobs are given up, and this is
repeated until the demands of the other jobs can be met. Then the given-up jobs are tried again in order of arrival,
and kept if they fit, so no further job could be added. Finding the minimum number of jobs to give up is hard; the
bound from the first program limits the distance to it.
"""

from dataclasses import dataclass, field

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.min_cost_demand import Served

_LACKING = 1e-11  # unmet demand that counts as 0, as a fraction of a group's maximum throughput
_CERTAIN = 1e-8  # lower bound of unmet demand above which demands count as infeasible


def due(snapshot: Snapshot) -> tuple[np.ndarray, dict[int, str]]:
    """Demand of each job with a deadline, and jobs past their deadline.

    Returns:
        Steps per second that each job needs to meet its deadline, 0 for no deadline or a past one; reason by job
            index, for jobs past their deadline.
    """
    demand, over = np.zeros(len(snapshot.jobs)), {}
    for j, active in enumerate(snapshot.jobs):
        if active.job.slo_s is None:
            continue
        left_s = active.job.slo_s - active.elapsed_s
        if left_s > 0:
            demand[j] = active.remaining_steps / left_s
        else:
            over[j] = f"its deadline was {abs(left_s):.0f} s ago"
    return demand, over


def ahead(snapshot: Snapshot, exact: np.ndarray) -> np.ndarray:
    """Demands, in steps per second, for completion one round before each deadline.

    Scheduling rounds follow an allocation to within half a round, so with exact demands a job would be late half of
    the time. A demand never exceeds the job's throughput on its fastest workers unless the exact demand does. Less
    than two rounds before its deadline, a job is to complete in half of the remaining time.

    Arguments:
        exact: demands from `due`.
    """
    left_s = np.divide(snapshot.remaining_steps, exact, out=np.full(len(exact), np.inf), where=exact > 0)
    early = np.divide(exact, 1 - np.minimum(snapshot.round_s / left_s, 0.5))
    return np.maximum(exact, np.minimum(early, snapshot.able.max(axis=1, initial=0.0)))


def alone(lines: GroupLines, demand: np.ndarray) -> dict[int, str]:
    """Reason by job index, for jobs that would be late even on their fastest workers.

    Arguments:
        demand: steps per second needed, by job.
    """
    shares = lines.shares
    fastest = np.append(lines.fastest, np.inf)[shares.group]
    found = {}
    for j in np.flatnonzero(demand > fastest * (1 + 1e-12)).tolist():
        remaining = shares.snapshot.remaining_steps[j]
        needs_s, left_s = remaining / fastest[j], remaining / demand[j]
        found[j] = f"always on its fastest workers it needs {needs_s:.0f} s, and its deadline is in {left_s:.0f} s"
    return found


@dataclass
class _Bounds:
    """Known lower bounds of unmet demand; a bound > 0 proves demands infeasible.

    Attributes:
        known: constant, rows and row prices of each bound: constant + prices @ rows.asked(demand).
    """

    known: list[tuple[float, LineCuts, np.ndarray]] = field(default_factory=list)

    def learn(self, served: Served, demand: np.ndarray) -> float:
        """Store the bound from the duals of the last solution.

        Arguments:
            demand: demands of the last solution, in steps per second, by job.

        Returns:
            The constant of the bound.
        """
        assert served.solution is not None
        rest = served.solution.bound - float(served.prices @ served.cuts.asked(demand))
        self.known.append((rest, served.cuts, served.prices))
        return rest

    def broken(self, demand: np.ndarray) -> bool:
        """True if these demands are known to be infeasible."""
        return any(rest + prices @ cuts.asked(demand) > _CERTAIN for rest, cuts, prices in self.known)


def together(lines: GroupLines, demand: np.ndarray, place: str) -> tuple[np.ndarray, int]:
    """Choose jobs to give up, so that the other demands can be met.

    Arguments:
        demand: steps per second, by job.
        place: name of the program in error messages.

    Returns:
        Mask of the given-up jobs, shape (jobs,); and a lower bound of the number of jobs that must be given up.
    """
    cuts = lines.start(demand)
    most = float(cuts.asked(demand).max(initial=0.0))
    served = Served(cuts, np.zeros(lines.shares.variables), place, most)
    bounds = _Bounds()
    gone = np.zeros(len(demand), dtype=bool)
    floor: int | None = None
    while True:
        left = np.where(gone, 0.0, demand)
        found = served.ask(left)
        if found.objective <= _LACKING:
            break
        rest = bounds.learn(served, left)
        each = served.cuts.by_job(left, served.prices)
        order = np.argsort(-each, kind="stable")
        many = int((rest + each.sum() - np.cumsum(each[order]) > 0).sum()) + 1
        floor = many if floor is None else floor
        gone[order[:many]] = True
    if gone.any():
        _again(np.flatnonzero(gone), gone, demand, served, bounds)
    return gone, floor or 0


def _again(block: np.ndarray, gone: np.ndarray, demand: np.ndarray, served: Served, bounds: _Bounds) -> None:
    """Keep the jobs of a block that fit after all, the first jobs first.

    A block that does not fit is divided into halves.

    Arguments:
        block: indices of given-up jobs.
        gone: mask of the given-up jobs, updated in place.
        demand: steps per second, by job.
    """
    tried = gone.copy()
    tried[block] = False
    left = np.where(tried, 0.0, demand)
    if not bounds.broken(left):
        if served.ask(left).objective <= _LACKING:
            gone[block] = False
            return
        bounds.learn(served, left)
    if len(block) > 1:
        _again(block[: len(block) // 2], gone, demand, served, bounds)
        _again(block[len(block) // 2 :], gone, demand, served, bounds)

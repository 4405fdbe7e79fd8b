"""Deadlines: which of them can be met together, and which jobs are not asked to.

Where all cannot be met, the duals of what is lacking give a price to each job's demand, and with it a bound: whatever else is
done, so many of the dearest have to go. These go, until the others fit. Then those that went are asked again, in the order in
which they came, and stay if they fit after all: so no job of the rest could be added. The least number of jobs to give up is
hard to find; by the bound of the first program it is known how far from it this can be.
"""

from dataclasses import dataclass, field

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.min_cost_demand import Served

_LACKING = 1e-11  # of what a group could do in all
_CERTAIN = 1e-8  # by so much a bound has to be broken before it is believed


def due(snapshot: Snapshot) -> tuple[np.ndarray, dict[int, str]]:
    """Steps a second that each job needs to meet its deadline, 0 without; and jobs whose deadline is over, with the reason."""
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
    """The same a round early: rounds keep an allocation to half a round, so one that meets a deadline exactly is late half the time.

    What a job cannot reach on its fastest workers is not asked for; less than two rounds before the deadline half of the time left is.

    Arguments:
        exact: what `due` says.
    """
    left_s = np.divide(snapshot.remaining_steps, exact, out=np.full(len(exact), np.inf), where=exact > 0)
    early = np.divide(exact, 1 - np.minimum(snapshot.round_s / left_s, 0.5))
    return np.maximum(exact, np.minimum(early, snapshot.able.max(axis=1, initial=0.0)))


def alone(lines: GroupLines, demand: np.ndarray) -> dict[int, str]:
    """Jobs that would be late even if they were always on the workers that they are fastest on, with the reason."""
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
    """What is known to be too much: by these duals some demand lacks."""

    known: list[tuple[float, LineCuts, np.ndarray]] = field(default_factory=list)

    def learn(self, served: Served, demand: np.ndarray) -> float:
        """What the last answer, to this demand, shows; what it is besides what rows ask for is returned."""
        assert served.solution is not None
        rest = served.solution.bound - float(served.prices @ served.cuts.asked(demand))
        self.known.append((rest, served.cuts, served.prices))
        return rest

    def broken(self, demand: np.ndarray) -> bool:
        """Whether it is known that these demands cannot be met."""
        return any(rest + prices @ cuts.asked(demand) > _CERTAIN for rest, cuts, prices in self.known)


def together(lines: GroupLines, demand: np.ndarray, place: str) -> tuple[np.ndarray, int]:
    """Which jobs' demands to give up so that the others can be met, and how many have to go at least.

    Arguments:
        demand: steps a second, by job. place: for messages.

    Returns:
        A mask of shape (jobs,), and a number.
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
    """Take back those of a block of jobs that fit after all, the first of them first."""
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

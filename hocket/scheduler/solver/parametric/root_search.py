"""Root search: smallest pace p at which all demands can be met.

A job's demand at pace p is remaining / (p * due - elapsed), which decreases in p. The pace is a finish-time fairness,
or, with due 1 and elapsed 0, a makespan in seconds. The unmet demand is the value of a linear program with right
sides convex in p, so it is convex in p. The duals at one p bound it at every other p; the next p is where their bound
is 0. All iterates are below the solution and converge quickly, which proves that no smaller p is feasible.
Source: Newton's method on the value function of a linear program (Dinkelbach 1967 for the linear-fractional case).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hocket.scheduler.solver.lp.linear_program import Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.infeasibility_prices import looks
from hocket.scheduler.solver.parametric.min_cost_demand import PriorSolution, Served, without_slack

_STEPS = 100
_LACKING = 1e-11  # part of a group's maximum throughput
_CLOSE = 1e-12
_NEAR = 1e-9  # relative tolerance of bounds from known duals


@dataclass(frozen=True, eq=False)
class DemandAtPace:
    """Demands of jobs at a pace; arrays by job."""

    remaining: np.ndarray
    due: np.ndarray
    elapsed: np.ndarray

    def demand(self, pace: float) -> np.ndarray:
        """Steps per second needed by each job."""
        return self.remaining / (pace * self.due - self.elapsed)

    def change(self, pace: float) -> np.ndarray:
        """Derivative of the demands with respect to the pace."""
        return -self.demand(pace) * self.due / (pace * self.due - self.elapsed)

    def alone(self, steps: np.ndarray) -> np.ndarray:
        """Pace of each job at constant throughputs; shape (jobs,)."""
        return (self.elapsed + self.remaining / steps) / self.due


@dataclass(frozen=True, eq=False)
class LeastPace:
    """Minimum pace, with its rows, duals, and the final state of its program.

    The duals of the limits are from the last infeasible pace.
    """

    pace: float
    cuts: LineCuts
    duals: np.ndarray
    prior: PriorSolution = field(default_factory=PriorSolution)


@dataclass(frozen=True, eq=False)
class Kept:
    """Times that keep a pace, the demands at it, and the rows with their prices."""

    solution: Solution
    demand: np.ndarray
    cuts: LineCuts
    prices: np.ndarray


def least(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float = 0.0, session: Session | None = None
) -> LeastPace:
    """Compute the minimum pace.

    Arguments:
        place: name for messages.
        above: known lower bound of the pace.
        session: session with a warm start, if known.
    """
    shares = lines.shares
    limits = len(shares.limits.lower)
    runs = shares.group >= 0
    now = max(above, slowest(lines, pace))
    demand = np.where(runs, pace.demand(now), 0.0)
    cuts = lines.start(demand)
    # Demands decrease with the pace, so unmet demand never exceeds this.
    most = float(cuts.asked(demand).max(initial=0.0))
    served = Served(cuts, np.zeros(shares.variables), place, most, session)
    duals = np.zeros(limits)
    before = served.known(demand)
    while before is not None:
        duals = before[:limits]
        later = _beyond(served, pace, before, now, served.bound(before, demand))
        if later <= now * (1 + _NEAR):
            break
        now = later
        demand = np.where(runs, pace.demand(now), 0.0)
        before = served.known(demand)
    for _ in range(_STEPS):
        demand = np.where(runs, pace.demand(now), 0.0)
        found = served.ask(demand)
        later = now
        if found.objective > _LACKING:
            duals = found.duals[:limits]
            later = _beyond(served, pace, found.duals, now, found.bound)
        if later <= now * (1 + _CLOSE):
            served.keep()
            return LeastPace(later, served.cuts, duals, PriorSolution(without_slack(found), served.scarce()))
        now = later
    raise SolverTrouble(f"{place}: no solution after {_STEPS} steps")


def slowest(lines: GroupLines, pace: DemandAtPace) -> float:
    """Lower bound of the pace: slowest job, if each runs on its fastest workers."""
    shares = lines.shares
    return float(pace.alone(np.append(lines.fastest, 1.0)[shares.group])[shares.group >= 0].max())


def outset(lines: GroupLines, pace: DemandAtPace) -> float:
    """Lower bound of the pace, from the slowest job or from worker prices."""
    shares = lines.shares
    runs = shares.group >= 0
    now = slowest(lines, pace)

    def wanted() -> np.ndarray:
        return np.bincount(shares.group[runs], pace.demand(now)[runs], shares.groups)

    for cost, worth in looks(shares, wanted):
        each = np.append(cost, 0.0)[shares.group]

        def dear(at: float, each: np.ndarray = each, worth: float = worth) -> tuple[float, float]:
            return float(each @ pace.demand(at)) - worth, float(each @ pace.change(at))

        now = root(dear, now)
    return now


def _beyond(served: Served, pace: DemandAtPace, duals: np.ndarray, now: float, bound: float) -> float:
    """Pace up to which these duals prove unmet demand.

    Arguments:
        duals: duals of all rows.
        bound: unmet demand at the current pace, by these duals.
    """
    cuts, limits = served.cuts, len(served.cuts.lines.shares.limits.lower)
    runs = cuts.lines.shares.group >= 0
    prices = np.maximum(duals[limits:], 0.0)
    rest = bound - float(prices @ cuts.asked(np.where(runs, pace.demand(now), 0.0)))

    def lacks(at: float) -> tuple[float, float]:
        demand, change = np.where(runs, pace.demand(at), 0.0), np.where(runs, pace.change(at), 0.0)
        return rest + float(prices @ cuts.asked(demand)), float(prices @ cuts.slopes(demand, change))

    return root(lacks, now)


def root(function: Callable[[float], tuple[float, float]], start: float) -> float:
    """Zero of a decreasing convex function, approached from the left.

    Arguments:
        function: returns value and slope.
    """
    at = start
    for _ in range(_STEPS):
        value, slope = function(at)
        if value <= 0 or slope >= 0:
            return at
        step = -value / slope
        at += step
        if step <= _CLOSE * at / 4:
            return at
    return at


def at_pace(served: Served, pace: DemandAtPace, now: float) -> Kept:
    """Minimum-cost times that meet all demands at a feasible pace."""
    runs = served.cuts.lines.shares.group >= 0
    for room in (1e-9, 1e-8, 1e-7):
        demand = np.where(runs, pace.demand(now * (1 + room)), 0.0)
        try:
            solution = served.ask(demand)
        except Infeasible:
            continue
        served.keep()
        return Kept(solution, demand, served.cuts, served.prices)
    raise SolverTrouble(f"{served.place}: a pace of {now} is infeasible, against its bound")

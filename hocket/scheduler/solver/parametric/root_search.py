"""Pace: the least number p at which every job can have the throughput that p leaves it to ask for.

A job asks for remaining / (p * due - elapsed), which falls as p grows: p is a finish-time fairness, or, with due 1 and
elapsed 0, a makespan in seconds. By how much demands lack is the value of a linear program whose right sides are convex in p,
so it is convex in p itself, and the duals of one p bound it at every other: where their bound is 0 is the next p, below the
answer always, and quickly near it. So the answer comes with a proof: no p below is enough.
Source: Newton's method on the value function of a linear program (Dinkelbach 1967 for the linear-fractional case).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hocket.scheduler.solver.dual.separable_program import Stand
from hocket.scheduler.solver.lp.linear_program import Basis, Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.infeasibility_prices import looks
from hocket.scheduler.solver.parametric.min_cost_demand import Served, without_slack

_STEPS = 100
_LACKING = 1e-11  # of what a group could do in all
_CLOSE = 1e-12
_NEAR = 1e-9  # of a pace: what is known shows no more


@dataclass(frozen=True, eq=False)
class DemandAtPace:
    """What jobs ask for at a pace; arrays by job."""

    remaining: np.ndarray
    due: np.ndarray
    elapsed: np.ndarray

    def demand(self, pace: float) -> np.ndarray:
        """Steps a second of each job."""
        return self.remaining / (pace * self.due - self.elapsed)

    def change(self, pace: float) -> np.ndarray:
        """Of demands with the pace."""
        return -self.demand(pace) * self.due / (pace * self.due - self.elapsed)

    def alone(self, steps: np.ndarray) -> np.ndarray:
        """The pace of each job if it always does so many steps a second; shape (jobs,)."""
        return (self.elapsed + self.remaining / steps) / self.due


@dataclass(frozen=True, eq=False)
class LeastPace:
    """The least pace, rows that matter at it, the limits' duals where it last was too little, and a basis."""

    pace: float
    cuts: LineCuts
    duals: np.ndarray
    basis: Basis | None = None
    start: Stand | None = None


@dataclass(frozen=True, eq=False)
class Kept:
    """Times that keep a pace, what jobs ask for at it, rows that matter and their prices."""

    solution: Solution
    demand: np.ndarray
    cuts: LineCuts
    prices: np.ndarray


def least(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float = 0.0, session: Session | None = None
) -> LeastPace:
    """The least pace.

    Arguments:
        place: for messages. above: it is known to be no less. session: where to begin, if it is known there.
    """
    shares = lines.shares
    limits = len(shares.limits.lower)
    runs = shares.group >= 0
    now = max(above, slowest(lines, pace))
    demand = np.where(runs, pace.demand(now), 0.0)
    cuts = lines.start(demand)
    # Demands fall as the pace grows: no more than this will ever lack.
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
            return LeastPace(later, served.cuts, duals, without_slack(found), served.scarce())
        now = later
    raise SolverTrouble(f"{place}: {_STEPS} steps were not enough")


def slowest(lines: GroupLines, pace: DemandAtPace) -> float:
    """The pace of the slowest job if each is always on the workers that it is fastest on: there is none below."""
    shares = lines.shares
    return float(pace.alone(np.append(lines.fastest, 1.0)[shares.group])[shares.group >= 0].max())


def outset(lines: GroupLines, pace: DemandAtPace) -> float:
    """A pace below which there is none, by the slowest job alone or by prices of workers."""
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
    """The pace up to which these duals show that something lacks.

    Arguments:
        duals: of all rows. bound: what lacks at the pace now, by them.
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
    """Where a convex function that falls is 0, from the left; it gives its value and slope."""
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
    """Times of least cost at which every job has what it asks for at a pace, which is the least there is or above."""
    runs = served.cuts.lines.shares.group >= 0
    for room in (1e-9, 1e-8, 1e-7):
        demand = np.where(runs, pace.demand(now * (1 + room)), 0.0)
        try:
            solution = served.ask(demand)
        except Infeasible:
            continue
        served.keep()
        return Kept(solution, demand, served.cuts, served.prices)
    raise SolverTrouble(f"{served.place}: nothing keeps a pace of {now}, which its bound says can be")

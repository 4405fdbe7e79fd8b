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

from hocket.cluster.policies._lines import Cuts, Lines, best, lack, without_slack
from hocket.cluster.policies._lp import Basis, Infeasible, Solution, SolverTrouble
from hocket.cluster.session import Session

_STEPS = 100
_LACKING = 1e-11  # of what a group could do in all
_CLOSE = 1e-12


@dataclass(frozen=True, eq=False)
class Pace:
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
class Found:
    """The least pace, rows that matter at it, and their prices and the limits' duals where it last was too little, a basis."""

    pace: float
    cuts: Cuts
    prices: np.ndarray
    duals: np.ndarray
    basis: Basis | None = None


@dataclass(frozen=True, eq=False)
class Kept:
    """Times that keep a pace, what jobs ask for at it, rows that matter and their prices."""

    solution: Solution
    demand: np.ndarray
    cuts: Cuts
    prices: np.ndarray


def least(lines: Lines, pace: Pace, place: str, above: float = 0.0, session: Session | None = None) -> Found:
    """The least pace.

    Arguments:
        place: for messages. above: it is known to be no less. session: where to begin, if it is known there.
    """
    shares = lines.shares
    limits = len(shares.limits.lower)
    runs = shares.group >= 0
    now = max(above, float(pace.alone(np.append(lines.fastest, 1.0)[shares.group])[runs].max()))
    cuts = lines.start(np.where(runs, pace.demand(now), 0.0))
    prices, duals = np.zeros(len(cuts.group)), np.zeros(limits)
    basis: Basis | None = None
    for _ in range(_STEPS):
        demand = np.where(runs, pace.demand(now), 0.0)
        found, cuts, lacking = lack(cuts, demand, place, basis, session)
        basis = found.basis
        if found.objective <= _LACKING:
            return Found(now, cuts, np.pad(prices, (0, len(cuts.group) - len(prices))), duals, without_slack(found))
        prices, duals = lacking, found.duals[:limits]
        rest = found.bound - float(prices @ cuts.asked(demand))

        def bound(at: float, cuts: Cuts = cuts, prices: np.ndarray = prices, rest: float = rest) -> tuple[float, float]:
            demand, change = np.where(runs, pace.demand(at), 0.0), np.where(runs, pace.change(at), 0.0)
            return rest + float(prices @ cuts.asked(demand)), float(prices @ cuts.slopes(demand, change))

        later = root(bound, now)
        if later <= now * (1 + _CLOSE):
            return Found(later, cuts, prices, duals, without_slack(found))
        now = later
    raise SolverTrouble(f"{place}: {_STEPS} steps were not enough")


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


def at_pace(cuts: Cuts, pace: Pace, now: float, cost: np.ndarray, place: str, basis: Basis | None = None) -> Kept:
    """Times of least cost at which every job has what it asks for at a pace, which is the least there is or above.

    Arguments:
        basis: of an answer for the same rows, to begin from.
    """
    runs = cuts.lines.shares.group >= 0
    for room in (1e-9, 1e-8, 1e-7):
        demand = np.where(runs, pace.demand(now * (1 + room)), 0.0)
        try:
            solution, rows, prices = best(cuts, demand, cost, place, basis)
        except Infeasible:
            continue
        return Kept(solution, demand, rows, prices)
    raise SolverTrouble(f"{place}: nothing keeps a pace of {now}, which its bound says can be")

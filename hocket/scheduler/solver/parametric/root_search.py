"""Root search: smallest pace p at which all demands can be met.

At pace p, a job completes p * due seconds after its arrival. Its demand is remaining / (p * due - elapsed) steps per
second, which decreases in p. The pace is a finish-time fairness, or, with due 1 and elapsed 0, a makespan in seconds.

The minimum unmet demand is the value of a linear program with right sides convex in p, so it is convex in p. The duals
at one p bound the unmet demand at every other p; the next p is where this bound is 0. The iterates approach the
solution from below and converge quickly. This proves that no smaller p is feasible.
Source: Newton's method on the value function of a linear program (Dinkelbach 1967 for the linear-fractional case).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hocket.scheduler.solver.lp.linear_program import Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.infeasibility_prices import looks
from hocket.scheduler.solver.parametric.min_cost_demand import PriorSolution, Served, without_slack

_STEPS = 100
_LACKING = 1e-11  # unmet demand that counts as 0, as a fraction of a group's maximum throughput
_CLOSE = 1e-12  # relative tolerance of equal paces
_NEAR = 1e-9  # relative tolerance of bounds from known duals
_PROVED = 1e-6  # relative tolerance of the demand that duals prove to be the most
_PRICE = 1e-9  # duals of workers up to this count as 0
_PART = 1e-9  # part of the priced demand that counts as 0


@dataclass(frozen=True, eq=False)
class DemandAtPace:
    """Demand of each job as a function of the pace; arrays by job.

    Attributes:
        remaining: remaining training steps.
        due: seconds from arrival to completion at pace 1.
        elapsed: seconds since arrival.
    """

    remaining: np.ndarray
    due: np.ndarray
    elapsed: np.ndarray

    def demand(self, pace: float) -> np.ndarray:
        """Steps per second that each job needs at a pace."""
        return self.remaining / (pace * self.due - self.elapsed)

    def change(self, pace: float) -> np.ndarray:
        """Derivative of the demands with respect to the pace."""
        return -self.demand(pace) * self.due / (pace * self.due - self.elapsed)

    def alone(self, steps: np.ndarray) -> np.ndarray:
        """Pace of each job at the constant throughput `steps`, in steps per second."""
        return (self.elapsed + self.remaining / steps) / self.due


@dataclass(frozen=True, eq=False)
class LeastPace:
    """Minimum pace.

    Attributes:
        pace: the minimum pace.
        cuts: demand rows of the program of unmet demand.
        full: mask of the worker types with a price in the proof of the pace; none if a job alone sets it.
        critical: mask of the jobs with priced demand in this proof: only they keep the pace from being smaller.
        prior: warm start for a minimum-cost program with the same rows.
    """

    pace: float
    cuts: LineCuts
    full: np.ndarray
    critical: np.ndarray
    prior: PriorSolution = field(default_factory=PriorSolution)

    def after(self, before: "LeastPace | None") -> "LeastPace":
        """Minimum pace with the proof of an earlier search, if it found the same pace and this one has no proof.

        Arguments:
            before: minimum pace of the same jobs in fewer groups; None for none.
        """
        if before is None or self.critical.any() or before.pace < self.pace * (1 - _NEAR):
            return self
        return replace(self, full=before.full, critical=before.critical)


@dataclass(frozen=True, eq=False)
class Kept:
    """Solution that keeps a pace.

    Attributes:
        solution: values of the variables.
        demand: steps per second of each job at the pace.
        cuts: demand rows of the program.
        prices: price (dual, >= 0) of each demand row.
    """

    solution: Solution
    demand: np.ndarray
    cuts: LineCuts
    prices: np.ndarray


def least(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float = 0.0, session: Session | None = None
) -> LeastPace:
    """Compute the minimum pace.

    Arguments:
        lines: groups of jobs and their options.
        pace: demand of each job as a function of the pace.
        place: name of the program in error messages.
        above: known lower bound of the pace.
        session: stored warm starts; None for no session.

    Raises:
        SolverTrouble: the search does not converge, or the solver failed.
    """
    shares = lines.shares
    runs = shares.group >= 0
    now = max(above, slowest(lines, pace))
    demand = np.where(runs, pace.demand(now), 0.0)
    cuts = lines.start(demand)
    # Demands decrease with the pace, so the unmet demand never exceeds this value of the first pace.
    most = float(cuts.asked(demand).max(initial=0.0))
    served = Served(cuts, np.zeros(shares.variables), place, most, session)
    known: list[np.ndarray] = []
    before = served.known(demand)
    while before is not None:
        known = [before]
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
            known = [found.duals]
            later = _beyond(served, pace, found.duals, now, found.bound)
        if later <= now * (1 + _CLOSE):
            served.keep()
            proof = _proof(served, demand, [*known, found.duals])
            return LeastPace(later, served.cuts, *proof, PriorSolution(without_slack(found), served.scarce()))
        now = later
    raise SolverTrouble(f"{place}: no solution after {_STEPS} steps")


def _proof(served: Served, demand: np.ndarray, known: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the worker types and jobs with a price in the first duals that prove a pace.

    Duals of an earlier call or pace may prove less; the masks are then empty.

    Arguments:
        demand: steps per second of each job at the pace.
        known: duals of all rows.
    """
    cuts, limits = served.cuts, len(served.cuts.lines.shares.limits.lower)
    for duals in known:
        prices = np.zeros(len(cuts.group))  # rows that were added later have no price
        own = duals[limits : limits + len(prices)]
        prices[: len(own)] = np.maximum(own, 0.0)
        parts = cuts.by_job(demand, prices)
        most = float(parts.sum())
        if most > 0 and served.bound(np.concatenate([duals[:limits], prices]), demand) >= -_PROVED * most:
            return np.abs(duals[cuts.lines.shares.groups : limits]) > _PRICE, parts > _PART * most
    return np.zeros(limits - cuts.lines.shares.groups, dtype=bool), np.zeros(len(demand), dtype=bool)


def slowest(lines: GroupLines, pace: DemandAtPace) -> float:
    """Lower bound of the pace: the slowest job, if each runs on its fastest workers."""
    shares = lines.shares
    return float(pace.alone(np.append(lines.fastest, 1.0)[shares.group])[shares.group >= 0].max())


def outset(lines: GroupLines, pace: DemandAtPace) -> float:
    """Lower bound of the pace, from the slowest job or from duals of the worker types (worker prices)."""
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
    """Pace up to which these duals prove that some demand is unmet.

    Arguments:
        duals: duals of all rows.
        now: current pace.
        bound: lower bound of the unmet demand at the current pace, from these duals.
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
        start: point at or to the left of the zero. If the value there is not positive, the result is `start`.
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
    """Minimum-cost solution that meets all demands at a feasible pace.

    The demands are those of a pace that is larger by a factor of 1 + 1e-9 to 1 + 1e-7, because of rounding.

    Raises:
        SolverTrouble: even the largest of these paces is infeasible, or the solver failed.
    """
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

"""Minimum cost with deadlines: maximize throughput per dollar, meet all SLOs.

Objective and prices are as in min_cost.py. A job with `remaining` steps and t seconds to its deadline has a
throughput of at least remaining / t. In a simulation with rounds, the deadline is one round earlier, which
compensates for the lag of rounds behind the allocation. If not all deadlines can be met this way, the exact deadlines
are used. If deadlines conflict, some are given up: these jobs run without a deadline and get a reason (deadlines.py).
With `ratio`, the objective is total throughput over total cost. This linear-fractional program is solved as a
sequence of linear programs; it uses only cheap workers beyond the needs of deadlines. The policy that Gavel's authors
published takes an SLO as seconds from now, and drops all deadlines if it cannot meet all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import cost_per_hour, priced
from hocket.scheduler.solver.lp.linear_program import Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.to_allocation import answer, reasons
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.deadlines import ahead, alone, due, together
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.min_cost_demand import Served
from hocket.scheduler.solver.space_sharing.column_generation import ColumnObjective, ColumnSolution, Roles, many
from hocket.scheduler.solver.space_sharing.residuals import CRUMB, with_crumbs
from hocket.scheduler.solver.space_sharing.time_windows import spread

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation sections 6.4.2 and 6.4.3; ratio: Dinkelbach 1967"
SHARES, ENTITIES = True, False
_PLACE = "least cost with deadlines"
_STEPS = 100
_ENOUGH = 1e-9  # relative tolerance of demands
_CONFLICT = "deadlines of other jobs leave it too few workers"


def allocate(snapshot: Snapshot, session: Session | None = None, ratio: bool = False) -> Allocation:
    """Allocation with the maximum throughput per dollar under deadlines.

    The objective is the sum of throughputs over prices, in steps per second per dollar per hour.

    Arguments:
        ratio: True to maximize total throughput over total cost; the gap is then of the last linear program.

    Raises:
        InputError: no type has a price.
    """
    prices = priced(snapshot)
    exact, over = due(snapshot)
    unlike = many(snapshot) is not None and not ratio
    for demand in (ahead(snapshot, exact), exact) if snapshot.round_s > 0 and exact.any() else (exact,):
        deadlines = _Deadlines(demand, dict(over), firm=demand is exact)
        if unlike:
            found = _by_roles(snapshot, prices, deadlines)
        else:
            found = _by_lines(snapshot, prices, deadlines, ratio, session)
        if found is not None:
            break
    assert found is not None  # the last iteration gives up deadlines
    return found


@dataclass
class _Deadlines:
    """Deadlines to meet, and those given up; updated during the search.

    Attributes:
        demand: steps per second that meet the deadline, by job; 0 without a deadline, or if it is given up.
        late: reasons of given-up deadlines, by job.
        firm: True to give up deadlines that conflict, False to find no allocation instead.
    """

    demand: np.ndarray
    late: dict[int, str]
    firm: bool

    def give_up(self, why: dict[int, str]) -> None:
        """Give up the deadlines of some jobs, with the reason of each."""
        self.late |= why
        self.demand[list(why)] = 0.0

    def reasons(self, shares: AllocationVariables, plain: Sequence[Reason]) -> tuple[Reason, ...]:
        """Reasons of all jobs, with the effect of deadlines.

        Arguments:
            plain: reason of each job, without regard to deadlines.
        """
        told = list(plain)
        for j in np.flatnonzero(self.demand > 0).tolist():
            needs = f"its deadline needs {self.demand[j]:.4g} steps per second"
            told[j] = Reason(f"{needs}; {plain[j].binding}", plain[j].change)
        for j, why in self.late.items():
            if shares.group[j] >= 0:
                told[j] = Reason(f"its deadline is given up: {why}", "a later deadline, or more workers")
        return tuple(told)

    def note(self, shares: AllocationVariables, floor: int) -> str:
        """Note on given-up deadlines of jobs that can run.

        Arguments:
            floor: minimum number of conflicting deadlines to give up.
        """
        late = [why for j, why in self.late.items() if shares.group[j] >= 0]
        conflicts = late.count(_CONFLICT)
        told = []
        if len(late) > conflicts:
            told.append(f"{len(late) - conflicts} that cannot be met at all")
        if conflicts:
            told.append(f"{conflicts} in conflict with other deadlines, of which at least {floor} could not be kept")
        return f"deadlines are given up: {'; '.join(told)}" if told else ""


def _by_lines(
    snapshot: Snapshot, prices: np.ndarray, deadlines: _Deadlines, ratio: bool, session: Session | None
) -> Allocation | None:
    """Allocation that meets the deadlines.

    If deadlines conflict, some are given up if `deadlines.firm`; otherwise the result is None.

    Arguments:
        prices: dollars per hour of one worker, by column.
        ratio: True to maximize total throughput over total cost; False for the sum of throughputs over prices.
    """
    demand = deadlines.demand
    apart, floor = np.zeros(len(snapshot.jobs)), 0
    for _ in range(_STEPS):
        shares = AllocationVariables(snapshot, (apart,))
        lines = GroupLines(shares)
        demand[shares.group < 0] = 0.0
        deadlines.give_up(alone(lines, demand))
        worth = (shares.steps_first + shares.steps_second) / prices[shares.column]
        try:
            solution, objective = _ratio(lines, demand, prices) if ratio else _sum(lines, demand, worth, session)
        except Infeasible:
            if not deadlines.firm:
                return None
            gone, least = together(lines, demand, _PLACE)
            if not gone.any():
                demand *= 1 - 1e-9  # feasible within the solver's tolerance, so leave a little slack
            floor = max(floor, least)
            deadlines.give_up(dict.fromkeys(np.flatnonzero(gone).tolist(), _CONFLICT))
            continue
        entries, torn = spread(lines, solution.x, demand)
        if not torn:
            break
        apart[torn] = np.array(torn) + 1.0
    else:
        raise SolverTrouble(f"{_PLACE}: no solution after {_STEPS} steps")
    plain = answer(shares, solution.x, solution.duals, objective, solution.gap)
    told = Reasons(len(demand), lambda: deadlines.reasons(shares, plain.reasons))
    return Allocation(*entries, objective, solution.gap, told, shares.refused, deadlines.note(shares, floor))


def _by_roles(snapshot: Snapshot, prices: np.ndarray, deadlines: _Deadlines) -> Allocation | None:
    """Solve as `_by_lines` does, but with column generation, for many distinct jobs.

    The most expensive of conflicting deadlines are given up and not reconsidered.
    """
    assert snapshot.pairs is not None
    demand, floor = deadlines.demand, 0
    while True:
        shares = many(snapshot, (demand,))
        assert shares is not None
        lines = GroupLines(shares)
        demand[shares.group < 0] = 0.0
        hopeless = alone(lines, demand)
        if hopeless:
            deadlines.give_up(hopeless)
            continue
        worth = np.tile(1 / prices, (shares.groups, 1))
        unit = float((worth[shares.first, shares.column] * shares.steps_first).max()) or 1.0
        asked = np.where(demand[shares.member] > CRUMB * lines.fastest, demand[shares.member], 0.0)
        roles = Roles(shares, snapshot.pairs, ColumnObjective(worth / unit))
        if (asked > 0).any():
            roles.after(ColumnObjective(np.zeros(shares.groups), asked))
            found = roles.best(_PLACE)
            if -found.objective < 1 - _ENOUGH:
                if not deadlines.firm:
                    return None
                gone = _dearest(found, asked, shares.count)
                floor = floor or int(shares.count[gone].sum())
                jobs = np.flatnonzero(np.isin(shares.group, gone))
                deadlines.give_up(dict.fromkeys(jobs.tolist(), _CONFLICT))
                continue
            roles.after(ColumnObjective(worth / unit, asked * min(1.0, -found.objective) * (1 - _ENOUGH), kept=True))
        found = roles.best(_PLACE)
        found = replace(found, entries=with_crumbs(lines, demand, found.entries, snapshot))
        return _told(shares, found, unit, deadlines, floor)


def _told(
    shares: AllocationVariables, found: ColumnSolution, unit: float, deadlines: _Deadlines, floor: int
) -> Allocation:
    gap = max(0.0, found.objective - found.bound) / max(1.0, abs(found.objective))
    plain = reasons(shares, found.duals)
    told = Reasons(len(deadlines.demand), lambda: deadlines.reasons(shares, plain))
    notes = "; ".join(part for part in (deadlines.note(shares, floor), found.note) if part)
    return Allocation(*found.entries, -found.objective * unit, gap, told, shares.refused, notes)


def _dearest(found: ColumnSolution, asked: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Indices of the groups to give up, so that prices no longer prove conflicts.

    Arguments:
        asked: demand of a job of each group, in steps per second.
        count: number of jobs of each group.
    """
    each = found.prices * asked * count
    order = np.argsort(-each, kind="stable")
    over = each.sum() - np.cumsum(each[order]) > -found.bound * each.sum()
    return order[: int(over.sum()) + 1]


def _sum(lines: GroupLines, demand: np.ndarray, worth: np.ndarray, session: Session | None) -> tuple[Solution, float]:
    unit = float(worth.max(initial=0.0)) or 1.0
    served = Served(lines.start(demand), -worth / unit, _PLACE, None, session)
    solution = served.ask(demand)
    served.keep()
    return solution, -solution.objective * unit


def _ratio(lines: GroupLines, demand: np.ndarray, prices: np.ndarray) -> tuple[Solution, float]:
    """Maximum ratio of total throughput to total cost, by Dinkelbach's method.

    The optimum is the r at which the maximum of throughput - r cost is 0.
    """
    shares = lines.shares
    steps, cost = shares.steps_first + shares.steps_second, cost_per_hour(shares, prices)
    unit = float(steps.max(initial=0.0)) or 1.0
    cuts, reached = lines.start(demand), 0.0
    for _ in range(_STEPS):
        served = Served(cuts, -(steps - reached * cost) / unit, _PLACE)
        solution, cuts = served.ask(demand), served.cuts
        paid = float(cost @ solution.x)
        now = float(steps @ solution.x) / paid if paid > 0 else reached
        if now <= reached * (1 + 1e-12):
            return solution, reached
        reached = now
    raise SolverTrouble(f"{_PLACE}: no solution after {_STEPS} steps")

"""Least cost with deadlines: as much throughput for a dollar as there can be while every job that has a deadline meets it.

Objective and prices are those of min_cost.py; a job of remaining steps whose deadline is in t seconds has a throughput of at
least remaining / t. In rounds the deadline is taken to be a round sooner, which makes up for what rounds are behind an allocation;
where not all deadlines can be met so, it is taken as it is. Where deadlines conflict, the jobs that are given up are told why and take part without (deadlines.py).
With `ratio` the objective is all throughput over all that is paid, a program linear over linear, solved as a sequence of linear
ones: cheap workers only, beyond what deadlines need.
The public policy takes seconds from now as they are given, and drops all deadlines if it cannot meet them all.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import cost_per_hour, priced
from hocket.scheduler.solver.lp.linear_program import Infeasible, Solution, SolverTrouble
from hocket.scheduler.solver.lp.session import Session, answered
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
_PLACE = "least cost with deadlines"
_STEPS = 100
_ENOUGH = 1e-9  # relative: what lacks so little is there
_CONFLICT = "deadlines of others leave it too little"


def allocate(snapshot: Snapshot, session: Session | None = None, ratio: bool = False) -> Allocation:
    """The allocation; its objective is the sum of throughputs over prices, steps a second for a dollar an hour.

    Arguments:
        ratio: the objective is to be the sum of throughputs over the sum of what is paid; its gap is that of the last program.

    Raises:
        InputError: no type has a price.
    """
    return answered(session, snapshot, lambda: _allocate(snapshot, ratio, session))


def _allocate(snapshot: Snapshot, ratio: bool, session: Session | None) -> Allocation:
    prices = priced(snapshot)
    exact, over = due(snapshot)
    unlike = many(snapshot) is not None and not ratio
    for demand in (ahead(snapshot, exact), exact) if snapshot.round_s > 0 and exact.any() else (exact,):
        late = dict(over)
        firm = demand is exact
        if unlike:
            found = _by_roles(snapshot, prices, demand, late, firm)
        else:
            found = _by_lines(snapshot, prices, demand, late, firm, ratio, session)
        if found is not None:
            break
    assert found is not None  # the last one gives up deadlines
    return found


def _by_lines(
    snapshot: Snapshot,
    prices: np.ndarray,
    demand: np.ndarray,
    late: dict[int, str],
    firm: bool,
    ratio: bool,
    session: Session | None,
) -> Allocation | None:
    """The allocation that meets demands; None where they are not firm and conflict."""
    apart, floor = np.zeros(len(snapshot.jobs)), 0
    for _ in range(_STEPS):
        shares = AllocationVariables(snapshot, (apart,))
        lines = GroupLines(shares)
        demand[shares.group < 0] = 0.0
        hopeless = alone(lines, demand)
        late |= hopeless
        demand[list(hopeless)] = 0.0
        worth = (shares.steps_first + shares.steps_second) / prices[shares.column]
        try:
            solution, objective = _ratio(lines, demand, prices) if ratio else _sum(lines, demand, worth, session)
        except Infeasible:
            if not firm:
                return None
            gone, least = together(lines, demand, _PLACE)
            if not gone.any():
                demand *= 1 - 1e-9  # they fit to the solver's tolerance, and it needs a little room
            floor = max(floor, least)
            late |= dict.fromkeys(np.flatnonzero(gone).tolist(), _CONFLICT)
            demand[gone] = 0.0
            continue
        entries, torn = spread(lines, solution.x, demand)
        if not torn:
            break
        apart[torn] = np.array(torn) + 1.0
    else:
        raise SolverTrouble(f"{_PLACE}: {_STEPS} steps were not enough")
    plain = answer(shares, solution.x, solution.duals, objective, solution.gap)
    told = Reasons(len(demand), lambda: _reasons(shares, plain.reasons, demand, late))
    note = _note([why for j, why in late.items() if shares.group[j] >= 0], floor)
    return Allocation(*entries, objective, solution.gap, told, shares.refused, note)


def _by_roles(
    snapshot: Snapshot, prices: np.ndarray, demand: np.ndarray, late: dict[int, str], firm: bool
) -> Allocation | None:
    """The same where many unlike jobs share: of deadlines in conflict the dearest go, and none is asked again."""
    assert snapshot.pairs is not None
    floor = 0
    while True:
        shares = many(snapshot, (demand,))
        assert shares is not None
        lines = GroupLines(shares)
        demand[shares.group < 0] = 0.0
        hopeless = alone(lines, demand)
        if hopeless:
            late |= hopeless
            demand[list(hopeless)] = 0.0
            continue
        worth = np.tile(1 / prices, (shares.groups, 1))
        unit = float((worth[shares.first, shares.column] * shares.steps_first).max()) or 1.0
        asked = np.where(demand[shares.member] > CRUMB * lines.fastest, demand[shares.member], 0.0)
        roles = Roles(shares, snapshot.pairs, ColumnObjective(worth / unit))
        if (asked > 0).any():
            roles.after(ColumnObjective(np.zeros(shares.groups), asked))
            found = roles.best(_PLACE)
            if -found.objective < 1 - _ENOUGH:
                if not firm:
                    return None
                gone = _dearest(found, asked, shares.count)
                floor = floor or int(shares.count[gone].sum())
                jobs = np.flatnonzero(np.isin(shares.group, gone))
                late |= dict.fromkeys(jobs.tolist(), _CONFLICT)
                demand[jobs] = 0.0
                continue
            roles.after(ColumnObjective(worth / unit, asked * min(1.0, -found.objective) * (1 - _ENOUGH), kept=True))
        found = roles.best(_PLACE)
        found = replace(found, entries=with_crumbs(lines, demand, found.entries, snapshot))
        return _told(shares, found, unit, demand, late, floor)


def _told(
    shares: AllocationVariables,
    found: ColumnSolution,
    unit: float,
    demand: np.ndarray,
    late: dict[int, str],
    floor: int,
) -> Allocation:
    gap = max(0.0, found.objective - found.bound) / max(1.0, abs(found.objective))
    plain = reasons(shares, found.duals)
    told = Reasons(len(demand), lambda: _reasons(shares, plain, demand, late))
    note = _note([why for j, why in late.items() if shares.group[j] >= 0], floor)
    notes = "; ".join(part for part in (note, found.note) if part)
    return Allocation(*found.entries, -found.objective * unit, gap, told, shares.refused, notes)


def _dearest(found: ColumnSolution, asked: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Groups without which the answer's prices no longer show that the others ask for too much."""
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
    """All throughput over all cost: the number r at which the most of throughput - r cost is 0."""
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
    raise SolverTrouble(f"{_PLACE}: {_STEPS} steps were not enough")


def _reasons(
    shares: AllocationVariables, plain: Sequence[Reason], demand: np.ndarray, late: dict[int, str]
) -> tuple[Reason, ...]:
    told = list(plain)
    for j in np.flatnonzero(demand > 0).tolist():
        told[j] = Reason(f"its deadline asks for {demand[j]:.4g} steps a second; {plain[j].binding}", plain[j].change)
    for j, why in late.items():
        if shares.group[j] >= 0:
            told[j] = Reason(f"its deadline is given up: {why}", "a later deadline, or more workers")
    return tuple(told)


def _note(late: list[str], floor: int) -> str:
    conflicts = late.count(_CONFLICT)
    told = []
    if len(late) > conflicts:
        told.append(f"{len(late) - conflicts} that nothing can meet")
    if conflicts:
        told.append(f"{conflicts} for those of others, of which at least {floor} had to go")
    return f"deadlines are given up: {'; '.join(told)}" if told else ""

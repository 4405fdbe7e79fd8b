"""Makespan within a budget: all jobs are finished as early as the money allows.

At a makespan of M seconds job m has a throughput of at least remaining / M, and what is used in M seconds costs no more than
the budget. The dissertation halves the range of M until it is small. Here the least M without a budget comes first; then, as
long as M is too dear, the duals of the cheapest way to keep M bound the cost of every longer one, and the next M is the least
at which that bound is within the budget. So every M on the way is below the answer, and the last one is it.
Without a budget it is the makespan policy. All that runs is paid for until the end, as in the dissertation's formula.

What was spent before is no longer there: a scheduler that asks again has what is left. Where that has become less than what the rest
costs at least, by work that was lost or jobs that came, all goes on where it costs least, and the allocation says so. Workers that
are left free are not given to anybody: they cost, too.
"""

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import HOUR_S, cost_per_hour
from hocket.scheduler.solver.lp.linear_program import LinearProgram, SolverTrouble, solve
from hocket.scheduler.solver.lp.rejected import refusal
from hocket.scheduler.solver.lp.session import Session, answered
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.min_cost_demand import Served
from hocket.scheduler.solver.parametric.root_search import DemandAtPace, Kept, LeastPace, at_pace, least, root
from hocket.scheduler.solver.space_sharing.time_windows import spread

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.3"
_PLACE = "makespan within a budget"
_STEPS = 100
_CLOSE = 1e-9  # relative: money that does not matter
_LITTLE = 1e-12  # of what all costs


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the seconds until the last job that can run is finished.

    Raises:
        InputError: nothing is spent, and no time is long enough to finish all jobs within the budget.
    """
    return answered(session, snapshot, lambda: _allocate(snapshot, session))


def _allocate(snapshot: Snapshot, session: Session | None) -> Allocation:
    jobs = len(snapshot.jobs)
    pace = DemandAtPace(snapshot.remaining_steps, np.ones(jobs), np.zeros(jobs))
    apart, above = np.zeros(jobs), 0.0
    while True:
        shares = AllocationVariables(snapshot, (apart,))
        lines = GroupLines(shares)
        if not shares.groups:
            empty = np.zeros(0, dtype=np.int64)
            reasons = tuple(refusal(shares.refused[j]) for j in range(jobs))
            return Allocation(empty, empty, empty, np.zeros(0), 0.0, 0.0, reasons, shares.refused)
        found = least(lines, pace, _PLACE, above, session)
        left_usd, note = _left(lines, snapshot)
        kept, above, dear = _within(lines, found, pace, left_usd, session)
        entries, torn = spread(lines, kept.solution.x, kept.demand)
        if not torn:
            break
        apart[torn] = np.array(torn) + 1.0
    plain = Allocation(*entries, 0.0, 0.0, (), shares.refused)
    runs = shares.group >= 0
    with np.errstate(divide="ignore"):
        ends_s = pace.alone(plain.throughput(snapshot))
    last_s = float(ends_s[runs].max())
    gap = max(kept.solution.gap, last_s / above - 1)
    told = Reasons(jobs, lambda: _reasons(lines, found, pace, ends_s, dear))
    return Allocation(*entries, last_s, gap, told, shares.refused, note, fill=snapshot.budget_usd is None)


def _left(lines: GroupLines, snapshot: Snapshot) -> tuple[float | None, str]:
    """What may be spent, and what is wrong with it.

    Raises:
        InputError: nothing is spent yet, and it is not enough.
    """
    if snapshot.budget_usd is None:
        return None, ""
    dearest = _least_cost_usd(lines, cost_per_hour(lines.shares) / HOUR_S)
    left_usd = snapshot.budget_usd - snapshot.spent_usd
    if left_usd >= dearest * (1 - _CLOSE):
        return left_usd, ""
    if snapshot.spent_usd > 0:
        return (
            dearest,
            "what is left of the budget is less than what the jobs cost at least: they run where they cost least",
        )
    wanted = f"{dearest:.2f} or more, which the jobs cost at least"
    raise InputError("budget_usd", f"{snapshot.budget_usd:.2f}", wanted, "Raise the budget, or take jobs out")


def _within(
    lines: GroupLines, found: LeastPace, pace: DemandAtPace, budget_usd: float | None, session: Session | None
) -> tuple[Kept, float, bool]:
    """What costs least at the least makespan that is within the budget, that makespan, and whether the budget made it longer."""
    cost = cost_per_hour(lines.shares) / HOUR_S
    unit = float(cost.max()) or 1.0
    now = found.pace
    # What workers were worth for the pace alone says little of what they are worth in money: the basis is a better beginning.
    served = Served(found.cuts, cost / unit, _PLACE, None, session, found.basis)
    demand = np.where(lines.shares.group >= 0, pace.demand(now), 0.0)
    before = served.known(demand)
    if before is not None and budget_usd is not None:
        prices = np.maximum(before[len(lines.shares.limits.lower) :], 0.0)
        rest = served.bound(before, demand) - float(prices @ served.cuts.asked(demand))
        now = max(_affordable(served.cuts, prices, rest, pace, now, budget_usd * (1 + _CLOSE / 2) / unit), now)
    proved = now
    for _ in range(_STEPS):
        kept = at_pace(served, pace, now)
        paid_usd = float(cost @ kept.solution.x) * now
        if budget_usd is None or paid_usd <= budget_usd * (1 + _CLOSE):
            return kept, proved, now > found.pace
        # Half of the tolerance: where a longer makespan is no cheaper, the bound is all rounding.
        rest = kept.solution.bound - float(kept.prices @ kept.cuts.asked(kept.demand))
        later = _affordable(kept.cuts, kept.prices, rest, pace, now, budget_usd * (1 + _CLOSE / 2) / unit)
        if later > now:
            proved = later
        # An answer may cost a little more than its bound shows: then a little more time.
        now = max(later, now * (1 + _CLOSE))
    raise SolverTrouble(f"{_PLACE}: {_STEPS} steps were not enough")


def _affordable(
    cuts: LineCuts, prices: np.ndarray, rest: float, pace: DemandAtPace, now: float, budget: float
) -> float:
    """The least makespan at which these prices of rows do not show that it costs more than the budget.

    Arguments:
        rest: what a second costs by them besides what rows ask for.
    """
    runs = cuts.lines.shares.group >= 0

    def dearness(at: float) -> tuple[float, float]:
        demand, change = np.where(runs, pace.demand(at), 0.0), np.where(runs, pace.change(at), 0.0)
        rate = rest + float(prices @ cuts.asked(demand))
        return at * rate - budget, rate + at * float(prices @ cuts.slopes(demand, change))

    return root(dearness, now)


def _least_cost_usd(lines: GroupLines, cost: np.ndarray) -> float:
    """What all jobs cost if there is no hurry: every group's work is done where it is cheapest."""
    shares = lines.shares
    runs = shares.group >= 0
    work = np.bincount(shares.group[runs], shares.snapshot.remaining_steps[runs], shares.groups)
    rows = lines.group
    if len(rows) == shares.variables:  # nobody shares: each by itself
        return float(work @ np.minimum.reduceat(cost[lines.variable] / lines.steps, lines.begins[:-1]))
    # Jobs that cost next to nothing are left out: beside others of days their figures are out of the solver's range.
    cheapest = work * np.minimum.reduceat(cost[lines.variable] / lines.steps, lines.begins[:-1])
    dear = (cheapest > _LITTLE * cheapest.sum())[rows]
    rows, variable = rows[dear], lines.variable[dear]
    values = lines.steps[dear] / work[rows]
    longest = np.zeros(shares.variables)
    np.maximum.at(longest, variable, 1 / values)
    unit = float((cost * longest).max()) or 1.0
    # In units of the longest that any of it can take, so that figures are near 1.
    program = LinearProgram(
        cost * longest / unit,
        np.zeros(shares.variables),
        np.ones(shares.variables),
        np.isin(np.arange(shares.groups), rows).astype(float),
        np.full(shares.groups, np.inf),
        rows,
        variable,
        values * longest[variable],
    )
    return solve(program, _PLACE).bound * unit


def _reasons(
    lines: GroupLines, found: LeastPace, pace: DemandAtPace, ends_s: np.ndarray, dear: bool
) -> tuple[Reason, ...]:
    shares = lines.shares
    types = shares.snapshot.types
    own_s = pace.alone(np.append(lines.fastest, 1.0)[shares.group])
    last_s = ends_s[shares.group >= 0].max()
    full = [types[k].name for k in np.flatnonzero(np.abs(found.duals[shares.groups :]) > 1e-9).tolist()]
    told, sooner = [], "an earlier end of the last one"
    for j, group in enumerate(shares.group.tolist()):
        if group < 0:
            told.append(refusal(shares.refused[j]))
        elif ends_s[j] < last_s * (1 - 1e-6):
            told.append(Reason(f"it is finished in {ends_s[j]:.0f} s, before the last one", sooner))
        elif dear:
            told.append(Reason("the budget: sooner would cost more", "a larger budget"))
        elif own_s[j] >= last_s * (1 - 1e-6):
            told.append(Reason(f"even always on its fastest workers it needs {own_s[j]:.0f} s", "faster workers"))
        elif not full:
            told.append(Reason("it need not end before the last one, and sooner would cost no less", sooner))
        else:
            names = " and ".join(full)
            told.append(Reason(f"all jobs are to end together, and {names} are full", f"more workers of {names}"))
    return tuple(told)

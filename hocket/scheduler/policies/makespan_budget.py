"""Makespan within a budget: the earliest completion that the budget allows.

At a makespan of M seconds, job m has a throughput of at least remaining / M, and the cost of M seconds of the
allocation is within the budget. Narayanan's dissertation bisects M. Here the minimum M without a budget comes first.
While M is too expensive, the duals of the cheapest way to reach M give a lower bound of the cost of every longer
makespan, and the next M is the smallest with a bound within the budget. So no M is above the answer, and the search
ends at the answer. Without a budget, this is the makespan policy. As in the dissertation's formula, each worker of the
allocation is paid for all M seconds, even if its job ends earlier.

Money spent earlier reduces the budget of the next call. If lost work or new jobs raise the minimum cost above the
remaining budget, all jobs run where they cost least, and the allocation has a note. Free workers are not filled,
because they would cost money.
"""

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.hourly_cost import HOUR_S, cost_per_hour
from hocket.scheduler.solver.lp.linear_program import LinearProgram, SolverTrouble, solve
from hocket.scheduler.solver.lp.rejected import refusal
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines, LineCuts
from hocket.scheduler.solver.parametric.min_cost_demand import PriorSolution, Served
from hocket.scheduler.solver.parametric.root_search import DemandAtPace, Kept, LeastPace, at_pace, least, root
from hocket.scheduler.solver.space_sharing.time_windows import spread

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 6.4.3"
SHARES, ENTITIES = True, False
_PLACE = "makespan within a budget"
_STEPS = 100
_CLOSE = 1e-9  # relative tolerance of costs
_LITTLE = 1e-12  # fraction of the total cost that counts as negligible


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the minimum makespan within the budget.

    The objective is the number of seconds until the last job that can run completes.

    Raises:
        InputError: nothing is spent yet, and no makespan completes all jobs within the budget.
    """
    jobs = len(snapshot.jobs)
    pace = DemandAtPace(snapshot.remaining_steps, np.ones(jobs), np.zeros(jobs))
    apart, above = np.zeros(jobs), 0.0
    before: LeastPace | None = None
    while True:
        shares = AllocationVariables(snapshot, (apart,))
        lines = GroupLines(shares)
        if not shares.groups:
            empty = np.zeros(0, dtype=np.int64)
            reasons = tuple(refusal(shares.refused[j]) for j in range(jobs))
            return Allocation(empty, empty, empty, np.zeros(0), 0.0, 0.0, reasons, shares.refused)
        before = found = least(lines, pace, _PLACE, above, session).after(before)
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
    """Remaining budget in dollars, and a note if it is too small.

    Raises:
        InputError: nothing is spent yet, and the budget is below the minimum cost.
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
            "the remaining budget is below the minimum cost of the jobs: they run where they cost least",
        )
    wanted = f"{dearest:.2f} or more, the minimum cost of the jobs"
    raise InputError("budget_usd", f"{snapshot.budget_usd:.2f}", wanted, "Raise the budget or remove jobs.")


def _within(
    lines: GroupLines, found: LeastPace, pace: DemandAtPace, budget_usd: float | None, session: Session | None
) -> tuple[Kept, float, bool]:
    """Cheapest solution at the minimum makespan within the budget.

    Arguments:
        found: minimum makespan without a budget.
        pace: demand of each job as a function of the makespan.
        budget_usd: budget in dollars; None for no budget.

    Returns:
        The solution; a proven lower bound of the makespan; True if the budget made the makespan longer.
    """
    cost = cost_per_hour(lines.shares) / HOUR_S
    unit = float(cost.max()) or 1.0
    now = found.pace
    # Prices of workers for the makespan say little about costs; the basis is the better warm start.
    served = Served(found.cuts, cost / unit, _PLACE, None, session, PriorSolution(found.prior.basis))
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
        # Half of the tolerance: if a longer makespan is not cheaper, the bound is only rounding.
        rest = kept.solution.bound - float(kept.prices @ kept.cuts.asked(kept.demand))
        later = _affordable(kept.cuts, kept.prices, rest, pace, now, budget_usd * (1 + _CLOSE / 2) / unit)
        if later > now:
            proved = later
        # A solution may cost slightly more than its bound; then the makespan grows slightly.
        now = max(later, now * (1 + _CLOSE))
    raise SolverTrouble(f"{_PLACE}: no solution after {_STEPS} steps")


def _affordable(
    cuts: LineCuts, prices: np.ndarray, rest: float, pace: DemandAtPace, now: float, budget: float
) -> float:
    """Smallest makespan that the row prices do not prove too expensive.

    Arguments:
        prices: dual price of each row.
        rest: lower bound of the cost of a second, apart from the priced demands of the rows.
        now: makespan in seconds at which the search starts.
        budget: budget, in the unit of the costs.
    """
    runs = cuts.lines.shares.group >= 0

    def dearness(at: float) -> tuple[float, float]:
        demand, change = np.where(runs, pace.demand(at), 0.0), np.where(runs, pace.change(at), 0.0)
        rate = rest + float(prices @ cuts.asked(demand))
        return at * rate - budget, rate + at * float(prices @ cuts.slopes(demand, change))

    return root(dearness, now)


def _least_cost_usd(lines: GroupLines, cost: np.ndarray) -> float:
    """Minimum cost of all jobs without a time limit, in dollars.

    Every group's work is done where it is cheapest.

    Arguments:
        cost: dollars per second of each variable's time.
    """
    shares = lines.shares
    runs = shares.group >= 0
    work = np.bincount(shares.group[runs], shares.snapshot.remaining_steps[runs], shares.groups)
    rows = lines.group
    if len(rows) == shares.variables:  # no space sharing: groups are independent
        return float(work @ np.minimum.reduceat(cost[lines.variable] / lines.steps, lines.begins[:-1]))
    # Jobs of negligible cost are omitted: next to jobs of days, their coefficients exceed the solver's range.
    cheapest = work * np.minimum.reduceat(cost[lines.variable] / lines.steps, lines.begins[:-1])
    dear = (cheapest > _LITTLE * cheapest.sum())[rows]
    rows, variable = rows[dear], lines.variable[dear]
    values = lines.steps[dear] / work[rows]
    longest = np.zeros(shares.variables)
    np.maximum.at(longest, variable, 1 / values)
    unit = float((cost * longest).max()) or 1.0
    # In units of the longest possible time, so that coefficients are near 1.
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
    names = " and ".join(types[k].name for k in np.flatnonzero(found.full).tolist())
    verb = "is" if found.full.sum() == 1 else "are"
    told, sooner = [], "an earlier end of the last one"
    for j, group in enumerate(shares.group.tolist()):
        if group < 0:
            told.append(refusal(shares.refused[j]))
        elif ends_s[j] < last_s * (1 - 1e-6):
            told.append(Reason(f"it is finished in {ends_s[j]:.0f} s, before the last one", sooner))
        elif dear:
            told.append(Reason("the budget: an earlier end would cost more", "a larger budget"))
        elif own_s[j] >= last_s * (1 - 1e-6):
            told.append(Reason(f"even always on its fastest workers it needs {own_s[j]:.0f} s", "faster workers"))
        elif names and found.critical[j]:
            told.append(Reason(f"it ends last, and {names} {verb} full", f"more workers of {names}"))
        else:
            told.append(Reason("it need not end before the last one, and an earlier end would not cost less", sooner))
    return tuple(told)

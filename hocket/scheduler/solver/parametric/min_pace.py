"""Minimum pace: minimize the slowest job's pace, then maximize throughput.

The pace is a finish-time fairness, or a makespan in seconds: larger is slower (root_search.py). Jobs with equal
throughputs are one group, regardless of demands (demand_groups.py). First comes the minimum pace (root_search.py),
then the times of the groups that keep it and add the most throughput, then the share of each job (time_windows.py).
If a group's times cannot be split among its jobs, some of them become separate groups, and the steps are repeated.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.linear_program import Infeasible
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.min_cost_demand import Served, lacking
from hocket.scheduler.solver.parametric.root_search import (
    DemandAtPace,
    Kept,
    LeastPace,
    at_pace,
    least,
    outset,
    slowest,
)
from hocket.scheduler.solver.space_sharing.time_windows import spread

_SLOWER = 1e-6  # relative tolerance of equal paces
_ROOM = 1e-10  # relaxation of a pace, so that rounding does not make it infeasible


@dataclass(frozen=True, eq=False)
class MinPace:
    """Allocation with the minimum pace.

    Attributes:
        lines: groups of jobs and their options.
        found: minimum pace, with its proof.
        kept: values of the variables at this pace.
        entries: entries of the allocation.
    """

    lines: GroupLines
    found: LeastPace
    kept: Kept
    entries: Entries


def paced(
    snapshot: Snapshot, pace: DemandAtPace, place: str, session: Session | None = None
) -> MinPace | AllocationVariables:
    """Allocation with the minimum pace; only the groups if no job can run.

    Arguments:
        pace: demand of each job as a function of the pace.
        place: name of the program in error messages.
        session: stored warm starts; None for no session.
    """
    apart, above = np.zeros(len(snapshot.jobs)), 0.0
    before: LeastPace | None = None
    while True:
        shares = AllocationVariables(snapshot, (apart,))
        if not shares.groups:
            return shares
        lines = GroupLines(shares)
        above = max(above, outset(lines, pace))
        found, kept = _alone(lines, pace, place, above, session) or _together(lines, pace, place, above, session)
        before = found = found.after(before)
        above = found.pace
        entries, torn = spread(lines, kept.solution.x, kept.demand)
        if not torn:
            return MinPace(lines, found, kept, entries)
        apart[torn] = np.array(torn) + 1.0


def _together(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float, session: Session | None
) -> tuple[LeastPace, Kept]:
    """Minimum pace, from the known lower bound `above`, and a solution that keeps it."""
    found = least(lines, pace, place, above, session)
    if session is not None and found.pace <= slowest(lines, pace) * (1 + _SLOWER):
        session.forget(lacking(place))  # one job may set the pace in the next call, too
    served = Served(found.cuts, _least_idle(lines), place, None, session, found.prior)
    return found, at_pace(served, pace, found.pace)


def _alone(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float, session: Session | None
) -> tuple[LeastPace, Kept] | None:
    """Solution if the slowest job on its fastest workers sets the pace, else None.

    No allocation has a smaller pace. The attempt is skipped if `above`, a known lower bound of the pace, is larger, or
    if workers were the limit in the last call.
    """
    runs = lines.shares.group >= 0
    now = slowest(lines, pace)
    if above > now * (1 + _SLOWER) or (session is not None and session.knows(lacking(place))):
        return None
    demand = np.where(runs, pace.demand(now * (1 + _ROOM)), 0.0)
    served = Served(lines.start(demand), _least_idle(lines), place, None, session)
    try:
        solution = served.ask(demand)
    except Infeasible:
        return None
    served.keep()
    none = np.zeros(len(lines.shares.snapshot.types), dtype=bool)
    return LeastPace(now, served.cuts, none, np.zeros(len(runs), dtype=bool)), Kept(
        solution, demand, served.cuts, served.prices
    )


def _least_idle(lines: GroupLines) -> np.ndarray:
    """Cost of each variable: minus its throughput, relative to each group's fastest."""
    shares = lines.shares
    cost = -shares.steps_first / lines.fastest[shares.first]
    both = shares.second >= 0
    cost[both] -= shares.steps_second[both] / lines.fastest[shares.second[both]]
    return cost

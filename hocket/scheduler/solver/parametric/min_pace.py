"""Paced: the allocation at which the slowest job, by a measure of pace, is as fast as can be, and nothing is left idle.

Jobs that run alike are one group, whatever they ask for (demand_groups.py); the least pace comes first (root_search.py), then the times that
keep it and do most besides, then every job's part (time_windows.py). A job that its group cannot serve becomes a group of its own,
and all is done again.
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

_SLOWER = 1e-6  # relative: a pace that is known to be so much above another is not that one
_ROOM = 1e-10  # that a pace gets, so that rounding does not put it out of reach


@dataclass(frozen=True, eq=False)
class MinPace:
    """Who is in which group, the least pace, the times that keep it, and entries of an allocation."""

    lines: GroupLines
    found: LeastPace
    kept: Kept
    entries: Entries


def paced(
    snapshot: Snapshot, pace: DemandAtPace, place: str, session: Session | None = None
) -> MinPace | AllocationVariables:
    """The answer; only the shares, with who is refused, if no job can run.

    Arguments:
        place: for messages. session: where to begin, if it is known there.
    """
    apart, above = np.zeros(len(snapshot.jobs)), 0.0
    while True:
        shares = AllocationVariables(snapshot, (apart,))
        if not shares.groups:
            return shares
        lines = GroupLines(shares)
        above = max(above, outset(lines, pace))
        found, kept = _alone(lines, pace, place, above, session) or _together(lines, pace, place, above, session)
        above = found.pace
        entries, torn = spread(lines, kept.solution.x, kept.demand)
        if not torn:
            return MinPace(lines, found, kept, entries)
        apart[torn] = np.array(torn) + 1.0


def _together(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float, session: Session | None
) -> tuple[LeastPace, Kept]:
    """The least pace, which is no less than `above`, and times that keep it."""
    found = least(lines, pace, place, above, session)
    if session is not None and found.pace <= slowest(lines, pace) * (1 + _SLOWER):
        session.forget(lacking(place))  # the next time one job may set the pace, too
    served = Served(found.cuts, _least_idle(lines), place, None, session, found.basis, found.start)
    return found, at_pace(served, pace, found.pace)


def _alone(
    lines: GroupLines, pace: DemandAtPace, place: str, above: float, session: Session | None
) -> tuple[LeastPace, Kept] | None:
    """The same if the slowest job, always on its fastest workers, sets the pace, as nobody can be sooner; None if not.

    Where workers set it the last time it is not tried.
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
    none = np.zeros(len(lines.shares.limits.lower))
    return LeastPace(now, served.cuts, none), Kept(solution, demand, served.cuts, served.prices)


def _least_idle(lines: GroupLines) -> np.ndarray:
    """The cost of variables: throughputs count in parts of each group's fastest."""
    shares = lines.shares
    cost = -shares.steps_first / lines.fastest[shares.first]
    both = shares.second >= 0
    cost[both] -= shares.steps_second[both] / lines.fastest[shares.second[both]]
    return cost

"""Paced by roles: the least pace of many unlike jobs that share workers.

At a pace each job asks for a throughput, and roles (column_generation.py) say what part of all that can be had at most. By the duals of one
pace no shorter one is enough up to where they show that all could be had; that is the next pace. So it comes from below, with a
proof, as in root_search.py; what helped at one pace is there at the next.
"""

from dataclasses import dataclass

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Pairs, Snapshot
from hocket.scheduler.solver.lp.linear_program import Infeasible, SolverTrouble
from hocket.scheduler.solver.lp.to_allocation import reasons
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.root_search import DemandAtPace, root
from hocket.scheduler.solver.space_sharing.column_generation import ColumnObjective, ColumnSolution, Roles
from hocket.scheduler.solver.space_sharing.residuals import CRUMB, with_crumbs

_STEPS = 50
_CLOSE = 1e-12  # relative: a pace that is so near is that one, if jobs have enough of what they ask for:
_ENOUGH = 1e-7  # where a job is nearly over a small step of the pace is a large one of that
_ROOMS = (1e-9, 1e-8, 1e-7)  # that a pace gets, so that rounding does not put it out of reach


@dataclass(frozen=True, eq=False)
class PairedMinPace:
    """The least pace, as far as it is proved; an answer that keeps one, but for crumbs; and duals of time and workers where it
    was too little."""

    pace: float
    kept: float
    answer: ColumnSolution
    duals: np.ndarray


def paced(shares: AllocationVariables, pairs: Pairs, pace: DemandAtPace, place: str) -> PairedMinPace:
    """The least pace and an answer at it in which nothing is left idle, but for crumbs.

    Arguments:
        shares: groups without pairs, in each of which jobs are alike and ask for the same.
        pace: of all jobs. place: for messages.
    """
    own = DemandAtPace(pace.remaining[shares.member], pace.due[shares.member], pace.elapsed[shares.member])
    roles = Roles(shares, pairs, ColumnObjective(np.zeros(shares.groups)))
    fastest = roles.fastest()
    now = float(own.alone(fastest).max())
    duals = np.zeros(len(shares.limits.lower))

    def due(at: float) -> np.ndarray:
        demand = np.minimum(own.demand(at), fastest)  # it is no more; rounded it may be, where a job is nearly over
        return np.where(demand > CRUMB * roles.steps.max(axis=1), demand, 0.0)

    for _ in range(_STEPS):
        roles.after(ColumnObjective(np.zeros(shares.groups), due(now)))
        found = roles.best(place)
        later = _beyond(found, own, now, np.where(due(now) > 0, shares.count, 0.0))
        enough = -found.objective >= 1 - _ENOUGH
        if found.note or later <= now or (enough and later <= now * (1 + _CLOSE)):
            break
        now, duals = later, found.duals
    else:
        raise SolverTrouble(f"{place}: {_STEPS} steps were not enough")
    proved = later
    # Where rounds ran out, what could be had is less than what is asked for: a longer pace then.
    reached = max(proved, _reached(own, own.demand(now) * min(1.0, -found.objective), now))
    for room in _ROOMS:
        kept = reached * (1 + room)
        roles.after(ColumnObjective(1 / fastest, due(kept), kept=True))
        try:
            return PairedMinPace(proved, kept, roles.best(place), duals)
        except Infeasible:
            continue
    raise SolverTrouble(f"{place}: nothing keeps a pace of {reached}, which was found to be kept")


def allocation(snapshot: Snapshot, shares: AllocationVariables, pace: DemandAtPace, place: str) -> Allocation:
    """The allocation at the least pace; its objective is the largest pace of any job that can run.

    Arguments:
        shares, pace, place: as for `paced`.
    """
    assert snapshot.pairs is not None
    found = paced(shares, snapshot.pairs, pace, place)
    runs = shares.group >= 0
    demand = np.where(runs, pace.demand(found.kept), 0.0)
    entries = with_crumbs(GroupLines(shares), demand, found.answer.entries, snapshot)
    throughput = Allocation(*entries, 0.0).throughput(snapshot)
    each = pace.alone(np.where(runs, throughput, 1.0))
    largest = float(each[runs].max())
    told = reasons(shares, found.duals)
    return Allocation(*entries, largest, largest / found.pace - 1, told, shares.refused, found.answer.note)


def _beyond(found: ColumnSolution, own: DemandAtPace, now: float, count: np.ndarray) -> float:
    """The pace up to which an answer's prices show that jobs cannot have what they ask for.

    Arguments:
        count: of jobs in each group; 0 for those that were due nothing.
    """
    prices = found.prices * count
    # By these prices no allocation is worth more than this, and all that jobs ask for is worth so much.
    worth = -found.bound * float(prices @ own.demand(now))

    def lacks(at: float) -> tuple[float, float]:
        return float(prices @ own.demand(at)) - worth, float(prices @ own.change(at))

    return root(lacks, now) if worth > 0 else now


def _reached(own: DemandAtPace, gets: np.ndarray, now: float) -> float:
    """The pace of the slowest at these throughputs, if they are less than what is asked for now."""
    return max(now, float(own.alone(gets).max()))

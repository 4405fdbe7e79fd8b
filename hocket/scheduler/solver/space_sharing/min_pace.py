"""Minimum pace for many distinct jobs that share workers.

At a pace each job has a demand (root_search.py), and column generation (column_generation.py) gives the maximum
fraction of all demands that can be met. The duals at one pace also bound this fraction at larger paces. They prove all
paces infeasible up to the one where the bound reaches 1; that is the next pace. The pace therefore rises from below,
with a proof, as in root_search.py. The roles (columns of the program) found at one pace are reused at the next.
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
_CLOSE = 1e-12  # relative tolerance of equal paces, if enough of the demand is met:
_ENOUGH = 1e-7  # for nearly finished jobs a small change of pace is a large change of demand
_ROOMS = (1e-9, 1e-8, 1e-7)  # relaxation of a pace, so that rounding does not make it infeasible


@dataclass(frozen=True, eq=False)
class PairedMinPace:
    """Proven minimum pace, and a solution at about this pace.

    Attributes:
        pace: proven lower bound of the pace.
        kept: pace that the solution keeps.
        answer: the solution; it omits tiny demands (residuals.py).
        duals: duals of time and workers at the last infeasible pace; 0 if there is none.
    """

    pace: float
    kept: float
    answer: ColumnSolution
    duals: np.ndarray


def paced(shares: AllocationVariables, pairs: Pairs, pace: DemandAtPace, place: str) -> PairedMinPace:
    """Minimum pace, and a solution that keeps it and adds the most throughput.

    Arguments:
        shares: groups without pairs; the jobs of a group are identical and have equal demands.
        pairs: space-sharing throughputs.
        pace: demand of each job as a function of the pace.
        place: name of the program in error messages.

    Raises:
        SolverTrouble: the search does not converge, or the solver failed.
    """
    own = DemandAtPace(pace.remaining[shares.member], pace.due[shares.member], pace.elapsed[shares.member])
    roles = Roles(shares, pairs, ColumnObjective(np.zeros(shares.groups)))
    fastest = roles.fastest()
    now = float(own.alone(fastest).max())
    duals = np.zeros(len(shares.limits.lower))

    def due(at: float) -> np.ndarray:
        demand = np.minimum(own.demand(at), fastest)  # true up to rounding, which matters for nearly finished jobs
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
        raise SolverTrouble(f"{place}: no solution after {_STEPS} steps")
    proved = later
    # At the round limit, less than the demand may be met; the pace is then longer.
    reached = max(proved, _reached(own, own.demand(now) * min(1.0, -found.objective), now))
    for room in _ROOMS:
        kept = reached * (1 + room)
        roles.after(ColumnObjective(1 / fastest, due(kept), kept=True))
        try:
            return PairedMinPace(proved, kept, roles.best(place), duals)
        except Infeasible:
            continue
    raise SolverTrouble(f"{place}: a pace of {reached} is infeasible, although it was found feasible")


def allocation(snapshot: Snapshot, shares: AllocationVariables, pace: DemandAtPace, place: str) -> Allocation:
    """Allocation at the minimum pace.

    The objective is the largest pace of the jobs that can run.

    Arguments:
        shares: groups without pairs; the jobs of a group are identical and have equal demands.
        pace: demand of each job as a function of the pace.
        place: name of the program in error messages.
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
    """Pace up to which a solution's prices prove the demands infeasible.

    Arguments:
        found: solution at the pace `now`.
        own: demand of a job of each group as a function of the pace.
        now: current pace.
        count: number of jobs in each group; 0 for groups without a demand.
    """
    prices = found.prices * count
    # Upper bound of the value of any allocation at these prices, where the demands have their value.
    worth = -found.bound * float(prices @ own.demand(now))

    def lacks(at: float) -> tuple[float, float]:
        return float(prices @ own.demand(at)) - worth, float(prices @ own.change(at))

    return root(lacks, now) if worth > 0 else now


def _reached(own: DemandAtPace, gets: np.ndarray, now: float) -> float:
    """Pace of the slowest job at the throughputs `gets`, by group, but at least `now`."""
    return max(now, float(own.alone(gets).max()))

"""Finish-time fairness: minimize the largest slowdown against isolation.

A job's rho is its time from arrival to completion at the allocated throughput, divided by this time with one n-th of
every worker type (isolated.py). Once the largest rho is minimal, the remaining capacity goes where it adds most
normalized throughput. The policy that Gavel's authors published counts isolated time from the first call with the job;
on that call it is 0 for all jobs.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies.isolated import isolated_times
from hocket.scheduler.solver.lp.rejected import refusal
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.min_pace import MinPace, paced
from hocket.scheduler.solver.parametric.root_search import DemandAtPace
from hocket.scheduler.solver.space_sharing import min_pace as paced_roles
from hocket.scheduler.solver.space_sharing.column_generation import many

__all__ = ["PAPER", "allocate", "asked", "rho"]

PAPER = "Dissertation section 5.4.2; Themis (Mahajan et al. 2020)"
SHARES, ENTITIES = True, False
_PLACE = "finish-time fairness"
_AT_MOST = 1e-7  # relative: jobs this close to the largest rho count as having it


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the minimum largest rho.

    The objective is the largest rho of the jobs that can run; its gap is relative to a proven lower bound.
    """
    pace = _pace(snapshot)
    if many(snapshot) is not None:
        unlike = many(snapshot, (pace.remaining, pace.due, pace.elapsed))
        assert unlike is not None
        return paced_roles.allocation(snapshot, unlike, pace, _PLACE)
    found = paced(snapshot, pace, _PLACE, session)
    if not isinstance(found, MinPace):
        none = np.zeros(0, dtype=np.int64)
        reasons = tuple(refusal(found.refused[j]) for j in range(len(snapshot.jobs)))
        return Allocation(none, none, none, np.zeros(0), 0.0, 0.0, reasons, found.refused)
    refused = found.lines.shares.refused
    each = rho(snapshot, Allocation(*found.entries, 0.0))
    largest = float(np.delete(each, list(refused)).max())
    gap = max(found.kept.solution.gap, largest / found.found.pace - 1)
    told = Reasons(len(each), lambda: _reasons(found, pace, each))
    return Allocation(*found.entries, largest, gap, told, refused)


def asked(snapshot: Snapshot, objective: float) -> np.ndarray:
    """Steps per second that each job needs to keep its rho within the objective.

    Arguments:
        objective: largest allowed rho.
    """
    return _pace(snapshot).demand(objective)


def rho(snapshot: Snapshot, found: Allocation) -> np.ndarray:
    """Finish-time fairness rho of each job; infinite if it never completes."""
    with np.errstate(divide="ignore"):
        pace = _pace(snapshot)
        return pace.alone(found.throughput(snapshot))


def _pace(snapshot: Snapshot) -> DemandAtPace:
    """Demand of each job as a function of rho.

    The reference is the time from arrival to completion on one n-th of the cluster. For jobs that cannot run, its
    remaining part counts as one second.
    """
    isolated = (isolated_times(snapshot) * snapshot.throughputs).sum(axis=1)
    counted = np.array([a.elapsed_s if a.isolated_s is None else a.isolated_s for a in snapshot.jobs])
    ends = np.divide(snapshot.remaining_steps, isolated, out=np.ones(len(counted)), where=isolated > 0)
    return DemandAtPace(snapshot.remaining_steps, counted + ends, snapshot.elapsed_s)


def _reasons(found: MinPace, pace: DemandAtPace, each: np.ndarray) -> tuple[Reason, ...]:
    shares = found.lines.shares
    snapshot = shares.snapshot
    own = pace.alone(np.append(found.lines.fastest, 1.0)[shares.group])
    largest = each[shares.group >= 0].max()
    names = " and ".join(snapshot.types[k].name for k in np.flatnonzero(found.found.full).tolist())
    verb = "is" if found.found.full.sum() == 1 else "are"
    spare = "more workers: spare capacity goes where it adds the most throughput"
    told = []
    for j, group in enumerate(shares.group.tolist()):
        if group < 0:
            told.append(refusal(shares.refused[j]))
        elif own[j] >= largest * (1 - _AT_MOST):
            told.append(Reason(f"even always on its fastest workers its rho is {own[j]:.3g}", "faster workers"))
        elif each[j] >= largest * (1 - 10 * _AT_MOST) and names and found.found.critical[j]:
            told.append(Reason(f"its rho is the largest, and {names} {verb} full", f"more workers of {names}"))
        elif each[j] >= largest * (1 - 10 * _AT_MOST):
            told.append(Reason("its rho need not be below the largest", spare))
        else:
            found_rho = f"its rho is {each[j]:.3g}, and {largest:.3g} for the job with the largest rho"
            told.append(Reason(found_rho, spare))
    return tuple(told)

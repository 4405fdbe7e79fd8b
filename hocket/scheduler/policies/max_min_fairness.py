"""Max-min fairness (least attained service): maximize the minimum share.

A job's normalized throughput is its throughput relative to its throughput with an equal share of time on every
worker, divided by its weight and multiplied by its scale factor.
"""

from dataclasses import replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.dual import large_programs as unlike
from hocket.scheduler.solver.lp.session import Session, solved
from hocket.scheduler.solver.lp.to_allocation import ENOUGH, answer, reasons
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from hocket.scheduler.solver.space_sharing.column_generation import ColumnObjective, Roles, many

__all__ = ["PAPER", "allocate", "asked"]

PAPER = "Dissertation section 5.4.1; least attained service: Tiresias (Gu et al. 2019)"
SHARES, ENTITIES = True, False
_PLACE = "max-min fairness"
_LEAST = 1e-6  # relative: shares this close to the minimum count as minimal
_NAMED = 2  # maximum number of jobs named in a reason


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the maximum of the minimum normalized throughput.

    The objective is the minimum over the jobs that can run.
    """
    due = equal_share(snapshot) * snapshot.weights / snapshot.scale
    sharing = many(snapshot, (snapshot.weights,))
    if sharing is not None:
        found = _by_roles(snapshot, sharing, due)
    else:
        shares = AllocationVariables(snapshot, (snapshot.weights,))
        found = _by_groups(shares, due[shares.member], session)
    return replace(found, reasons=Reasons(len(snapshot.jobs), lambda: _reasons(snapshot, found)))


def _by_groups(shares: AllocationVariables, due: np.ndarray, session: Session | None) -> Allocation:
    """Solve with a variable for each group, or two groups that share workers, on each column.

    Arguments:
        due: steps per second at which a job of each group has a normalized throughput of 1.
    """
    groups, variables, steps = shares.throughput
    found = _by_prices(shares, due, session) if unlike.many(shares) else None
    if found is not None:
        return found
    count, least = shares.groups, shares.variables
    rows = Constraints(
        np.concatenate([groups, np.arange(count)]),
        np.concatenate([variables, np.full(count, least)]),
        np.concatenate([steps / due[groups], np.full(count, -1.0)]),
        np.zeros(count),
        np.full(count, np.inf),
    )
    cost = np.zeros(shares.variables + 1)
    cost[least] = -1.0
    most = float((np.bincount(groups, steps, count) * shares.count / due).max(initial=0.0))
    solution = solved(session, shares, shares.program(cost, rows, extra=((0.0, most),)), _PLACE)
    return answer(shares, solution.x, solution.duals, float(solution.x[least]), solution.gap)


def _by_prices(shares: AllocationVariables, due: np.ndarray, session: Session | None) -> Allocation | None:
    """Solve with dual decomposition, for many groups; None if it fails.

    Arguments:
        due: steps per second at which a job of each group has a normalized throughput of 1; shape (groups,).
    """
    rows = unlike.GroupRows(due, np.zeros(shares.groups), np.full(shares.groups, -1.0))
    most = float((np.bincount(shares.first, shares.steps_first, shares.groups) / due).max())
    start = None if session is None else session.prices(shares.snapshot, _PLACE)
    found = unlike.solve(shares, rows, _PLACE, None, (-most, 0.0), start)
    if found is None:
        return None
    solution, start = found
    if session is not None:
        session.keep_prices(shares.snapshot, _PLACE, start)
    return answer(shares, solution.x, solution.duals, -solution.objective, solution.gap)


def _reasons(snapshot: Snapshot, found: Allocation) -> list[Reason]:
    """Reasons of all jobs; the reason of a satisfied job names the limiting jobs.

    These are the jobs with the minimum normalized throughput. They cannot get more time or workers.
    """
    plain = [found.reasons[j] for j in range(len(snapshot.jobs))]
    if ENOUGH not in plain:
        return plain
    few = np.flatnonzero(found.throughput(snapshot) <= asked(snapshot, found.objective * (1 + _LEAST))).tolist()
    names = [snapshot.jobs[j].job.id for j in few if j not in found.refused and plain[j] is not ENOUGH]
    if not names:
        return plain
    who = ", ".join(name if not name.isdecimal() else f"job {name}" for name in names[:_NAMED])
    who += f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    has = "has the least and cannot get more" if len(names) == 1 else "have the least and cannot get more"
    change = f"any change that helps {who}; or the water_filling policy, which continues from here"
    enough = Reason(f"it has its required share: {who} {has}", change)
    return [enough if own is ENOUGH else own for own in plain]


def asked(snapshot: Snapshot, objective: float) -> np.ndarray:
    """Steps per second that each job needs for a normalized throughput.

    Arguments:
        objective: normalized throughput, the same for all jobs.
    """
    return objective * equal_share(snapshot) * snapshot.weights / snapshot.scale


def _by_roles(snapshot: Snapshot, shares: AllocationVariables, due: np.ndarray) -> Allocation:
    """Solve with column generation, if there are too many pairs of groups.

    Arguments:
        due: steps per second at which each job has a normalized throughput of 1.
    """
    assert snapshot.pairs is not None
    found = Roles(shares, snapshot.pairs, ColumnObjective(np.zeros(shares.groups), due[shares.member])).best(_PLACE)
    runs = shares.group >= 0
    least = float((Allocation(*found.entries, 0.0).throughput(snapshot)[runs] / due[runs]).min())
    gap = max(0.0, -found.bound - least) / max(1.0, least)
    return Allocation(*found.entries, least, gap, reasons(shares, found.duals), shares.refused, found.note)


def equal_share(snapshot: Snapshot) -> np.ndarray:
    """Throughput of each job with an equal share of time on every worker.

    A job uses its faster column on each type. Types with too few workers for the job contribute 0.

    Returns:
        Steps per second; shape (jobs,).
    """
    steps = snapshot.able
    best = np.zeros((len(snapshot.jobs), len(snapshot.types)))
    for column, own in enumerate(snapshot.columns):
        np.maximum(best[:, own.type], steps[:, column], out=best[:, own.type])
    return best @ (snapshot.workers / max(snapshot.workers.sum(), 1.0))

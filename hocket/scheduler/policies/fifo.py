"""FIFO on heterogeneous workers: earlier arrivals have more weight.

The objective in Narayanan's dissertation is a weighted sum. A job's term is its throughput, relative to its throughput
alone on its fastest workers, times the number of jobs that arrived after it, plus one. With `strict`, the policy is a
queue, as in the version that Gavel's authors published: in order of arrival, each job gets the fastest remaining
workers all the time, and no job overtakes. The strict objective is computed by the same formula and is at most the
optimum of the weighted sum.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import fastest
from hocket.scheduler.solver.lp.session import Session, solved
from hocket.scheduler.solver.lp.to_allocation import answer
from hocket.scheduler.solver.lp.variables import AllocationVariables
from hocket.scheduler.solver.parametric.demand_groups import GroupLines
from hocket.scheduler.solver.parametric.weighted_sum import Ranks
from hocket.scheduler.solver.queueing.priority_queue import Queued, queue
from hocket.scheduler.solver.space_sharing.column_generation import many, sum_of
from hocket.scheduler.solver.space_sharing.time_windows import spread

__all__ = ["PAPER", "allocate", "in_order"]

PAPER = "Dissertation section 5.4.2"
SHARES, ENTITIES = True, False
_PLACE = "first in, first out"
_AHEAD = 1e30  # demand per unit of weight, above any capacity, so that the largest weight is served first


def allocate(snapshot: Snapshot, session: Session | None = None, strict: bool = False) -> Allocation:
    """Allocation by order of arrival.

    The objective is the sum of normalized throughputs, each times the number of jobs from this job to the last
    arrival.

    Arguments:
        strict: True for a queue instead of the optimal weighted sum.
    """
    return _queued(snapshot) if strict else _best(snapshot, session)


def in_order(snapshot: Snapshot, found: Allocation) -> float:
    """Objective of `allocate`, for any allocation: the weighted sum."""
    return float((found.throughput(snapshot) / _fastest(snapshot) * _weights(snapshot)).sum())


def _best(snapshot: Snapshot, session: Session | None) -> Allocation:
    if snapshot.pairs is not None:
        return _with_pairs(snapshot)
    shares = AllocationVariables(snapshot, (_weights(snapshot),))
    worth = _weights(snapshot)[shares.member] / max(len(snapshot.jobs), 1) / _fastest(snapshot)[shares.member]
    program = shares.program(-worth[shares.first] * shares.steps_first)
    solution = solved(session, shares, program, _PLACE)
    plain = answer(shares, solution.x, solution.duals, 0.0, solution.gap)
    return replace(plain, objective=in_order(snapshot, plain))


def _with_pairs(snapshot: Snapshot) -> Allocation:
    """Optimum with space sharing, on groups of jobs with equal behavior.

    One variable per pair of jobs would be too many. With too many groups, column generation is used.
    """
    weights = _weights(snapshot)
    if many(snapshot) is not None:
        worth = weights / max(len(weights), 1) / _fastest(snapshot)
        unlike = many(snapshot, (worth,))
        assert unlike is not None
        found = sum_of(snapshot, unlike, worth[unlike.member][:, None] * np.ones(len(snapshot.columns)), _PLACE)
        return replace(found, objective=in_order(snapshot, found))
    apart = np.zeros(len(snapshot.jobs))
    while True:
        shares = AllocationVariables(snapshot, (apart,))
        if not shares.groups:
            return _best(replace(snapshot, pairs=None), None)
        lines = GroupLines(shares)
        solution, gap = Ranks(lines, weights / max(len(weights), 1)).solve(_PLACE)
        entries, torn = spread(lines, solution.x, _AHEAD * weights)
        if not torn:
            break
        apart[torn] = np.array(torn) + 1.0
    told = answer(shares, solution.x, solution.duals, 0.0, 0.0).reasons
    plain = Allocation(*entries, 0.0, gap, told, shares.refused)
    return Allocation(*entries, in_order(snapshot, plain), gap, told, shares.refused)


def _queued(snapshot: Snapshot) -> Allocation:
    found = queue(snapshot, _in_turn(snapshot), overtake=False)
    return found.allocation(snapshot, found.worth + _shared(snapshot, found) if found.pairs else found.worth)


def _shared(snapshot: Snapshot, found: Queued) -> float:
    """Change of a queue's objective caused by jobs that share workers."""
    assert snapshot.pairs is not None
    steps, kept, classes = snapshot.able, snapshot.pairs.kept, snapshot.pairs.classes
    best, place = fastest(snapshot), {j: k for k, j in enumerate(found.order)}
    column, worth = dict(zip(found.jobs, found.columns.tolist(), strict=True)), 0.0
    for host, guest in found.pairs:
        c = column[host]
        for one, other in ((host, guest), (guest, host)):
            part = kept[classes[one], classes[other], c] - (1.0 if one == host else 0.0)
            worth += float(part * steps[one, c] / best[one]) * (len(place) - place[one])
    return worth


def _in_turn(snapshot: Snapshot) -> Sequence[int]:
    """Job indices in order of arrival; ties keep their order."""
    came = snapshot.arrived_s
    if sorted(came) == came:
        return range(len(came))
    return sorted(range(len(came)), key=came.__getitem__)


def _weights(snapshot: Snapshot) -> np.ndarray:
    """Number of runnable jobs from each job, included, to the last arrival.

    The number is 0 for a job that cannot run.
    """
    turn = np.array(_in_turn(snapshot), dtype=np.int64)
    turn = turn[fastest(snapshot)[turn] > 0]
    weights = np.zeros(len(snapshot.jobs))
    weights[turn] = np.arange(len(turn), 0, -1.0)
    return weights


def _fastest(snapshot: Snapshot) -> np.ndarray:
    """Steps per second of each job, alone on the fastest workers that it can run on; shape (jobs,).

    The value is 1, not 0, for a job that cannot run: callers divide by it, and the throughput or weight of such a job
    is 0.
    """
    steps = fastest(snapshot)
    return np.where(steps > 0, steps, 1.0)

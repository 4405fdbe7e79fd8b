"""Finish-time fairness: the job that loses most by sharing, against an n-th of the cluster to itself, loses as little as can be.

A job's rho is its time from arrival to end at the throughput that it is given, over what that time would be with its n-th part
of every type (isolated.py). Whatever is left once the largest rho is as small as can be goes where it adds most normalised
throughput.
The public policy counts a job's isolated time from the moment it first sees the job: on its first call it is 0 for all.
"""

import numpy as np

from hocket.cluster.allocation import Allocation, Reason
from hocket.cluster.policies._lines import Lines
from hocket.cluster.policies._pace import Found, Kept, Pace, at_pace, least
from hocket.cluster.policies._shares import Shares
from hocket.cluster.policies._windows import spread
from hocket.cluster.policies.isolated import isolated_times
from hocket.cluster.session import Session, answered
from hocket.cluster.snapshot import Snapshot

__all__ = ["PAPER", "allocate", "rho"]

PAPER = "Dissertation section 5.4.2; Themis (Mahajan et al. 2020)"
_PLACE = "finish-time fairness"
_AT_MOST = 1e-7  # relative: a job of this much less than the largest rho is one of those that hold it


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the largest rho of any job that can run, its gap against what no allocation is below."""
    return answered(session, snapshot, lambda: _allocate(snapshot))


def _allocate(snapshot: Snapshot) -> Allocation:
    pace = _pace(snapshot)
    apart, above = np.zeros(len(snapshot.jobs)), 0.0
    while True:
        shares = Shares(snapshot, (apart,))
        lines = Lines(shares)
        if not shares.groups:
            empty = np.zeros(0, dtype=np.int64)
            reasons = tuple(_refusal(shares, j) for j in range(len(snapshot.jobs)))
            return Allocation(empty, empty, empty, np.zeros(0), 0.0, 0.0, reasons, shares.refused)
        found = least(lines, pace, _PLACE, above)
        above = found.pace
        kept = _with_the_rest(lines, found, pace)
        entries, torn = spread(lines, kept.solution.x, kept.demand)
        if not torn:
            break
        apart[torn] = np.array(torn) + 1.0
    plain = Allocation(*entries, 0.0, 0.0, (), shares.refused)
    each = rho(snapshot, plain)
    runs = shares.group >= 0
    largest = float(each[runs].max())
    gap = max(kept.solution.gap, largest / found.pace - 1)
    return Allocation(*entries, largest, gap, _reasons(lines, found, pace, each), shares.refused)


def rho(snapshot: Snapshot, found: Allocation) -> np.ndarray:
    """Of each job; infinite where it never ends."""
    with np.errstate(divide="ignore"):
        pace = _pace(snapshot)
        return pace.alone(found.throughput(snapshot))


def _pace(snapshot: Snapshot) -> Pace:
    """Isolated times in all are what is due; 1 for jobs that run nowhere."""
    isolated = (isolated_times(snapshot) * snapshot.throughputs).sum(axis=1)
    counted = np.array([a.elapsed_s if a.isolated_s is None else a.isolated_s for a in snapshot.jobs])
    ends = np.divide(snapshot.remaining_steps, isolated, out=np.ones(len(counted)), where=isolated > 0)
    return Pace(snapshot.remaining_steps, counted + ends, snapshot.elapsed_s)


def _with_the_rest(lines: Lines, found: Found, pace: Pace) -> Kept:
    """Times at the least pace that do most besides."""
    shares = lines.shares
    fastest = np.append(lines.fastest, 1.0)
    cost = -shares.steps_first / fastest[shares.first]
    both = shares.second >= 0
    cost[both] -= shares.steps_second[both] / fastest[shares.second[both]]
    return at_pace(found.cuts, pace, found.pace, cost, _PLACE, found.basis)


def _refusal(shares: Shares, job: int) -> Reason:
    return Reason(shares.refused[job], "other workers, or a smaller scale factor")


def _reasons(lines: Lines, found: Found, pace: Pace, each: np.ndarray) -> tuple[Reason, ...]:
    shares = lines.shares
    snapshot = shares.snapshot
    own = pace.alone(np.append(lines.fastest, 1.0)[shares.group])
    largest = each[shares.group >= 0].max()
    full = np.flatnonzero(np.abs(found.duals[shares.groups :]) > _AT_MOST)
    names = " and ".join(snapshot.types[k].name for k in full.tolist())
    told = []
    for j, group in enumerate(shares.group.tolist()):
        if group < 0:
            told.append(_refusal(shares, j))
        elif own[j] >= largest * (1 - _AT_MOST):
            told.append(Reason(f"even always on its fastest workers its rho is {own[j]:.3g}", "faster workers"))
        elif each[j] >= largest * (1 - 10 * _AT_MOST) and names:
            verb = "is" if len(full) == 1 else "are"
            told.append(Reason(f"its rho is the largest, and {names} {verb} full", f"more workers of {names}"))
        else:
            told.append(Reason(f"its rho is {each[j]:.3g}, and {largest:.3g} for the job that loses most"))
    return tuple(told)

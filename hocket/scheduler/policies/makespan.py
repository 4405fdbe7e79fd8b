"""Makespan: minimize the completion time of the last job.

Remaining capacity goes where it adds most throughput. The policy that Gavel's authors published finds the makespan by
bisection to 5 %; this policy is exact.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import refusal
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.parametric.min_pace import MinPace, paced
from hocket.scheduler.solver.parametric.root_search import DemandAtPace
from hocket.scheduler.solver.space_sharing import min_pace as paced_roles
from hocket.scheduler.solver.space_sharing.column_generation import many

__all__ = ["PAPER", "allocate", "asked"]

PAPER = "Dissertation section 5.4.2"
SHARES, ENTITIES = True, False
_PLACE = "makespan"
_SAME = 1e-6  # relative: completion times this close count as equal


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with the minimum makespan.

    The objective is the number of seconds until the last job that can run completes.
    """
    jobs = len(snapshot.jobs)
    pace = DemandAtPace(snapshot.remaining_steps, np.ones(jobs), np.zeros(jobs))
    if many(snapshot) is not None:
        unlike = many(snapshot, (snapshot.remaining_steps,))
        assert unlike is not None
        return paced_roles.allocation(snapshot, unlike, pace, _PLACE)
    found = paced(snapshot, pace, _PLACE, session)
    if not isinstance(found, MinPace):
        none = np.zeros(0, dtype=np.int64)
        reasons = tuple(refusal(found.refused[j]) for j in range(jobs))
        return Allocation(none, none, none, np.zeros(0), 0.0, 0.0, reasons, found.refused)
    shares = found.lines.shares
    runs = shares.group >= 0
    throughput = Allocation(*found.entries, 0.0).throughput(snapshot)
    ends_s = np.divide(snapshot.remaining_steps, throughput, out=np.zeros(jobs), where=runs)
    last_s = float(ends_s.max())
    gap = max(found.kept.solution.gap, last_s / found.found.pace - 1)
    told = Reasons(jobs, lambda: _reasons(found, pace, ends_s))
    return Allocation(*found.entries, last_s, gap, told, shares.refused)


def asked(snapshot: Snapshot, objective: float) -> np.ndarray:
    """Steps per second that each job needs to complete within the objective.

    Arguments:
        objective: makespan in seconds from now.
    """
    return snapshot.remaining_steps / objective


def _reasons(found: MinPace, pace: DemandAtPace, ends_s: np.ndarray) -> tuple[Reason, ...]:
    shares, last_s = found.lines.shares, ends_s.max()
    own_s = pace.alone(np.append(found.lines.fastest, 1.0)[shares.group])
    names = " and ".join(shares.snapshot.types[k].name for k in np.flatnonzero(found.found.full).tolist())
    verb = "is" if found.found.full.sum() == 1 else "are"
    spare = "more workers: spare capacity goes where it adds the most throughput"
    told = []
    for j, (group, end_s) in enumerate(zip(shares.group.tolist(), ends_s.tolist(), strict=True)):
        if group < 0:
            told.append(refusal(shares.refused[j]))
        elif end_s < last_s * (1 - _SAME):
            told.append(Reason(f"it is finished in {end_s:.0f} s, before the last one", spare))
        elif own_s[j] >= last_s * (1 - _SAME):
            told.append(Reason(f"even always on its fastest workers it needs {own_s[j]:.0f} s", "faster workers"))
        elif names and found.found.critical[j]:
            told.append(Reason(f"it ends last, and {names} {verb} full", f"more workers of {names}"))
        else:
            told.append(Reason("it need not end before the last one", spare))
    return tuple(told)

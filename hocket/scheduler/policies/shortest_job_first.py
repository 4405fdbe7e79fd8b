"""Shortest job first: the job with the earliest possible completion goes first.

Narayanan's dissertation only requires that the shortest job completes as early as possible; it does not constrain the
other jobs. Here all jobs form a queue, ordered by their time on their fastest workers. Each job gets the fastest
remaining workers all the time. If a job does not fit, longer jobs that fit may pass it. No job shares the workers of
the first job.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import fastest
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.queueing.priority_queue import queue

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.2"
SHARES, ENTITIES = True, False


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation by queue; its objective is the first completion, in seconds."""
    steps = fastest(snapshot)
    needs_s = np.full(len(steps), np.inf)
    np.divide(snapshot.remaining_steps, steps, out=needs_s, where=steps > 0)
    found = queue(snapshot, np.argsort(needs_s, kind="stable").tolist(), overtake=True, untouched=1)
    return found.allocation(snapshot, float(needs_s[found.order[0]]) if found.order else 0.0)

"""Shortest job first: who can be finished soonest goes first.

The dissertation asks only that the shortest job be finished as soon as it can be, which says nothing about the others. Here all
stand in a queue, in the order of how long each would need on its fastest workers; each has the fastest that are left all the
time, and where one fits nowhere, longer ones that fit go on. Nobody joins the first one's workers.
"""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import fastest
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.queueing.priority_queue import queue

__all__ = ["PAPER", "allocate"]

PAPER = "Dissertation section 5.4.2"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the seconds until the first job is finished."""
    steps = fastest(snapshot)
    needs_s = np.full(len(steps), np.inf)
    np.divide(snapshot.remaining_steps, steps, out=needs_s, where=steps > 0)
    found = queue(snapshot, np.argsort(needs_s, kind="stable").tolist(), overtake=True, untouched=1)
    return found.allocation(snapshot, float(needs_s[found.order[0]]) if found.order else 0.0)

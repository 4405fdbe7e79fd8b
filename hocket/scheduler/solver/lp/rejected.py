"""Refusals: jobs that can run nowhere, for policies that need no program."""

import numpy as np

from hocket.scheduler.model.allocation import Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables


def refusals(snapshot: Snapshot) -> dict[int, str]:
    """Why each of them can run nowhere, by index."""
    return {} if snapshot.all_run else AllocationVariables(snapshot).refused


def fastest(snapshot: Snapshot) -> np.ndarray:
    """Steps a second of each job on the fastest workers that have room for it; 0 for those that can run nowhere."""
    return snapshot.able.max(axis=1, initial=0.0)


def refusal(why: str) -> Reason:
    """Of one of them."""
    return Reason(why, "other workers, or a smaller scale factor")

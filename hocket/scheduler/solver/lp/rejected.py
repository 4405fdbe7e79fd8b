"""Refused jobs, which cannot run anywhere, for policies without a linear program."""

import numpy as np

from hocket.scheduler.model.allocation import Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables


def refusals(snapshot: Snapshot) -> dict[int, str]:
    """Reason why a job cannot run, by job index; empty if all can run."""
    return {} if snapshot.all_run else AllocationVariables(snapshot).refused


def fastest(snapshot: Snapshot) -> np.ndarray:
    """Steps per second of each job, alone on the fastest workers that it can run on; shape (jobs,).

    The value is 0 for a job that cannot run on any workers.
    """
    return snapshot.able.max(axis=1, initial=0.0)


def refusal(why: str) -> Reason:
    """Allocation reason of a job that is refused because of `why`."""
    return Reason(why, "other workers, or a smaller scale factor")

"""Refusals: jobs that can run nowhere, for policies that need no program."""

import numpy as np

from hocket.cluster.allocation import Reason
from hocket.cluster.policies._shares import Shares
from hocket.cluster.snapshot import Snapshot


def refusals(snapshot: Snapshot) -> dict[int, str]:
    """Why each of them can run nowhere, by index."""
    if everywhere(snapshot):
        return {}
    fits = snapshot.scale[:, None] <= snapshot.workers[snapshot.type_of]
    everyone = ((snapshot.throughputs > 0) & fits).any(axis=1).all()
    return {} if everyone else Shares(snapshot).refused


def everywhere(snapshot: Snapshot) -> bool:
    """Whether every job runs on every column, by a look that is quick."""
    steps, workers = snapshot.throughputs, snapshot.workers
    return bool(steps.size and steps.min() > 0 and snapshot.scale.max() <= workers.min(initial=0.0))


def fastest(snapshot: Snapshot) -> np.ndarray:
    """Steps a second of each job on the fastest workers that have room for it; 0 for those that can run nowhere."""
    fits = snapshot.scale[:, None] <= snapshot.workers[snapshot.type_of]
    return np.where(fits, snapshot.throughputs, 0.0).max(axis=1, initial=0.0)


def refusal(why: str) -> Reason:
    """Of one of them."""
    return Reason(why, "other workers, or a smaller scale factor")

"""What a policy that is blind to types of workers would be told: the heterogeneity-agnostic versions of all policies.

A blind policy takes every worker for as fast as any other. Whatever it is, it is the policy itself on such a snapshot.
Source: the baselines of section 5.7.3.
"""

from dataclasses import replace

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot


def agnostic(snapshot: Snapshot, column: int | None = None) -> Snapshot:
    """The snapshot with every job as fast on each column as on one, and nothing known about sharing.

    Where a job does not run, it still does not. Allocations for the one are allocations for the other; what jobs really get
    is `allocation.throughput` of the snapshot that was given.

    Arguments:
        column: whose speeds are taken for all. The public agnostic policies take the V100's. None, or for jobs that do not
            run there: each job's fastest.
    """
    steps = snapshot.throughputs
    seen = steps.max(axis=1, initial=0.0)
    if column is not None:
        seen = np.where(steps[:, column] > 0, steps[:, column], seen)
    return replace(snapshot, throughputs=np.where(steps > 0, seen[:, None], 0.0), pairs=None)

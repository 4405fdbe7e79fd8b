"""Heterogeneity-agnostic policies: snapshots with equal speed on all types.

An agnostic policy treats all workers as equally fast. It is the original policy applied to such a snapshot.
Source: baselines in Narayanan's dissertation, section 5.7.3.
"""

from dataclasses import replace

import numpy as np

from hocket.scheduler.model.snapshot import Snapshot


def agnostic(snapshot: Snapshot, column: int | None = None) -> Snapshot:
    """Snapshot with one throughput per job on all columns, without space sharing.

    A job still has throughput 0 on columns where it cannot run. An allocation for the result is also an allocation
    for the given snapshot; real throughputs come from `allocation.throughput` of the given snapshot.

    Arguments:
        column: column with the throughputs to use. The public agnostic policies use the V100's. None: each job's
            fastest column; also used for jobs that cannot run on `column`.
    """
    steps = snapshot.throughputs
    seen = steps.max(axis=1, initial=0.0)
    if column is not None:
        seen = np.where(steps[:, column] > 0, steps[:, column], seen)
    return replace(snapshot, throughputs=np.where(steps > 0, seen[:, None], 0.0), pairs=None)

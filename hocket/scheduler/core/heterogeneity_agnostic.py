"""Heterogeneity-agnostic policies: snapshots with equal speed on all types.

An agnostic policy treats all workers as equally fast. It is the original policy applied to such a snapshot.
Source: baselines in Narayanan's dissertation, section 5.7.3.
"""

from dataclasses import replace

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation
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


def evenly(allocation: Allocation, snapshot: Snapshot) -> Allocation:
    """Spread each job's time over the types in proportion to their workers.

    Fractions shrink where a type has too few workers. An agnostic policy has no preferred type. A simplex solver
    returns a vertex among equally good solutions, which may leave types out; the interior-point solver of the public
    policies returns an interior point.
    """
    workers = snapshot.workers[snapshot.type_of]
    consolidated = np.array([c.consolidated for c in snapshot.columns])
    runs = (snapshot.throughputs > 0) & consolidated & (snapshot.scale[:, None] <= workers)
    share = runs * workers
    total = share.sum(axis=1, keepdims=True)
    times = np.bincount(allocation.first, allocation.fraction, len(snapshot.jobs))
    fraction = times[:, None] * np.divide(share, total, out=np.zeros_like(share), where=total > 0)
    used = np.zeros(len(snapshot.types))
    np.add.at(used, snapshot.type_of, snapshot.scale @ fraction)
    fraction *= np.minimum(1.0, snapshot.workers / np.maximum(used, 1e-12))[snapshot.type_of]
    first, column = np.nonzero(fraction)
    return replace(
        allocation,
        first=first,
        second=np.full(len(first), ALONE),
        column=column,
        fraction=fraction[first, column],
    )

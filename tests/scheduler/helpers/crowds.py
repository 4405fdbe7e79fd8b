"""Small random sets of jobs: a few kinds with separate work, on few workers."""

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active, Pairs, Snapshot
from hocket.scheduler.model.worker_types import Placement, WorkerType


def crowd(seed: int, jobs: int = 9, pairs: bool = False, spread: bool = False, slo: bool = False) -> Snapshot:
    """A snapshot of jobs of three kinds, on two types of workers."""
    rng = np.random.default_rng(seed)
    types = tuple(WorkerType(f"type{k}", int(rng.integers(1, 4)), 2, float(rng.uniform(0.1, 2))) for k in range(2))
    columns = (Placement(0), Placement(1)) + ((Placement(0, False), Placement(1, False)) if spread else ())
    speeds = rng.uniform(1, 10, (3, len(columns)))
    scales = np.array([1, 1, 2])
    kinds = rng.integers(0, 3, jobs)
    there = []
    for j in range(jobs):
        seconds = rng.uniform(10, 1000)
        job = Job(
            f"job{j}", f"kind{kinds[j]}", 1e6, int(scales[kinds[j]]), 0.0, float(rng.integers(1, 4)),
            float(rng.uniform(1.5, 60) * seconds) if slo and rng.random() < 0.6 else None,
        )  # fmt: skip
        elapsed = float(rng.uniform(0, 200))
        there.append(Active(job, float(seconds * speeds[kinds[j]].max()), elapsed, float(rng.uniform(0, elapsed))))
    kept = None
    if pairs:
        kept = rng.uniform(0.3, 1.0, (3, 3, len(columns)))
        kept *= (rng.random(kept.shape) < 0.8) & (scales[:, None] == scales[None, :])[:, :, None]
    return Snapshot(
        types, columns, tuple(there), speeds[kinds], None if kept is None else Pairs(kinds, kept), (), None, 0.0
    )


def assert_it_can_be(snapshot: Snapshot, found: Allocation) -> None:
    """Assert that time and workers are within limits, and no job shares with itself."""
    assert (found.fraction >= 0).all()
    assert (found.dense(snapshot).sum(axis=1) <= 1 + 1e-9).all()
    assert (found.used(snapshot) <= snapshot.workers + 1e-9 * np.maximum(1.0, snapshot.workers)).all()
    both = found.pairs
    assert (found.first[both] < found.second[both]).all()
    assert len(found.reasons) == len(snapshot.jobs)
    assert all(reason.binding for reason in found.reasons)

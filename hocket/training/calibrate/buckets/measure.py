"""Overlap measurement: how much computation and all-reduces slow each other down.

It runs on the workers of a plan.

Rules of this file: no torch. Workers are those of `train`: local ones, or those that torchrun has started.
Source: LIBRA (Liu et al. 2023), section III.A and Algorithm 2.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.training.calibrate.buckets.fit import Noted, OverlapMeasurement, measured
from hocket.training.calibrate.buckets.random_buckets import BucketSampling
from hocket.training.train import run_workers
from hocket.training.worker.monitor.listener import Listener, Noting
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import shows_the_run
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as

_MOST_BYTES = 2**30
MOST_ERROR = 0.25
"""Of the backwards that a model foretells, in the mean: with a worse one plans would be chosen by chance."""


def measure_overlap(
    job: Job | str | Path, plan: Plan, drawing: BucketSampling, listener: Listener, **options: Any
) -> OverlapMeasurement | None:
    """Train with randomly drawn buckets and threads, and fit the contention model to the measurements.

    Arguments:
        plan: data-parallel; what of its state is divided stays whole here.
        options: of workers, as `train` has them: device, threads, pin, silence_s, debug.

    Returns:
        Under torchrun on the first worker alone.

    Raises:
        InputError: the plan is another one, or too little was seen of one kind. WorkerLost: a worker is gone.
    """
    check_measurable(plan)
    plan = replace(plan, shard="none", predicted=None)
    with TemporaryDirectory(prefix="hocket-overlap-") as folder:
        notes = Path(folder, "notes.json")
        run_workers(job, plan, None, Options(1, drawing=drawing, notes=str(notes), **options), Noting(listener))
        if not shows_the_run():
            return None
        data = parse_json(read_bytes(notes, _MOST_BYTES), "notes of workers")
    return measured([[read_as(Noted, draw, "notes of workers") for draw in own] for own in data])


def check_measurable(plan: Plan) -> None:
    """Refuse a plan that is not one stage on several devices."""
    if plan.strategy != "data_parallel" or len(plan.stages[0].devices) < 2 or plan.tensor > 1:
        devices = len({device for stage in plan.stages for device in stage.devices})
        found = f"{plan.strategy} on {devices} devices, tensor: {plan.tensor}"
        hint = (
            "Make one with `hocket plan --strategy data_parallel`; where that takes one device, write the others into the plan's "
            "`devices`."
        )
        raise InputError("plan", found, "data_parallel on several devices", hint)


def check_good(found: OverlapMeasurement) -> None:
    """Refuse a model that does not foretell what it was fitted to.

    Raises:
        InputError: it is off by more than MOST_ERROR in the mean.
    """
    if not found.error <= MOST_ERROR:
        hint = "Nothing else may keep the machines busy; a job with a longer backward, or more draws and steps, give a better fit."
        raise InputError(
            "measurements", f"a model error of {found.error:.0%} for backward passes", f"at most {MOST_ERROR:.0%}", hint
        )


def cluster_of(plan: Plan, path: Path) -> Cluster:
    """The cluster that stores the measurement.

    It is the file's, if there is one, else the plan's.

    Raises:
        InputError: the file has another cluster than the plan, but for what was measured of overlap.
    """
    if not path.is_file() or not path.stat().st_size:
        return plan.cluster
    there = Cluster.read(path)
    if _bare(there) != _bare(plan.cluster):
        hint = (
            "Name another file with -o; or plan again with this one, and measure with that plan. Nothing was changed."
        )
        raise InputError(str(path), "another cluster than the plan's", "the plan's, or a new file", hint)
    return there


def _bare(cluster: Cluster) -> Cluster:
    return replace(cluster, levels=tuple(replace(level, overlap=None) for level in cluster.levels))


def with_overlap(plan: Plan, found: OverlapMeasurement) -> Cluster:
    """The plan's cluster with the measurement in one level.

    This is the level that the plan's devices span.
    """
    cluster = plan.cluster
    level = cluster.level_of(plan.stages[0].devices)
    levels = list(cluster.levels)
    levels[level] = replace(levels[level], overlap=found.fitted.model)
    return replace(cluster, levels=tuple(levels))

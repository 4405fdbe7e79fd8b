"""Overlap measurement: contention of computation and all-reduces.

The workers of a plan are trained with random buckets. They are local ones, or torchrun's, as in `train`. This file
does not import torch.

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
from hocket.training.callbacks.runner import CallbackRunner
from hocket.training.run_plan import RunPlan
from hocket.training.train import run_workers
from hocket.training.worker.monitor.listener import Listener, Noting
from hocket.training.worker.options import Options
from hocket.training.worker.ranks import shows_the_run
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as

_MOST_BYTES = 2**30
MOST_ERROR = 0.25
"""Maximum mean relative error of predictions; worse models choose plans by chance."""


def measure_overlap(
    job: Job | str | Path, plan: Plan, drawing: BucketSampling, listener: Listener, **options: Any
) -> OverlapMeasurement | None:
    """Train with random gradient buckets and communication threads, and fit the model.

    Arguments:
        job: the job to train, or its file.
        plan: data-parallel plan. State is not sharded here, even if the plan shards it.
        drawing: settings of the random draws.
        listener: receives notes of the workers.
        options: options of workers, see `train`: device, threads, pin, silence_s, debug.

    Returns:
        The measurement; None on torchrun's workers except the first.

    Raises:
        InputError: another kind of plan, or too little overlap was measured.
        WorkerLost: a worker was lost.
    """
    check_measurable(plan)
    plan = replace(plan, shard="none", predicted=None)
    with TemporaryDirectory(prefix="hocket-overlap-") as folder:
        notes = Path(folder, "notes.json")
        run_workers(
            job,
            RunPlan(plan),
            Options(1, drawing=drawing, notes=str(notes), **options),
            Noting(listener),
            CallbackRunner(),
        )
        if not shows_the_run():
            return None
        data = parse_json(read_bytes(notes, _MOST_BYTES), "notes of workers")
    return measured([[read_as(Noted, draw, "notes of workers") for draw in own] for own in data])


def check_measurable(plan: Plan) -> None:
    """Refuse a plan that is not data-parallel on several devices.

    Raises:
        InputError: another kind of plan, or tensor parallelism.
    """
    if plan.strategy != "data_parallel" or len(plan.stages[0].devices) < 2 or plan.tensor > 1:
        devices = len({device for stage in plan.stages for device in stage.devices})
        found = f"{plan.strategy} on {devices} devices, tensor: {plan.tensor}"
        hint = (
            "Make one with `hocket plan --strategy data_parallel`; if it uses one device, add the others to the "
            "plan's `devices`."
        )
        raise InputError("plan", found, "data_parallel on several devices", hint)


def check_good(found: OverlapMeasurement) -> None:
    """Refuse a model that does not predict the measurements.

    Raises:
        InputError: the model's mean error is above MOST_ERROR.
    """
    if not found.error <= MOST_ERROR:
        hint = "Keep the machines otherwise idle; a job with a longer backward, or more draws and steps, give a better fit."
        raise InputError(
            "measurements", f"a model error of {found.error:.0%} for backward passes", f"at most {MOST_ERROR:.0%}", hint
        )


def cluster_of(plan: Plan, path: Path) -> Cluster:
    """Return the cluster of the output file if it exists, else the plan's.

    Raises:
        InputError: the file's cluster differs from the plan's in more than measured overlap.
    """
    if not path.is_file() or not path.stat().st_size:
        return plan.cluster
    there = Cluster.read(path)
    if _bare(there) != _bare(plan.cluster):
        hint = (
            "Choose another file with -o; or plan again with this one, and measure with that plan. Nothing was changed."
        )
        raise InputError(str(path), "another cluster than the plan's", "the plan's, or a new file", hint)
    return there


def _bare(cluster: Cluster) -> Cluster:
    return replace(cluster, levels=tuple(replace(level, overlap=None) for level in cluster.levels))


def with_overlap(plan: Plan, found: OverlapMeasurement) -> Cluster:
    """Return the plan's cluster, with the fitted model in the level of its devices."""
    cluster = plan.cluster
    level = cluster.level_of(plan.stages[0].devices)
    levels = list(cluster.levels)
    levels[level] = replace(levels[level], overlap=found.fitted.model)
    return replace(cluster, levels=tuple(levels))

"""One worker of bench_overlap.py.

It trains with buckets and threads drawn at random, or with given plans and DDP in turn:

    _overlap.py JOB FOLDER draw DRAWS STEPS
    _overlap.py JOB FOLDER plans ROUNDS STEPS

It reads plans from FOLDER and writes its measurements to notes-RANK.json or rounds-RANK.json there.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import capture
from hocket.profiling.data.source import order
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.runtime.progress.heartbeat import Heartbeat
from hocket.training.calibrate.buckets.random_buckets import BucketSampling
from hocket.training.calibrate.buckets.run import measure, noted
from hocket.training.worker.telemetry import Telemetry

THREADS = (1, 2, 4)
WARM_UP = 3  # DDP rebuilds its buckets after the first iteration


def main() -> None:
    """Measure as the arguments say."""
    path, folder, mode, count, steps = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, cpu, progress = dist.get_rank(), torch.device("cpu"), Heartbeat.private()
    job = load_job(path)
    if mode == "draw":
        plan, drawing = Plan.read(folder / "default.yaml"), BucketSampling(count, steps, THREADS)
        captured = capture(job, plan.microbatch_size)
        found: Any = measure(captured, plan, rank, cpu, drawing, Telemetry(progress, lambda event: None))
        (folder / f"notes-{rank}.json").write_text(json.dumps(found))
    else:
        rounds: dict[str, list[Any]] = {"ddp": []}
        for _ in range(count):
            rounds["ddp"].append(ddp(load_job(path), steps))
            for each in sorted(folder.glob("plan-*.yaml")):
                plan = Plan.read(each)
                one = noted(capture(job, plan.microbatch_size), plan, rank, cpu, steps, progress)
                rounds.setdefault(each.stem.removeprefix("plan-"), []).append(one)
        (folder / f"rounds-{rank}.json").write_text(json.dumps(rounds))
    dist.destroy_process_group()


def ddp(job: Job, steps: int) -> float:
    """Median seconds of a backward pass under DistributedDataParallel, with its all-reduces."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model, times = DistributedDataParallel(job.model), []
    optimizer = job.optimizer(model.parameters())
    assert job.loss is not None
    for step in range(steps + WARM_UP):
        mine = list(order(step, job.batch_size, len(job.data), 0))[rank::world]
        inputs, targets = (torch.stack(column) for column in zip(*(job.data[i] for i in mine), strict=True))
        loss = job.loss(model(inputs), targets)
        began_s = time.perf_counter()
        loss.backward()
        times.append(time.perf_counter() - began_s)
        optimizer.step()
        optimizer.zero_grad()
    return median(times[WARM_UP:])


if __name__ == "__main__":
    main()

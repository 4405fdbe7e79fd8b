"""Seconds of a step if every stage reads the samples, and if the first stage reads them for all.

    python bench/bench_read_once.py [--rounds 5] [--steps 40]

A small network that restores images trains as a pipeline of two stages on two local workers. Both stages need the image:
the first one as input, the last one for the loss. In four jobs an image takes no time, a short, a middle or a long time
to decode. Each job is profiled once. Its plan is predicted with `read_once: false` and `read_once: true`, and trained
with both, in turns.

Printed are milliseconds to load a microbatch, milliseconds of a step, predicted and measured, the median of the measured
ratios, and which of the two `hocket plan` takes.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from hocket.hardware.cluster import Cluster
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.read_once import with_read_once
from hocket.planning.search.result import Evaluated
from hocket.profiling.job.job_file import load_job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.profile import ModelProfile
from hocket.training.calibrate.local_links import measure_local
from hocket.training.train import train
from hocket.training.worker.monitor.listener import Quiet

BATCH, MICROBATCH = 32, 4
TIMES = {"none": 0, "short": 4, "middle": 16, "long": 64}
"""How often an image is decompressed at each read, by name of the job."""
JOB = '''
"""Images that are decompressed at each read, and restored by a small network."""

import zlib

import torch
from torch import nn

from hocket import Job

SIDE, TIMES = 32, 1


class Images:
    """Images in memory, and the same images compressed."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 64, (64, 3, SIDE, SIDE), generator=draw, dtype=torch.uint8)
        self.images, self.texts = pixels.float() / 64, [zlib.compress(one.numpy().tobytes()) for one in pixels]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        for _ in range(TIMES):
            zlib.decompress(self.texts[index])
        return self.images[index], self.images[index]


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU())


torch.manual_seed(0)
model = nn.Sequential(block(3, 24), block(24, 24), block(24, 24), nn.Conv2d(24, 3, 3, padding=1))
job = Job(model, nn.MSELoss(), Images(), lambda p: torch.optim.Adam(p), batch_size=BATCH)
'''


def main() -> None:
    """Profile, predict and train each job, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    cluster = measure_local(2)
    print(f"{'decoding':8}{'load':>9}{'every stage reads':>26}{'the first reads':>26}{'first/every':>13}")
    print(f"{'':8}{'':>9}" + f"{'predicted':>13}{'measured':>13}" * 2 + f"{'measured':>13}   plan takes")
    for name, times in TIMES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "job.py")
            path.write_text(JOB.replace("TIMES = 32, 1", f"TIMES = 32, {times}").replace("BATCH", str(BATCH)))
            print(row(name, path, cluster, options.rounds, options.steps), flush=True)


def row(name: str, path: Path, cluster: Cluster, rounds: int, steps: int) -> str:
    """Row of the table for one job."""
    profile = measure(load_job(path), (MICROBATCH,), MeasureRequest(budget_s=10.0, neighbours=1))
    plans = both(profile, cluster)
    predicted = [predict_iteration(plan, profile).iteration_s for plan in plans]
    took: list[list[float]] = [[], []]
    for _ in range(rounds):
        for seconds, plan in zip(took, plans, strict=True):
            seconds.append(train(path, plan, steps=steps, listener=Quiet()).iteration_s or 0.0)
    ratio = statistics.median(once / each for each, once in zip(*took, strict=True))
    figures = [1e3 * x for pair in zip(predicted, map(statistics.median, took), strict=True) for x in pair]
    shown = "".join(f"{x:13.1f}" for x in figures)
    return f"{name:8}{1e3 * profile.load_s[0]:9.2f}{shown}{ratio:13.3f}   {taken(plans[0], profile)}"


def both(profile: ModelProfile, cluster: Cluster) -> tuple[Plan, Plan]:
    """1F1B on two stages with as many layers; every stage reads samples, or the first one reads them for all."""
    names = [layer.name for layer in profile.layers]
    half = len(names) // 2
    stages = PlanStage(tuple(names[:half]), (0,)), PlanStage(tuple(names[half:]), (1,))
    plan = Plan("flush", profile.name, BATCH, MICROBATCH, stages, cluster)
    return plan, replace(plan, read_once=True)


def taken(plan: Plan, profile: ModelProfile) -> str:
    """Which of the two the planner takes."""
    predicted = predict_iteration(plan, profile)
    updates = LoadedPlan(plan, profile).updates
    found = with_read_once(Evaluated(predicted, "flush", "", replace(plan, predicted=predicted), updates), profile)
    return "the first reads" if found.plan.read_once else "every stage reads"


if __name__ == "__main__":
    main()

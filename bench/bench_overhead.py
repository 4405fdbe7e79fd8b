"""Seconds of a step on one worker: `hocket train` against a plain loop, bare and with all that a real run has.

    python bench/bench_overhead.py [--rounds 5] [--steps 60]

A small GPT trains on one worker with one thread. Two comparisons, each with both sides in turn:

- bare: samples are stacked when they are needed; there is no other work. The plain loop has the same microbatches.
- whole: two processes read ahead, the loss of each step is written to a CSV file, and 64 samples are evaluated after
  every 20 steps. The plain loop has `DataLoader(num_workers=2)`, the same evaluation and the same rows.

The figure is the mean time of a step after warm-up, evaluations and rows included. Printed are the ratios of Hocket's
to the plain loop's by round, and their median.
"""

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.training.callbacks.logger import logger
from hocket.training.train import train
from hocket.training.worker.monitor.listener import Quiet

BATCH, MICROBATCH, EVERY, EVALUATED, WARM_UP = 16, 4, 20, 64, 10
JOB = f'''
"""A small GPT; with the variable EVALUATES, it is evaluated while it trains."""

from dataclasses import replace

from hocket import Evaluation, models

EVALUATES = False
job = models.job("gpt", batch_size={BATCH}, samples=512, n_layer=4, d_model=192, n_head=6, seq=64, dropout=0.0)
if EVALUATES:
    held_out = [job.data[i] for i in range({EVALUATED})]
    job = replace(job, evaluate=Evaluation(held_out, every={EVERY}, batch_size={MICROBATCH}))
'''


class Clock:
    """Callback that keeps the time at which each step ended."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def on_step(self, info: Any) -> None:
        """Keep the time."""
        self.at_s.append(time.perf_counter())


def mean_s(at_s: list[float]) -> float:
    """Mean seconds of a step after warm-up, from the times at which steps ended."""
    return (at_s[-1] - at_s[WARM_UP - 1]) / (len(at_s) - WARM_UP)


def plain_s(job: Job, steps: int, folder: Path, whole: bool) -> float:
    """Seconds of a step of a plain loop."""
    optimizer = job.optimizer(job.model.parameters())
    loader: Any = DataLoader(
        job.data, MICROBATCH, shuffle=True, drop_last=True, num_workers=2 if whole else 0, persistent_workers=whole
    )
    held_out = [job.data[i] for i in range(EVALUATED)]
    at_s: list[float] = []
    total, microbatches = 0.0, 0
    with (folder / "plain.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        while len(at_s) < steps:
            for sample in loader:
                loss = _loss(job, sample) * (MICROBATCH / BATCH)
                loss.backward()
                total += float(loss.detach())
                microbatches += 1
                if microbatches % (BATCH // MICROBATCH):
                    continue
                optimizer.step()
                optimizer.zero_grad()
                if whole:
                    rows.writerow((len(at_s) + 1, total))
                    file.flush()
                    if (len(at_s) + 1) % EVERY == 0:
                        rows.writerow((len(at_s) + 1, "", _evaluated(job, held_out)))
                total = 0.0
                at_s.append(time.perf_counter())
                if len(at_s) == steps:
                    break
    return mean_s(at_s)


def _loss(job: Job, sample: Any) -> torch.Tensor:
    """Loss of a stacked microbatch."""
    inputs, target = sample
    assert job.loss is not None
    return job.loss(job.model(inputs), target)


def _evaluated(job: Job, samples: list[Any]) -> float:
    """Mean loss of the samples in evaluation mode."""
    job.model.eval()
    with torch.no_grad():
        parts = [samples[k : k + MICROBATCH] for k in range(0, len(samples), MICROBATCH)]
        stacked = ([torch.stack(column) for column in zip(*part, strict=True)] for part in parts)
        found = statistics.fmean(float(_loss(job, one)) for one in stacked)
    job.model.train()
    return found


def ours_s(path: Path, plan: Plan, steps: int, folder: Path, whole: bool) -> float:
    """Seconds of a step of Hocket."""
    clock = Clock()
    callbacks: list[Any] = [clock, *([logger(f"csv:{folder / 'ours.csv'}")] if whole else [])]
    train(path, plan, steps=steps, callbacks=callbacks, listener=Quiet())
    return mean_s(clock.at_s)


def main() -> None:
    """Train in turns, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--steps", type=int, default=60)
    options = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for word, whole in (("bare", False), ("whole", True)):
            path = folder / f"{word}.py"
            path.write_text(JOB.replace("EVALUATES = False", f"EVALUATES = {whole}"))
            layers = tuple(layer.name for layer in capture(load_job(path), MICROBATCH).layers)
            cluster = Cluster("local", (Level("machine", 1, 1e9),), "cpu-core")
            plan = Plan("data_parallel", "gpt", BATCH, MICROBATCH, (PlanStage(layers, (0,)),), cluster)
            plan = replace(plan, prefetch=2, loaders=2) if whole else plan
            sides: dict[str, Callable[[], float]] = {
                "plain": lambda p=path, w=whole: plain_s(load_job(p), options.steps, folder, w),  # type: ignore[misc]
                "hocket": lambda p=path, w=whole, c=plan: ours_s(p, c, options.steps, folder, w),  # type: ignore[misc]
            }
            took = [{side: of() for side, of in sides.items()} for _ in range(options.rounds)]
            ratios = [one["hocket"] / one["plain"] for one in took]
            shown = " ".join(f"{ratio:.3f}" for ratio in ratios)
            plain_ms = statistics.median(one["plain"] for one in took) * 1e3
            print(
                f"{word:6} plain {plain_ms:.1f} ms a step; Hocket by plain {shown}; median {statistics.median(ratios):.3f}"
            )


if __name__ == "__main__":
    main()

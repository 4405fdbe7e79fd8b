"""Seconds of a step where `data[i]` is slow: a plain loop with DataLoader, and Hocket without and with loads ahead.

    python bench/bench_loaders.py [--rounds 3] [--steps 30]

A small convolutional network trains on one worker with one thread. Each sample is decoded as a PNG image is: zlib, then
the filter of each row (Sub, Up or Average) in numpy. Four ways take turns, so that a slow spell of the machine affects
all of them:

- plain torch: a loop over microbatches from `DataLoader(num_workers=2)`, with a step for each batch;
- prefetch 0: Hocket as it is without options; computation waits for each load;
- prefetch 2: loads in a lane of their own, a thread of the worker;
- loaders 2: the same lane, and two processes that read.

Printed are the median seconds of a step, relative to the plain loop, with the seconds of every round. Reading ahead needs
free cores: on a machine with two cores, two loaders and the worker share them.
"""

import argparse
import statistics
import tempfile
import time
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
from hocket.training.train import train
from hocket.training.worker.monitor.listener import Quiet

BATCH, MICROBATCH = 16, 4
JOB = '''
"""A network for images that are decoded when they are read."""

import zlib

import numpy as np
import torch
from torch import nn

from hocket import Job

SIZE, CHANNELS = 64, 3


class Images:
    """Images in the form of PNG: each row has a filter, and all rows are compressed together."""

    def __init__(self, count=256):
        draw = np.random.default_rng(0)
        self.files = []
        for _ in range(count):
            rows = draw.integers(0, 6, (SIZE, SIZE * CHANNELS)).astype(np.uint8)
            kinds = draw.integers(1, 4, (SIZE, 1)).astype(np.uint8)
            self.files.append(zlib.compress(np.concatenate([kinds, rows], axis=1).tobytes()))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        """The image, (3, 64, 64), and its class."""
        raw = np.frombuffer(zlib.decompress(self.files[i]), np.uint8).reshape(SIZE, -1)
        above = np.zeros((SIZE, CHANNELS), np.uint8)
        image = np.zeros((SIZE, SIZE, CHANNELS), np.uint8)
        for y, row in enumerate(raw):
            kind, pixels = row[0], row[1:].reshape(SIZE, CHANNELS)
            if kind == 1:  # Sub
                above = np.add.accumulate(pixels, axis=0, dtype=np.uint8)
            elif kind == 2:  # Up
                above = pixels + above
            else:  # Average: of the pixel above and the one to the left, which is known only now
                made, left = np.empty_like(pixels), np.zeros(CHANNELS, np.int64)
                for x, pixel in enumerate(pixels):
                    left = (pixel + (left + above[x]) // 2) % 256
                    made[x] = left
                above = made
            image[y] = above
        return torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1).contiguous(), i % 10


def make_job():
    """The job."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16 * 16, 10),
    )
    return Job(model, nn.CrossEntropyLoss(), Images(), lambda p: torch.optim.SGD(p, lr=0.01), BATCH)
'''


def plain_s(job: Job, steps: int) -> float:
    """Seconds of a step of a plain loop, the median after the first few."""
    model, data, loss = job.model, job.data, job.loss
    assert loss is not None
    optimizer = job.optimizer(model.parameters())
    draw = torch.Generator().manual_seed(0)
    loader: Any = DataLoader(data, batch_size=MICROBATCH, shuffle=True, num_workers=2, generator=draw, drop_last=True)
    took: list[float] = []
    began_s, microbatches = time.perf_counter(), 0
    while len(took) < steps:
        for x, y in loader:
            (loss(model(x), y) * (MICROBATCH / BATCH)).backward()
            microbatches += 1
            if microbatches % (BATCH // MICROBATCH):
                continue
            optimizer.step()
            optimizer.zero_grad()
            took.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            if len(took) == steps:
                break
    return statistics.median(took[steps // 4 :])


def main() -> None:
    """Train in turns, and print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--steps", type=int, default=30)
    options = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "job.py"
        path.write_text(JOB.replace("BATCH", str(BATCH)))
        job = load_job(path)
        began_s = time.perf_counter()
        for i in range(MICROBATCH):
            job.data[i]
        read_s = time.perf_counter() - began_s
        layers = tuple(layer.name for layer in capture(job, MICROBATCH).layers)
        cluster = Cluster("local", (Level("machine", 1, 1e9),), "cpu-core")
        plan = Plan("data_parallel", "images", BATCH, MICROBATCH, (PlanStage(layers, (0,)),), cluster)
        ways = {"prefetch 0": plan, "prefetch 2": replace(plan, prefetch=2)}
        ways["loaders 2"] = replace(plan, prefetch=2, loaders=2)
        took: dict[str, list[float]] = {"plain torch": [], **{way: [] for way in ways}}
        for _ in range(options.rounds):
            took["plain torch"].append(plain_s(load_job(path), options.steps))
            for way, chosen in ways.items():
                summary = train(path, chosen, steps=options.steps, listener=Quiet())
                took[way].append(summary.iteration_s or float("nan"))
    plain = statistics.median(took["plain torch"])
    print(f"{options.steps} steps of {BATCH // MICROBATCH} microbatches of {MICROBATCH}, {options.rounds} rounds")
    print(f"reading a microbatch takes {read_s * 1e3:.1f} ms in one process")
    for way, seconds in took.items():
        middle = statistics.median(seconds)
        print(f"{way:12} {middle * 1e3:8.1f} ms  {middle / plain:5.2f} x  all {[round(s * 1e3, 1) for s in seconds]}")


if __name__ == "__main__":
    main()

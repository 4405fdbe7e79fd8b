"""Strategies that run on one device compared with a plain PyTorch loop, for a GPT: samples/s, memory and loss.

    python bench/gpu/bench_engines.py
    python bench/gpu/bench_engines.py --smoke

Each contestant runs in its own process, with the same weights, samples, microbatches and Adam:

    plain            forward, backward, optimizer.step(): autograd adds up the gradients of the microbatches
    data_parallel    the whole model as one stage
    stages           the same cut into four stages, one after the other on the same device
    recomputed       four stages that keep only their inputs
    two waves        two replicas of the model, half a cycle apart (different updates: weights are averaged)

The ratio to `plain` shows the overhead of the engine. All losses except those of `two waves` agree up to rounding.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card

from hocket import models
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.program.microbatches import Microbatches
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.executable import Executable

SMOKE = {"budget": 1.0, "layers": 2, "width": 32, "heads": 2, "seq": 16, "batch": 4, "microbatch": 2, "steps": 2}
WAYS = ("plain", "data_parallel", "stages", "recomputed", "two waves")
SMOKE_WAYS = ("plain", "recomputed", "two waves")
STAGES = 4


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_arguments(parser)
    given = card.parsed(parser, SMOKE)
    if given.only:
        print(json.dumps(trained(given, given.only)))
        return
    rows = card.contest(__file__, SMOKE_WAYS if given.smoke else WAYS, given.within)
    base = next((row for row in rows if row["name"] == "plain" and "failed" not in row), None)
    for row in rows:
        if base and "failed" not in row:
            row["of_plain"] = row["samples_per_s"] / base["samples_per_s"]
    columns = {
        "samples/s": ("samples_per_s", 1.0, ".1f"),
        "of plain": ("of_plain", 1.0, ".3f"),
        "peak GiB": ("peak_bytes", card.GIB, ".3f"),
        "loss": ("loss", 1.0, ".5f"),
    }
    card.show("engines", given, rows, card.table(rows, columns))


def model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the sizes of the GPT and of a step."""
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32, help="samples per step")
    parser.add_argument("--microbatch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after three warm-up steps")


def job_of(given: argparse.Namespace) -> Job:
    """Job with the same weights and data for all contestants."""
    torch.set_float32_matmul_precision("high")
    options = {"n_layer": given.layers, "d_model": given.width, "n_head": given.heads, "seq": given.seq}
    optimizer = partial(torch.optim.Adam, lr=1e-4)
    return models.job(
        "gpt", batch_size=given.batch, optimizer=optimizer, samples=given.batch * (given.steps + 4), **options
    )


def cluster_of(given: argparse.Namespace) -> Cluster:
    """Cluster of one device."""
    return Cluster("card", (Level("card", 1, 1e9),), "cpu-core" if given.smoke else "h100", sender_copies=True)


def plan_of(given: argparse.Namespace, captured: Captured, way: str, compile: str = "") -> Plan:
    """Plan of one contestant.

    Raises:
        KeyError: there is no such contestant.
    """
    names = [layer.name for layer in captured.layers]
    whole = PlanStage(tuple(names), (0,), compile=compile)
    sizes, cluster = (given.batch, given.microbatch), cluster_of(given)
    if way == "two waves":
        waves = whole, PlanStage(whole.layers, whole.devices, compile=compile, wave=1)
        return Plan("tick_tock", "gpt", *sizes, waves, cluster)
    if way == "data_parallel":
        return Plan("data_parallel", "gpt", *sizes, (whole,), cluster)
    recompute = {"stages": False, "recomputed": True}[way]
    count = min(STAGES, len(names))
    ends = [round(len(names) * k / count) for k in range(count + 1)]
    stages = tuple(PlanStage(tuple(names[a:b]), (0,), recompute, compile=compile) for a, b in pairwise(ends))
    return Plan("harmony", "gpt", *sizes, stages, cluster, {"mode": "data"})


class Losses(Unobserved):
    """Observer that collects the losses of microbatches."""

    def __init__(self) -> None:
        self.found: list[tuple[float, int]] = []

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Add the loss of one microbatch."""
        self.found.append((value, samples))

    def mean(self) -> float:
        """Return the mean over samples, and forget the collected losses."""
        found, self.found = self.found, []
        return sum(value * samples for value, samples in found) / sum(samples for _, samples in found)


def trained(given: argparse.Namespace, way: str) -> dict[str, Any]:
    """Train one contestant."""
    device, job = card.device_of(given), job_of(given)
    if way == "plain":
        return timed(given, device, plain_step(given, job, job.model, device))
    captured = capture(job, given.microbatch)
    with card.alone(device):
        worker, step = worker_step(given, captured, plan_of(given, captured, way), device)
        found = timed(given, device, step)
        worker.close()
        return found


def worker_step(
    given: argparse.Namespace, captured: Captured, plan: Plan, device: torch.device
) -> tuple[Worker, Callable[[int], float]]:
    """Worker of a plan, and a function that trains the step with a given number and returns its mean loss."""
    heard = Losses()
    worker = Worker(Executable(captured, plan.layout(captured), plan.compile(captured), device), observer=heard)

    def step(number: int) -> float:
        worker.run(1, worker.position)
        return heard.mean()

    return worker, step


def plain_step(given: argparse.Namespace, job: Job, model: Any, device: torch.device) -> Callable[[int], float]:
    """Function that trains one step of a plain PyTorch loop and returns its mean loss.

    Arguments:
        model: the job's model, or a compiled one that shares its weights.
    """
    job.model.to(device)
    optimizer = job.optimizer(list(job.model.parameters()))
    stream = Stream(job, Microbatches.of(given.batch, given.microbatch))
    count = given.batch // given.microbatch

    def step(number: int) -> float:
        total = torch.zeros((), device=device)
        for m in range(number * count, (number + 1) * count):
            tokens, targets = (t.to(device, non_blocking=True) for t in stream.batch(m).values())
            loss = job.loss(model(tokens), targets) * (len(tokens) / given.batch)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    return step


def timed(given: argparse.Namespace, device: torch.device, step: Callable[[int], float]) -> dict[str, Any]:
    """Median rate of the steps after three warm-up steps, memory, and the last loss."""
    seconds = []
    for number in range(given.steps + 3):
        card.finish(device)
        start_s = time.perf_counter()
        loss = step(number)
        card.finish(device)
        seconds.append(time.perf_counter() - start_s)
    rate = given.batch / statistics.median(seconds[3:])
    return {"samples_per_s": rate, "seconds": seconds, "loss": loss, **card.peaks(device)}


if __name__ == "__main__":
    main()

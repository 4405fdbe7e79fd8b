"""Two waves on one GPU compared with one wave, and with a recomputed batch of twice the size: a GPT and a ResNet.

    python bench/gpu/bench_waves_gpu.py                     # on a GPU, with 20 GiB of its memory
    python bench/gpu/bench_waves_gpu.py --budget 76 --sizes 8,16,32,64,128 --save
    python bench/gpu/bench_waves_gpu.py --smoke             # on a CPU, to test that it runs

Hocket trains all contestants, each in its own process with the same limit of GPU memory:

    one wave      strategy data_parallel on one device, microbatches of n
    twice         the same, with gradients of two microbatches of n added up before the step
    two waves     strategy tick_tock, n samples in each wave
    recomputed    a microbatch of 2 n, in packs of layers that keep only their inputs

The table has samples/s and memory for every n in --sizes that fits. The best row of a contestant shows its use of the
memory limit. Seconds are those of a long run minus those of a short run, so that filling and draining are left out.
"""

import argparse
import gc
import json
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
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.stage.executable import Executable

SMOKE = {
    "budget": 1.0,
    "sizes": "2,3",
    "layers": 2,
    "width": 32,
    "heads": 2,
    "seq": 16,
    "depth": 18,
    "image": 32,
    "periods": 2,
}
SHORT = 2  # periods of the short run, whose seconds are subtracted
WAYS = ("one wave", "twice", "two waves", "recomputed")


def main() -> None:
    """Print a table for each job, with ratios to the best of one wave in the same run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="gpt,resnet")
    parser.add_argument(
        "--sizes",
        default="2,4,8,16,32,64",
        help="samples per microbatch, ascending; the run ends at the first size that does not fit",
    )
    parser.add_argument("--layers", type=int, default=12, help="layers of the GPT")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=50, help="depth of the ResNet")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--packs", type=int, default=8, help="packs of layers with recomputed activations")
    parser.add_argument("--periods", type=int, default=12, help="timed periods")
    given = card.parsed(parser, SMOKE)
    if given.only:
        name, _, way = given.only.partition(": ")
        print(json.dumps(sizes_of(given, name, way)))
        return
    jobs = given.jobs.split(",")
    found = card.contest(__file__, [f"{name}: {way}" for name in jobs for way in WAYS], given.within)
    rows = [rowed for row in found for rowed in spread(row)]
    texts = [text_of([row for row in rows if row["name"].startswith(f"{name}:")]) for name in jobs]
    card.show("waves", given, rows, "\n\n".join(texts))


def spread(row: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per size."""
    if "failed" in row:
        return [row]
    return [{**one, "name": f"{row['name']}, {one['size']}"} for one in row["sizes"]]


def text_of(rows: list[dict[str, Any]]) -> str:
    """Table of a job, and the best row of each contestant."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        way = row["name"].partition(": ")[2].partition(",")[0]
        if row.get("samples_per_s") and row["samples_per_s"] > best.get(way, {"samples_per_s": 0.0})["samples_per_s"]:
            best[way] = row
    base = best.get("one wave")
    for row in rows:
        if base and row.get("samples_per_s"):
            row["of_one"] = row["samples_per_s"] / base["samples_per_s"]
    columns = {
        "samples/s": ("samples_per_s", 1.0, ".1f"),
        "of one wave's best": ("of_one", 1.0, ".2f"),
        "peak GiB": ("peak_bytes", card.GIB, ".3f"),
        "reserved GiB": ("reserved_bytes", card.GIB, ".3f"),
    }
    words = "; ".join(f"{way} {row['samples_per_s']:.1f} at {row['size']}" for way, row in best.items())
    return f"{card.table(rows, columns)}\n\nbest, samples/s at n: {words or 'none'}"


def job_of(given: argparse.Namespace, name: str, batch: int) -> Job:
    """Job with the same weights and data for all contestants."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    options: dict[str, Any] = {"depth": given.depth, "image": given.image}
    if given.smoke and name != "gpt":
        options["width"] = 0.1
    if name == "gpt":
        options = {"n_layer": given.layers, "d_model": given.width, "n_head": given.heads, "seq": given.seq}
    optimizer = partial(torch.optim.Adam, lr=1e-4)
    return models.job(name, batch_size=batch, samples=max(64, 2 * batch), optimizer=optimizer, **options)


def plan_of(given: argparse.Namespace, captured: Captured, name: str, way: str, size: int) -> Plan:
    """Plan of a contestant for microbatches of one size, on one device."""
    names = [layer.name for layer in captured.layers]
    cluster = Cluster("card", (Level("card", 1, 1e9),), "cpu-core" if given.smoke else "h100", sender_copies=True)
    whole = PlanStage(tuple(names), (0,))
    if way == "recomputed":
        count = min(given.packs, len(names))
        ends = [round(len(names) * k / count) for k in range(count + 1)]
        packs = [PlanStage(tuple(names[a:b]), (0,), recompute=True) for a, b in pairwise(ends)]
        return Plan("harmony", name, 2 * size, 2 * size, tuple(packs), cluster, {"mode": "data"})
    if way == "two waves":
        stages = whole, PlanStage(whole.layers, whole.devices, wave=1)
        return Plan("tick_tock", name, 2 * size, size, stages, cluster)
    return Plan("data_parallel", name, size * (2 if way == "twice" else 1), size, (whole,), cluster)


def sizes_of(given: argparse.Namespace, name: str, way: str) -> dict[str, Any]:
    """Rows of a contestant for ascending sizes, until one does not fit."""
    device, rows = card.device_of(given), list[dict[str, Any]]()
    with card.alone(device):
        for size in map(int, given.sizes.split(",")):
            try:
                rows.append({"size": size, **trained(given, device, name, way, size)})
            except torch.OutOfMemoryError:
                break
            finally:
                gc.collect()
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    if not rows:
        raise SystemExit("torch.OutOfMemoryError: not even the smallest size fits")
    return {"sizes": rows}


def trained(given: argparse.Namespace, device: torch.device, name: str, way: str, size: int) -> dict[str, Any]:
    """Samples/s and memory for one size."""
    job = job_of(given, name, (1 if way == "one wave" else 2) * size)
    captured = capture(job, 2 * size if way == "recomputed" else size)
    plan = plan_of(given, captured, name, way, size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    worker = Worker(Executable(captured, plan.layout(captured), plan.compile(captured), device))
    seconds: Callable[[int], float] = partial(timed, worker, device)
    seconds(SHORT)
    short, long = seconds(SHORT), seconds(SHORT + given.periods)
    rate = (
        plan.batch_size * given.periods / (long - short) if long > short else None
    )  # None on a busy machine with too few periods
    found = {"samples_per_s": rate, **card.peaks(device)}
    if device.type == "cpu":
        found["peak_bytes"] = worker.peak_memory_bytes
    worker.close()
    return found


def timed(worker: Worker, device: torch.device, periods: int) -> float:
    """Seconds of a run with `periods` periods, including filling and draining."""
    card.finish(device)
    began = time.perf_counter()
    worker.run(periods, worker.position)
    card.finish(device)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

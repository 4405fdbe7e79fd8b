"""Hocket's engine against torch.distributed.pipelining: same GPT, same two stages, same microbatches, two pinned workers.

    python bench/bench_pipelining.py [--rounds 8] [--batches 6]

Both live in the same two processes (one thread each, one core each, gloo) and train in turn, some batches a turn, so that
whatever else the machine does meets both; figures are medians over rounds, ratios are taken round by round. Every side
takes its optimizer step. PipeDream and 2BW are set beside torch's 1F1B: the missing bubble allows (m + p - 1) / m of it; a
turn of theirs includes filling and draining the pipeline once.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from _torch_pipelining import Pipelining
from jobs.gpt import BATCH_SIZE, N_LAYER, make_job

from hocket.hardware.cluster import Cluster, Level
from hocket.plan.plan import Plan, PlanStage
from hocket.profile.capture import Captured, capture
from hocket.run.engines.torch_dist import Worker

MICROBATCHES, STAGES = 8, 2
STRATEGIES = ("gpipe", "flush", "pipedream", "two_bw")
BESIDE = {"gpipe": "gpipe", "flush": "flush", "pipedream": "flush", "two_bw": "flush"}

Turn = Callable[[int], None]  # trains so many batches


def hocket_turn(captured: Captured, strategy: str, rank: int) -> Turn:
    """Hocket under one strategy, its stages those of the other side: embeddings and half of the blocks; the rest."""
    names = [layer.name for layer in captured.layers]
    border = next(i for i, name in enumerate(names) if name.startswith(f"blocks.{N_LAYER // 2}"))
    stages = tuple(PlanStage(tuple(part), (s,)) for s, part in enumerate((names[:border], names[border:])))
    cluster = Cluster("two cores", (Level("local", STAGES, 1e9),), "cpu-core")
    plan = Plan(strategy, "gpt-bench", BATCH_SIZE, BATCH_SIZE // MICROBATCHES, stages, cluster)
    program = plan.compile(captured)
    worker = Worker(captured, plan, program, rank)

    def turn(batches: int) -> None:
        worker.run((batches * MICROBATCHES - program.admitted) // program.stride)

    return turn


def work(rank: int, folder: str, rounds: int, batches: int) -> None:
    """One of the two processes."""
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", STAGES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=STAGES, timeout=timedelta(seconds=300))
    captured = capture(make_job(), BATCH_SIZE // MICROBATCHES)
    theirs = {name: Pipelining(name, MICROBATCHES, rank).train for name in ("gpipe", "flush")}
    turns: dict[str, Turn] = {f"torch {name}": turn for name, turn in theirs.items()}
    turns |= {f"hocket {name}": hocket_turn(captured, name, rank) for name in STRATEGIES}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds + 1):
        for name, turn in turns.items():
            dist.barrier()
            began = time.perf_counter()
            turn(batches)
            dist.barrier()
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - began) / batches)
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print one JSON line a strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batches", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (folder, given.rounds, given.batches), STAGES, start_method="spawn")
        seconds = json.loads(Path(folder, "seconds.json").read_text())
    allowed = (MICROBATCHES + STAGES - 1) / MICROBATCHES
    for strategy in STRATEGIES:
        ours, theirs = seconds[f"hocket {strategy}"], seconds[f"torch {BESIDE[strategy]}"]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        row: dict[str, float | str] = {
            "hocket": strategy,
            "torch": BESIDE[strategy],
            "hocket_iteration_s": statistics.median(ours),
            "torch_iteration_s": statistics.median(theirs),
            "torch_by_hocket": statistics.median(ratios),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        }
        if strategy in ("pipedream", "two_bw"):
            row["allowed_by_missing_bubble"] = allowed
            row["share_of_allowed_gain"] = (statistics.median(ratios) - 1) / (allowed - 1)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""Hocket's engine compared with torch.distributed.pipelining, for the same GPT, stages and microbatches.

    python bench/bench_pipelining.py [--launches 6] [--rounds 3] [--batches 8]

Both libraries run in the same two processes, with one thread and one core each. They train in turns of some batches, so
that other load on the machine affects both. torch sends messages over gloo. Hocket sends them through shared memory, as
`hocket train` does on one machine; separate rows have Hocket over gloo, as between machines.

The memory layout of a process makes each side some per cent faster or slower for the whole life of the process. The
order in which the sides are created matters even more. So the processes are launched several times, each launch creates
another side first, and each round begins with another side. Times are medians over all rounds. Ratios are computed in
each round; the ratios of each launch are printed, too. Every side takes its optimizer step.

PipeDream and 2BW are compared with torch's 1F1B. With equal stages and free updates, a schedule without bubbles has
(m + p - 1) / m times the throughput of 1F1B. The limit for these stages is lower for two reasons. The bubble is as long
as the other stage's microbatch, and additional weight updates (PipeDream) or copies of weights are work, not bubbles.
The limit is computed from the median seconds of every kind of instruction, recorded in one more turn in the same
processes. A turn of an asynchronous strategy also has one bubble, when the pipeline is filled and drained; it is
counted.
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
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.stage.executable import Executable

MICROBATCHES, STAGES = 8, 2
STRATEGIES, ASYNCHRONOUS = ("gpipe", "flush", "pipedream", "two_bw"), ("pipedream", "two_bw")
SIDES = (
    *("torch gpipe", "hocket gpipe", "gloo gpipe", "hocket flush", "gloo flush", "torch flush"),
    *("hocket pipedream", "hocket two_bw"),
)
"""Sides: "torch"; "hocket", with messages through shared memory; "gloo", Hocket with messages over gloo as torch."""
ROWS = (("gloo", "gpipe"), ("gloo", "flush"), *(("hocket", strategy) for strategy in STRATEGIES))
BESIDE = {"gpipe": "gpipe", "flush": "flush", "pipedream": "flush", "two_bw": "flush"}

Turn = Callable[[int], None]  # trains a number of batches
Seconds = dict[str, float]  # median seconds by kind of instruction


def hocket_worker(
    captured: Captured, strategy: str, rank: int, record: bool = False, shared_memory: bool = True
) -> Worker:
    """Hocket's worker under one strategy.

    The stages are the same as on torch's side: the embeddings and half of the blocks, and the rest.
    """
    names = [layer.name for layer in captured.layers]
    border = next(i for i, name in enumerate(names) if name.startswith(f"blocks.{N_LAYER // 2}"))
    stages = tuple(PlanStage(tuple(part), (s,)) for s, part in enumerate((names[:border], names[border:])))
    cluster = Cluster("two cores", (Level("local", STAGES, 1e9),), "cpu-core")
    plan = Plan(strategy, "gpt-bench", BATCH_SIZE, BATCH_SIZE // MICROBATCHES, stages, cluster)
    return Worker(
        Executable(captured, plan.layout(captured), plan.compile(captured)),
        shared_memory=shared_memory,
        clock=time.perf_counter if record else None,
    )


def hocket_turn(worker: Worker) -> Turn:
    """Function that trains a number of batches."""
    program = worker.program
    return lambda batches: worker.run((batches * MICROBATCHES - program.admitted) // program.stride) and None


def kinds(worker: Worker, batches: int) -> list[Seconds]:
    """Train, and return the median seconds of each kind of instruction, by rank. It is a collective call."""
    hocket_turn(worker)(batches)
    found: dict[str, list[float]] = {}
    for instruction, start_s, end_s, _ in worker.records:
        found.setdefault(str(instruction.kind), []).append(end_s - start_s)
    own = {kind: statistics.median(times) for kind, times in found.items()}
    gathered: list[Seconds | None] = [None] * STAGES
    dist.all_gather_object(gathered, own)
    return [one for one in gathered if one is not None]


def batch_s(strategy: str, stages: list[Seconds], batches: int) -> float:
    """Seconds of one batch of a turn, if transfers and the engine take no time.

    It is the slowest stage's work, plus the work of the other stages as its bubble. An asynchronous strategy has this
    bubble once in a turn.
    """
    once = [one["load"] + one["forward"] + one["backward"] for one in stages]
    steps = MICROBATCHES if strategy == "pipedream" else 1
    bubble = (sum(once) - max(once)) / (batches if strategy in ASYNCHRONOUS else 1)
    return MICROBATCHES * max(once) + bubble + steps * max(one["step"] for one in stages)


def allowed_gain(strategy: str, recorded: dict[str, list[Seconds]], batches: int) -> float:
    """Largest possible ratio to the throughput of torch's 1F1B without the bubble.

    The stages' work is the same on both sides: the recorded times of 1F1B are used for both.
    """
    own = [{**work, "step": one["step"]} for work, one in zip(recorded["flush"], recorded[strategy], strict=True)]
    return batch_s("flush", recorded["flush"], batches) / batch_s(strategy, own, batches)


def _rotated(sides: tuple[str, ...], by: int) -> tuple[str, ...]:
    return sides[by % len(sides) :] + sides[: by % len(sides)]


def _side(side: str, captured: Captured, rank: int) -> Turn:
    """Turn function of one side."""
    whose, name = side.split()
    if whose == "torch":
        return Pipelining(name, MICROBATCHES, rank).train
    return hocket_turn(hocket_worker(captured, name, rank, shared_memory=whose == "hocket"))


def work(rank: int, folder: str, launch: int, rounds: int, batches: int) -> None:
    """Run one of the two processes."""
    warnings.simplefilter("ignore")
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", STAGES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=STAGES, timeout=timedelta(seconds=300))
    captured = capture(make_job(), BATCH_SIZE // MICROBATCHES)
    turns = {side: _side(side, captured, rank) for side in _rotated(SIDES, launch)}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):
        for name in _rotated(SIDES, number):
            turn = turns[name]
            dist.barrier()
            began = time.perf_counter()
            turn(batches)
            dist.barrier()
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - began) / batches)
    recorded = {name: kinds(hocket_worker(captured, name, rank, record=True), batches) for name in STRATEGIES}
    if rank == 0:
        Path(folder, "seconds.json").write_text(json.dumps([seconds, recorded]))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print one JSON line for each strategy and kind of message."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    allowed: dict[str, list[float]] = {strategy: [] for strategy in ASYNCHRONOUS}
    for launch in range(given.launches):
        with tempfile.TemporaryDirectory() as folder:
            arguments = (folder, launch, given.rounds, given.batches)
            mp.start_processes(work, arguments, STAGES, start_method="spawn")
            found, recorded = json.loads(Path(folder, "seconds.json").read_text())
        for strategy in ASYNCHRONOUS:
            allowed[strategy].append(allowed_gain(strategy, recorded, given.batches))
        for side in SIDES:
            seconds[side] += found[side]
    for whose, strategy in ROWS:
        ours, theirs = seconds[f"{whose} {strategy}"], seconds[f"torch {BESIDE[strategy]}"]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        row: dict[str, float | str | list[float]] = {
            "hocket": strategy,
            "messages": "gloo" if whose == "gloo" else "memory",
            "torch": BESIDE[strategy],
            "hocket_iteration_s": statistics.median(ours),
            "torch_iteration_s": statistics.median(theirs),
            "torch_by_hocket": statistics.median(ratios),
            "quartiles": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
            "by_launch": [
                round(statistics.median(ratios[at : at + given.rounds]), 3)
                for at in range(0, len(ratios), given.rounds)
            ],
        }
        if strategy in ASYNCHRONOUS:
            gain = statistics.median(allowed[strategy])
            row["allowed_with_equal_stages"] = (MICROBATCHES + STAGES - 1) / MICROBATCHES
            row["allowed_by_missing_bubble"] = gain
            row["share_of_allowed_gain"] = (statistics.median(ratios) - 1) / (gain - 1)
            row["share_of_allowed_throughput"] = statistics.median(ratios) / gain
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

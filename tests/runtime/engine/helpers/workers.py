"""Real workers for the tests of the distributed engine.

The processes meet in a folder and write their results there.
"""

import copy
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.executable import Executable
from hocket.training.launch import fork_server
from tests.limits import HUNG
from tests.runtime.helpers import starting
from tests.runtime.helpers.plans import Case, captured, program_of

# (case, model, optimizer, repetitions of the period, where the observer ends it) by number of workers.
Run = tuple[Case, str, str, int, int | None]
RUNS: dict[int, list[Run]] = {
    2: [
        (Case("gpipe", (1, 1), batch_size=7), "gpt", "adam", 3, None),
        (Case("gpipe", (1, 1), batch_size=32), "gpt", "momentum", 3, None),
        (Case("flush", (1, 1), batch_size=32), "gpt", "momentum", 3, None),
        (Case("interleaved", (1, 1), rounds=2), "lstm", "momentum", 3, None),
        (Case("data_parallel", (2,), threads=(2, 1)), "gpt", "adam", 3, None),
        (Case("flush", (1, 1)), "gpt weighted clipped", "momentum", 3, None),
        (Case("interleaved", (1, 1), rounds=2), "gpt bfloat16", "adam", 3, None),
        (Case("pipedream", (1, 1)), "lstm", "momentum", 8, None),
        (Case("pipedream", (1, 1), options={"naive": True}), "gpt untied", "momentum", 8, 5),
        (Case("two_bw", (1, 1)), "gpt", "adam", 6, 3),
        (Case("data_parallel", (2,), shard="optimizer"), "gpt bfloat16", "adam", 3, None),
        (Case("flush", (2,), shard="full"), "gpt untied bfloat16", "adam", 3, None),
        (Case("fully_sharded", (2,), rounds=4, recompute=True, shard="full"), "gpt untied", "adam", 3, 2),
        (Case("burst_parallel", (2, 1, 2), 15, 8), "gpt plain untied", "adam", 3, None),
        (Case("burst_parallel", (1, 2, 1), 8, 4), "inception plain", "momentum", 3, None),
        (Case("waves", (2, 2), batch_size=7), "gpt", "adam", 3, 2),
        (Case("waves", (2, 2), rounds=2, shard="full"), "lstm", "momentum", 3, None),
        (Case("tick_tock", (2,), 15, 2), "lstm", "momentum", 3, None),
        (Case("tick_tock", (2,), recompute=True), "gpt clipped", "adam", 3, 2),
        (Case("tick_tock", (2,), 16, 2, options={"align": "forwards"}), "gpt clipped", "adam", 3, None),
        (Case("data_parallel", (2,), out=True), "gpt bfloat16", "adam", 3, None),
        (Case("interleaved", (1, 1), rounds=2, out=True), "gpt clipped", "adam", 3, 2),
        (Case("flush", (1, 1), recompute=True, out=True), "lstm", "momentum", 3, None),
        (Case("harmony", (2,), rounds=3, out=True), "gpt", "adam", 3, None),
        (Case("flush", (1, 1), prefetch=2), "gpt weighted clipped", "momentum", 3, None),
        (Case("two_bw", (1, 1), prefetch=3), "gpt", "adam", 6, 3),
        (Case("data_parallel", (2,), shard="optimizer", prefetch=9), "gpt", "adam", 3, 2),
    ],
    3: [
        (Case("flush", (2, 1), recompute=True), "gpt", "adam", 3, None),
        (Case("flush", (2, 1), threads=(1, 3)), "gpt clipped", "adam", 3, None),
        (Case("model_parallel", (1, 1, 1)), "inception", "momentum", 3, None),
        (Case("pipedream", (2, 1)), "gpt untied", "momentum", 6, 4),
        (Case("two_bw", (2, 1), batch_size=7), "lstm", "adam", 5, None),
        (Case("pipedream", (2, 1), shard="optimizer"), "gpt untied", "momentum", 6, 4),
        (Case("two_bw", (1, 2), batch_size=7, shard="optimizer"), "gpt", "adam", 5, None),
        (Case("burst_parallel", (3, 2, 1, 3), 12, 2), "gpt plain untied", "adam", 3, 2),
        (Case("tick_tock", (3,), 12, 2), "gpt", "adam", 3, None),
    ],
    4: [
        (Case("flush", (2, 2), recompute=True, shard="optimizer"), "gpt weighted clipped", "adam", 3, None),
        (Case("data_parallel", (4,), shard="optimizer"), "lstm", "momentum", 3, None),
        (Case("flush", (2, 2), shard="full"), "gpt untied", "adam", 3, None),
        (Case("burst_parallel", (4, 2, 1, 2, 4), 9, 3), "gpt plain untied", "adam", 3, None),
        (Case("waves", (4, 4, 4, 4), recompute=True), "gpt untied", "adam", 3, None),
        (Case("tick_tock", (4,), 16, 2), "lstm", "momentum", 3, None),
    ],
}

# Those of them whose messages go through gloo, as between machines, and not through memory.
OVER_GLOO = {2: {0, 3, 5, 6, 8, 9, 13, 15, 22}, 3: {0, 4}, 4: {3}}

# What two workers bring into collectives: a case, and repetitions of its period.
SHARING = [
    (Case("data_parallel", (2,), shard="optimizer"), 3),
    (Case("data_parallel", (2,)), 3),
    (Case("fully_sharded", (2,), rounds=4, shard="full"), 3),
]


class Noted(Unobserved):
    """Keeps the losses and the questions; ends the run at a given period."""

    def __init__(self, end: int | None) -> None:
        self.end = end
        self.asked: list[int] = []
        self.losses: list[tuple[int, float, float]] = []

    def goes_on(self, periods: int) -> bool:
        """Until the end."""
        self.asked.append(periods)
        return self.end is None or periods < self.end

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Keep it."""
        self.losses.append((microbatch, value, weight))


def join(folder: Path, rank: int, workers: int) -> None:
    """Meet the others."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=HUNG)


def run_cases(folder: Path, rank: int, workers: int) -> None:
    """Run the cases that `cases.json` lists for this number of workers.

    Results are files of tensors and JSON.
    """
    join(folder, rank, workers)
    for number in json.loads((folder / "cases.json").read_text()):
        case, model, optimizer, repeats, end = RUNS[workers][number]
        graph = captured(model, optimizer)
        plan, program = case.plan(graph), program_of(case, graph)
        noted, shared = Noted(end), number not in OVER_GLOO[workers]
        worker = Worker(
            Executable(graph, plan.layout(graph), program),
            observer=noted,
            shared_memory=shared,
            clock=time.perf_counter,
        )
        periods = worker.run(repeats)
        facts: dict[str, Any] = {
            "device": worker.number,
            "periods": periods,
            "over_gloo": bool(worker._groups._pairs),
            "asked": list(noted.asked),
            "losses": list(noted.losses),
            "position": worker.position,
            "peak_memory_bytes": worker.peak_memory_bytes,
            "events": [
                (r.instruction.lane, r.instruction.name, r.start_s, r.end_s)
                for r in sorted(worker.records, key=lambda record: record.start_s)
            ],
        }
        # Another segment, from the state that the first one left.
        state = {part: dict(entries) for part, entries in worker.state().items()}
        weights = {name: tensor.clone() for name, tensor in state["weights"].items()}
        torch.save(weights, folder / f"{number}-{rank}.pt")
        worker.load({**state, "weights": weights})
        noted.end = None
        worker.run(1, worker.position)
        torch.save(worker.state()["weights"], folder / f"{number}-{rank}-more.pt")
        (folder / f"{number}-{rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def carry(folder: Path, rank: int, workers: int) -> None:
    """The cases of SHARING: bytes by kind of collective."""
    join(folder, rank, workers)
    graph = captured("gpt untied", "adam")
    for number, (case, repeats) in enumerate(SHARING):
        plan = case.plan(graph)
        worker = Worker(Executable(graph, plan.layout(graph), plan.compile(graph)))
        worker.run(repeats)
        (folder / f"{number}-{rank}.json").write_text(json.dumps(worker.carried_bytes))
    dist.destroy_process_group()


FSDP_CASES = (Case("fully_sharded", (2,), rounds=4, shard="full"), Case("data_parallel", (2,), shard="optimizer"))
FSDP_STEPS = 6


def beside_fsdp(folder: Path, rank: int, workers: int) -> None:
    """Run the same GPT by our engine and by PyTorch's `fully_shard`.

    The results are the losses of this worker's microbatches.
    """
    join(folder, rank, workers)
    graph = captured("gpt plain untied", "adam")
    found: list[list[tuple[int, float, float]]] = []
    for case in FSDP_CASES:
        plan, noted = case.plan(graph), Noted(None)
        Worker(Executable(graph, plan.layout(graph), plan.compile(graph)), observer=noted).run(FSDP_STEPS)
        found.append(noted.losses)
    job, stream = graph.job, Stream(graph.job, FSDP_CASES[0].plan(graph).batches)
    model, each = copy.deepcopy(job.model), stream.batches.count
    mesh = init_device_mesh("cpu", (workers,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer, losses = job.optimizer(model.parameters()), []
    for step in range(FSDP_STEPS):
        own = range(step * each + rank, (step + 1) * each, workers)
        for m in own:
            args, kwargs, loss_args, loss_kwargs = job.split(stream.batch(m))
            loss = job.loss(model(*args, **kwargs), *loss_args, **loss_kwargs)
            model.set_requires_gradient_sync(m == own[-1])
            # It divides by the number of workers.
            (loss * (workers * stream.samples(m) / stream.batches.batch_size)).backward()
            losses.append((m, float(loss.detach()), stream.samples(m)))
        optimizer.step()
        optimizer.zero_grad()
    (folder / f"{rank}.json").write_text(json.dumps([*found, losses]))
    dist.destroy_process_group()


def be_killed(folder: Path, rank: int, workers: int) -> None:
    """Train until the last rank is killed.

    The other ranks record their error and its time.
    """
    join(folder, rank, workers)
    graph = captured("gpt")
    plan = Case("flush", (1,) * workers).plan(graph)
    program = plan.compile(graph)

    class Dying(Unobserved):
        def goes_on(self, periods: int) -> bool:
            if periods == 4 and rank == workers - 1:
                (folder / "died").write_text(str(time.monotonic()))
                os.kill(os.getpid(), 9)
            return True

    worker = Worker(Executable(graph, plan.layout(graph), program), observer=Dying())
    try:
        worker.run(100_000)
    except Exception as error:
        fact = {"kind": type(error).__name__, "text": str(error), "at_s": time.monotonic()}
        (folder / f"error-{rank}.json").write_text(json.dumps(fact))
    os._exit(3)


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """One worker."""
    what, folder, rank, workers = arguments
    ways = {"run_cases": run_cases, "carry": carry, "beside_fsdp": beside_fsdp, "be_killed": be_killed}
    ways[what](Path(folder), int(rank), int(workers))


def start(what: str, folder: Path, workers: int) -> list[fork_server.ForkedProcess]:
    """Start the workers."""
    return starting.start(
        "tests.runtime.engine.helpers.workers", *((what, folder, rank, workers) for rank in range(workers))
    )

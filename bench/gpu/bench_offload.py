"""Training of a GPT with more state than GPU memory: Hocket's swaps compared with other uses of host memory.

    python bench/gpu/bench_offload.py                    # on a GPU, with 20 GiB of its memory
    python bench/gpu/bench_offload.py --budget 10 --layers 24 --save
    python bench/gpu/bench_offload.py --smoke            # on a CPU, to test that it runs

Each contestant runs in its own process, with the same limit of GPU memory, the same weights, samples and Adam:

    hocket 0, 1, 2   strategy harmony, packs recomputed, swap policy next_use, prefetch of 0, 1 or 2 operations ahead
    fsdp2            fully_shard of each block with CPUOffloadPolicy, blocks recomputed, Adam on the host, microbatches
                     as in hocket
    fsdp2 whole      the same with the whole batch in one piece
    optimizer        plain PyTorch: weights and gradients on the GPU, gradients copied during the backward pass, Adam on
                     the host
    deepspeed        ZeRO stage 3 with parameters and optimizer on the host, if DeepSpeed can be imported

Samples/s are medians over steps. The copied bytes, and the share of the copies' time that kernels hide, are from
torch.profiler for one more step. In a smoke run these two are from Hocket's own records; the other contestants have
none.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _card as card

from hocket import models
from hocket.cost.analytic.from_operators import costed
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.program.instruction import SWAPS, Kind
from hocket.program.passes.swapping.settings import Swapping
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.progress.observer import Unobserved
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.executable import Executable
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.util.units import show_bytes

RATE = 1e-4
STATE_BYTES = 16  # per weight in float32: the weight, its gradient, and two moments
SMOKE = {"budget": 4.5e-4, "layers": 3, "width": 32, "heads": 2, "seq": 16, "batch": 4, "microbatch": 1, "steps": 2}
Step = Callable[[int], float]
"""Function that trains the step with a given number, and returns its mean loss when it is computed."""


def main() -> None:
    """Print the table, with ratios to the row fsdp2 of the same run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16, help="samples per step")
    parser.add_argument("--microbatch", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.8, help="share of the budget that Hocket's values may use")
    parser.add_argument(
        "--packs", type=int, default=0, help="stages of Hocket's plan; 0: the number of blocks plus two"
    )
    parser.add_argument("--steps", type=int, default=5, help="timed steps, after two warm-up steps")
    given = card.parsed(parser, SMOKE)
    state_bytes = STATE_BYTES * weights_of(given)
    if state_bytes <= given.budget * card.GIB:
        raise SystemExit(
            f"The state of this GPT, {show_bytes(state_bytes)}, fits into --budget {given.budget}: take more --layers."
        )
    if given.only:
        print(json.dumps(CONTESTANTS[given.only](given)))
        return
    names = [name for name in CONTESTANTS if name != "deepspeed" or importlib.util.find_spec("deepspeed")]
    rows = card.contest(__file__, names, given.within)
    base = next((row["samples_per_s"] for row in rows if row["name"] == "fsdp2" and "failed" not in row), None)
    for row in rows:
        if base and "failed" not in row:
            row["of_fsdp2"] = row["samples_per_s"] / base
    columns = {
        "samples/s": ("samples_per_s", 1.0, ".3f"),
        "of fsdp2": ("of_fsdp2", 1.0, ".2f"),
        "GiB copied a step": ("copied_bytes", card.GIB, ".2f"),
        "s of copies": ("copy_s", 1.0, ".3f"),
        "hidden": ("hidden", 0.01, ".0f"),
        "peak GiB": ("peak_bytes", card.GIB, ".2f"),
        "reserved GiB": ("reserved_bytes", card.GIB, ".2f"),
        "loss": ("loss", 1.0, ".5f"),
    }
    head = f"state {show_bytes(state_bytes)}, of the card {show_bytes(given.budget * card.GIB)}; hidden in % of the time of copies\n\n"
    card.show("offload", given, rows, head + card.table(rows, columns))


def weights_of(given: argparse.Namespace) -> int:
    """Number of the model's parameters."""
    with torch.device("meta"):
        model = models.GPT(models.GPTSizes(given.layers, given.width, given.heads, given.seq), tied=False)
    return sum(parameter.numel() for parameter in model.parameters())


def job_of(given: argparse.Namespace) -> Job:
    """Job with the same weights and data for all contestants."""
    torch.set_float32_matmul_precision("high")
    options = {"n_layer": given.layers, "d_model": given.width, "n_head": given.heads, "seq": given.seq, "tied": False}
    samples = given.batch * (given.steps + 4)
    optimizer = partial(torch.optim.Adam, lr=RATE)
    return models.job("gpt", batch_size=given.batch, optimizer=optimizer, samples=samples, **options)


def cluster_of(given: argparse.Namespace) -> Cluster:
    """Cluster of one device; its type has no effect here."""
    return Cluster("card", (Level("card", 1, 1e9),), "cpu-core" if given.smoke else "h100", sender_copies=True)


def plan_of(given: argparse.Namespace, prefetch: int, job: Job) -> Plan:
    """Plan with packs of about equal weights on one device, with swaps."""
    cluster = cluster_of(given)
    profile = costed(sketch(job, (given.microbatch,), foreach=not given.smoke), device_type(cluster.device_type))
    packs: list[list[str]] = [[]]
    whole, gone = sum(layer.weights_bytes for layer in profile.layers), 0.0
    count = given.packs or given.layers + 2
    for layer in profile.layers:
        if packs[-1] and gone >= whole * len(packs) / count:
            packs.append([])
        packs[-1].append(layer.name)
        gone += layer.weights_bytes
    swap = Swapping("next_use", given.share * given.budget * card.GIB, prefetch=prefetch)
    stages = tuple(PlanStage(tuple(own), (0,), recompute=True) for own in packs)
    plan = Plan("harmony", "gpt", given.batch, given.microbatch, stages, cluster, {"mode": "data"}, swap=swap)
    return LoadedPlan(plan, profile).completed


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


def hocket(given: argparse.Namespace, prefetch: int) -> dict[str, Any]:
    """Train with Hocket's swaps."""
    device, job, heard = card.device_of(given), job_of(given), Losses()
    plan = plan_of(given, prefetch, job)
    captured = capture(job, given.microbatch)
    program = plan.compile(captured)
    with card.alone(device):
        # The plan's bytes come from a sketch. Real usage may be higher; it is an error only beyond the whole budget.
        memory = MemoryManager(0, device, given.budget * card.GIB)
        worker = Worker(
            Executable(captured, plan.layout(captured), program, device),
            observer=heard,
            memory=memory,
            clock=time.perf_counter if given.smoke else None,
        )

        def step(number: int) -> float:
            worker.run(1, number * given.batch)
            return heard.mean()

        found = measured(given, device, step)
        before = memory.in_bytes.total() + memory.out_bytes.total()
        step(given.steps + 3)
        found["swapped_bytes"] = memory.in_bytes.total() + memory.out_bytes.total() - before
        found["device_bytes"] = memory.storages.peak_bytes
        if given.smoke:
            spans = {
                kinds: [(r.start_s, r.end_s) for r in worker.records if r.instruction.kind in kinds]
                for kinds in (SWAPS, (Kind.FORWARD, Kind.BACKWARD, Kind.STEP))
            }
            copies, works = spans.values()
            found |= {"copied_bytes": found["swapped_bytes"], "copy_s": sum(b - a for a, b in copies)}
            found |= {"hidden": card.hidden(copies, works), "peak_bytes": worker.peak_memory_bytes}
        worker.close()
    return found


def measured(given: argparse.Namespace, device: torch.device, step: Step) -> dict[str, Any]:
    """Run two warm-up steps, the timed steps, and one profiled step."""
    losses, seconds = list[float](), list[float]()
    for number in range(given.steps + 2):
        card.finish(device)
        began = time.perf_counter()
        losses.append(step(number))
        card.finish(device)
        seconds.append(time.perf_counter() - began)
    found = {"samples_per_s": given.batch / statistics.median(seconds[2:]), "loss": losses[-1], "seconds": seconds}
    found |= card.peaks(device)
    return {**found, **card.traced(lambda: step(given.steps + 2), device)}


def batches(given: argparse.Namespace, job: Job, device: torch.device, size: int) -> Callable[[int], Iterator[Any]]:
    """Function that yields the microbatches of a step on the device, with the same samples as in Hocket."""
    stage = PlanStage(("model",), (0,))
    plan = Plan("data_parallel", "gpt", given.batch, given.microbatch, (stage,), cluster_of(given))
    stream = Stream(job, plan.batches)

    def of(number: int) -> Iterator[Any]:
        count = given.batch // given.microbatch
        own = [stream.batch(m) for m in range(number * count, (number + 1) * count)]
        whole = [torch.cat([batch[key] for batch in own]) for key in own[0]]
        for pieces in zip(*(tensor.split(size) for tensor in whole), strict=True):
            yield [piece.to(device, non_blocking=True) for piece in pieces]

    return of


def trained(
    given: argparse.Namespace, device: torch.device, job: Job, model: nn.Module, size: int, update: Callable[[], None]
) -> dict[str, Any]:
    """Train a PyTorch contestant: add up the gradients of all microbatches, then update."""
    of = batches(given, job, device, size)

    def step(number: int) -> float:
        total = torch.zeros((), device=device)
        for tokens, targets in of(number):
            loss = job.loss(model(tokens), targets) * (len(tokens) / given.batch)
            loss.backward()
            total += loss.detach()
        update()
        return float(total)

    return measured(given, device, step)


def recomputed(model: nn.Module) -> None:
    """Make each block keep only its input."""
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def fsdp2(given: argparse.Namespace, whole: bool) -> dict[str, Any]:
    """Train with PyTorch's FSDP2: all state is on the host, blocks are loaded when used, and Adam runs on the host."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    device, job = card.device_of(given), job_of(given)
    with card.alone(device):
        model, mesh = job.model, init_device_mesh(device.type, (1,))
        policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        recomputed(model)
        for part in (*model.blocks, model.head, model):
            fully_shard(part, mesh=mesh, offload_policy=policy)
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return trained(given, device, job, model, given.batch if whole else given.microbatch, update)


def optimizer_offload(given: argparse.Namespace) -> dict[str, Any]:
    """Train with weights and gradients on the GPU and Adam on the host.

    Each gradient is copied to the host as soon as the last microbatch has completed it, during the backward pass.
    Adam's step follows when all gradients have arrived.
    """
    device, job = card.device_of(given), job_of(given)
    model = job.model
    pinned = device.type == "cuda"
    hosts = [
        nn.Parameter(p.detach().clone().pin_memory() if pinned else p.detach().clone()) for p in model.parameters()
    ]
    model.to(device)
    recomputed(model)
    optimizer = torch.optim.Adam(hosts, lr=RATE, fused=True)
    stream = torch.cuda.Stream(device) if pinned else None
    arrived = dict.fromkeys(range(len(hosts)), 0)

    def copied(number: int, parameter: Tensor) -> None:
        arrived[number] += 1
        if arrived[number] < given.batch // given.microbatch:
            return
        arrived[number] = 0
        host, gradient = hosts[number], parameter.grad
        assert gradient is not None
        if host.grad is None:
            host.grad = torch.empty_like(host, pin_memory=pinned)
        if stream is None:
            host.grad.copy_(gradient)
        else:
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                host.grad.copy_(gradient, non_blocking=True)
            gradient.record_stream(stream)
        parameter.grad = None

    for number, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(partial(copied, number))

    def update() -> None:
        card.finish(device)
        optimizer.step()
        with torch.no_grad():
            for parameter, host in zip(model.parameters(), hosts, strict=True):
                parameter.copy_(host, non_blocking=True)
        card.finish(device)  # the next step changes the copied weights

    return trained(given, device, job, model, given.microbatch, update)


def deepspeed(given: argparse.Namespace) -> dict[str, Any]:
    """Train with DeepSpeed's ZeRO stage 3, with all state on the host."""
    import deepspeed as library

    device, job = card.device_of(given), job_of(given)
    recomputed(job.model)
    offload = {"device": "cpu", "pin_memory": True}
    config = {
        "train_micro_batch_size_per_gpu": given.microbatch,
        "gradient_accumulation_steps": given.batch // given.microbatch,
        "optimizer": {"type": "Adam", "params": {"lr": RATE, "adam_w_mode": False}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
    }
    with card.alone(device):
        engine, *_ = library.initialize(model=job.model, model_parameters=job.model.parameters(), config=config)
        of = batches(given, job, device, given.microbatch)

        def step(number: int) -> float:
            found = []
            for tokens, targets in of(number):
                loss = job.loss(engine(tokens), targets)
                engine.backward(loss)
                engine.step()
                found.append(loss.detach())
            return float(torch.stack(found).mean())

        return measured(given, device, step)


CONTESTANTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    **{f"hocket {ahead}": partial(hocket, prefetch=ahead) for ahead in (0, 1, 2)},
    "fsdp2": partial(fsdp2, whole=False),
    "fsdp2 whole": partial(fsdp2, whole=True),
    "optimizer": optimizer_offload,
    "deepspeed": deepspeed,
}


if __name__ == "__main__":
    main()

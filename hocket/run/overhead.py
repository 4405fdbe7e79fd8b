"""Overhead: what the engine takes for one instruction besides the layers' own seconds.

Rules of this file: a device runs models of few and of more layers of almost nothing, as in training; what it would take for
none is the engine's own. Before every look at the clock the processor does something else, as layers do: an engine whose
code lies in the first caches is half as slow.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import quantiles

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hocket.hardware.cluster import Cluster, Level
from hocket.plan.plan import Plan, PlanStage
from hocket.profile.capture import Captured, capture
from hocket.profile.job import Job
from hocket.program.instruction import COMPUTE, Instruction, Kind
from hocket.run.device import Device
from hocket.run.engines.torch_dist import Worker

_WIDTH, _SAMPLES, _WARM_UP, _MATRIX = 8, 64, 20, 256
_FEW, _MORE = 2, 10


def instruction_s(rounds: int = 150, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a forward or a backward costs besides its layers, on this machine's processor.

    Arguments:
        rounds: microbatches to look at.
    """
    few, more = _device(_FEW), _device(_MORE)
    matrix = torch.ones(_MATRIX, _MATRIX)
    seconds: dict[tuple[Kind, int], list[float]] = {}
    runs = [(count, device, device.start(), iter(_instructions(device, rounds))) for count, device in (few, more)]
    for _ in range(rounds + _WARM_UP):
        for count, device, store, instructions in runs:  # in turn: whatever else the machine does meets both
            for instruction in next(instructions):
                torch.mm(matrix, matrix)
                start_s = clock()
                device.execute(instruction, store)
                seconds.setdefault((instruction.kind, count), []).append(clock() - start_s)
    # Whatever disturbs one only makes it longer.
    usual_s = {key: quantiles(found[_WARM_UP:], n=4)[0] for key, found in seconds.items()}
    own_s = [
        usual_s[kind, _FEW] - (usual_s[kind, _MORE] - usual_s[kind, _FEW]) * _FEW / (_MORE - _FEW)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    ]
    return max(0.0, sum(own_s) / len(own_s))


def post_s(microbatches: int = 40) -> float:
    """Seconds of a compute lane to begin a send or a receive: a collective call of at least two workers.

    A pipeline of all workers with a matrix for each stage is trained; looked at is the time between two compute instructions
    of which the second waits for nobody: behind a forward that sends, and behind one that makes room for the next receive.

    Arguments:
        microbatches: to look at.

    Returns:
        The same on every worker.
    """
    workers, rank = dist.get_world_size(), dist.get_rank()
    captured = _captured(workers, _MATRIX, 2 * microbatches)
    names = [layer.name for layer in captured.layers]
    cuts = [[name] for name in names[: workers - 1]] + [names[workers - 1 :]]
    stages = tuple(PlanStage(tuple(own), (s,)) for s, own in enumerate(cuts))
    cluster = Cluster("workers", (Level("local", workers, 1e9),), "cpu-core")
    plan = Plan("flush", "overhead", 2 * microbatches, 1, stages, cluster)
    worker = Worker(captured, plan, plan.compile(captured), rank, record=True)
    worker.run(1)
    lane = sorted((r for r in worker.records if r.instruction.lane == COMPUTE), key=lambda record: record.start_s)
    # The first stage's forwards send and a load follows; the last stage's receive and their own backward follows.
    behind = {0: Kind.LOAD, workers - 1: Kind.BACKWARD}.get(rank)
    gaps_s = [
        b.start_s - a.end_s
        for a, b in pairwise(lane[len(lane) // 4 :])
        if a.instruction.kind is Kind.FORWARD and b.instruction.kind is behind
    ]
    found = torch.tensor([quantiles(gaps_s, n=4)[0] if len(gaps_s) > 1 else 0.0], dtype=torch.float64)
    dist.all_reduce(found)
    return float(found) / 2


class _Ones:
    """Samples that are all alike."""

    def __init__(self, width: int, count: int) -> None:
        self._width, self._count = width, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(_SAMPLES, self._width), torch.ones(_SAMPLES, self._width)


def _captured(layers: int, width: int, batch_size: int) -> Captured:
    """A model of so many layers, for microbatches of one sample."""
    job = Job(
        nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))),
        lambda output, target: (output - target).sum(),
        _Ones(width, batch_size),
        lambda weights: torch.optim.SGD(weights, lr=1e-3),
        batch_size,
    )
    return capture(job, 1)


def _device(layers: int) -> tuple[int, Device]:
    """A device of a plan for itself, with so many layers of almost nothing."""
    captured = _captured(layers, _WIDTH, 1)
    stage = PlanStage(tuple(layer.name for layer in captured.layers), (0,))
    cluster = Cluster("one device", (Level("device", 1, 1e9),), "cpu-core")
    plan = Plan("data_parallel", "overhead", 1, 1, (stage,), cluster)
    return layers, Device(captured, plan, plan.compile(captured), 0)


def _instructions(device: Device, rounds: int) -> list[list[Instruction]]:
    """What it executes, microbatch by microbatch."""
    found: dict[int, list[Instruction]] = {}
    for instruction in device.program.unrolled(rounds + _WARM_UP)[0, COMPUTE]:
        found.setdefault(instruction.index, []).append(instruction)
    return [found[index] for index in sorted(found)]

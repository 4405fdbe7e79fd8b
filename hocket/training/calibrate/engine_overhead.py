"""Engine overhead of an instruction, a message and an all-reduce.

The layers' own time is not part of it. A device trains models with few and with more tiny layers. The time extrapolated
to no layers is the engine's overhead. Before every measurement the processor does other work for some milliseconds, as
layers do, because the engine would take a fraction of the time with its code and data in the caches.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import quantiles

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.job.job import Job
from hocket.profiling.profile import CPU
from hocket.program.instruction import COMPUTE, Instruction, Kind
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.engine.recorder import InstructionRecord
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.training.calibrate.link_benchmark import middle_mean

_WIDTH, _SAMPLES, _WARM_UP = 8, 64, 20
_FEW, _MORE = 2, 10
# Widths of a stage's layers, which evict caches of some MB in some milliseconds; and the matrix size of other work.
_STAGE, _MATRIX = (256, 1024, 256, 1024, 256), 512


def instruction_s(rounds: int = 80, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure the engine overhead of a forward or a backward on this processor.

    Arguments:
        rounds: number of microbatches to measure.
        clock: current time in seconds.

    Returns:
        Seconds, the mean of forward and backward.
    """
    few, more = _device(_FEW), _device(_MORE)
    matrix = torch.ones(_MATRIX, _MATRIX)
    seconds: dict[tuple[Kind, int], list[float]] = {}
    runs = [(count, device, device.start(), iter(_instructions(device, rounds))) for count, device in (few, more)]
    for _ in range(rounds + _WARM_UP):
        for count, device, store, instructions in runs:  # alternate, so that other load of the machine affects both
            for instruction in next(instructions):
                torch.mm(matrix, matrix)
                start_s = clock()
                device.execute(instruction, store)
                seconds.setdefault((instruction.kind, count), []).append(clock() - start_s)
    usual_s = {key: _low(found[_WARM_UP:]) for key, found in seconds.items()}
    own_s = [
        usual_s[kind, _FEW] - (usual_s[kind, _MORE] - usual_s[kind, _FEW]) * _FEW / (_MORE - _FEW)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    ]
    return max(0.0, sum(own_s) / len(own_s))


def post_s(microbatches: int = 40) -> float:
    """Measure the time of a compute lane to begin a send or a receive.

    This is a collective call of at least two workers. A pipeline of all workers, with some matrices in each stage, is
    trained. The gap between two compute instructions of the last stage is measured, if the second does not wait: a
    backward after a forward (which posts the next receive), and a load after a backward (which sends).

    Arguments:
        microbatches: number of microbatches to measure.

    Returns:
        Seconds; the same on every worker.
    """
    lane = _trained("flush", 2 * microbatches)[1:]
    pairs = {(Kind.FORWARD, Kind.BACKWARD): list[float](), (Kind.BACKWARD, Kind.LOAD): list[float]()}
    for a, b in pairwise(lane[len(lane) // 2 :]):
        gaps_s = pairs.get((a.instruction.kind, b.instruction.kind))
        if gaps_s is not None:
            gaps_s.append(b.start_s - a.end_s)
    found = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == dist.get_world_size() - 1:
        found += sum(_low(gaps_s) for gaps_s in pairs.values()) / len(pairs)
    dist.all_reduce(found)
    return float(found)


def message_s(microbatches: int = 40) -> tuple[int, float]:
    """Measure a message, from the end of its producer to the start of its consumer.

    This is a collective call of at least two workers that share a clock. One microbatch at a time goes through a
    pipeline and back, so that every message is waited for. Messages from the first stage to the second are measured.

    Arguments:
        microbatches: number of microbatches to measure.

    Returns:
        Bytes and seconds of a message; the same on every worker.
    """
    lane, rank = _trained("model_parallel", 2 * microbatches), dist.get_rank()
    own = [record for record in lane if record.instruction.kind is Kind.FORWARD]
    times = torch.tensor([r.end_s if rank == 0 else r.start_s for r in own], dtype=torch.float64)
    gathered = [torch.empty_like(times) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, times)
    return _SAMPLES * _STAGE[-1] * 4, _low((gathered[1] - gathered[0])[microbatches:].tolist())


def all_reduce_s(updates: int = 60) -> tuple[int, float]:
    """Measure an all-reduce in training, from the last worker's start to the last end.

    This is a collective call of at least two workers that share a clock. They train a few linear layers with data
    parallelism.

    Arguments:
        updates: number of updates to train.

    Returns:
        Bytes and seconds of an all-reduce (mean over the middle half of the updates); the same on every worker.
    """
    return _summed_bytes(), _lasts_s(_side_by_side("none", updates), Kind.ALL_REDUCE)


def halves_s(updates: int = 60) -> tuple[int, float, float]:
    """Measure a reduce-scatter and an all-gather in training, like `all_reduce_s`.

    With gloo, neither takes half the time of an all-reduce.

    Returns:
        Bytes, seconds of a reduce-scatter, seconds of an all-gather; the same on every worker.
    """
    records = _side_by_side("optimizer", updates)
    return _summed_bytes(), _lasts_s(records, Kind.REDUCE_SCATTER), _lasts_s(records, Kind.ALL_GATHER)


def _side_by_side(shard: str, updates: int) -> list[InstructionRecord]:
    """Train a few linear layers with data parallelism; return this worker's records.

    Arguments:
        shard: one of `SHARDS` (program/program.py).
        updates: number of updates to train.
    """
    layers, workers = _captured(_STAGE, 1).layers, dist.get_world_size()
    stage = PlanStage(tuple(layer.name for layer in layers), tuple(range(workers)))
    return _records(_STAGE, "data_parallel", workers, (stage,), updates, shard)


def _summed_bytes() -> int:
    return 4 * sum(p.numel() for p in _layers(_STAGE).parameters())


def _lasts_s(records: Sequence[InstructionRecord], kind: Kind) -> float:
    """Compute the seconds of a kind of collective; a collective call of all workers.

    They are from the last worker's start to the last worker's end. The result is the mean over the middle half of the
    collectives after the warm-up.
    """
    own = sorted((r for r in records if r.instruction.kind is kind), key=lambda record: record.start_s)
    times = torch.tensor([(record.start_s, record.end_s) for record in own[_WARM_UP:]], dtype=torch.float64)
    gathered = [torch.empty_like(times) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, times)
    starts_s, ends_s = torch.stack(gathered).max(dim=0).values.unbind(dim=1)
    return middle_mean((ends_s - starts_s).tolist())


def shared_cores(cores: int, seconds: float = 0.5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure the effective number of cores, if there are more workers than cores.

    This is a collective call. Workers that take turns on a core find their caches evicted. All workers train a small
    model for a while, then only as many workers as there are cores. The ratio of both throughputs gives the effective
    number of cores.

    Arguments:
        cores: number of cores that the workers share.
        seconds: duration of each of the two trainings.
        clock: current time in seconds.

    Returns:
        Effective cores, at most `cores`; the same on every worker.
    """
    every = _pace(True, seconds, clock)
    few = _pace(dist.get_rank() < max(1, cores), seconds, clock)
    return max(1, cores) * min(1.0, every / few)


def _pace(active: bool, seconds: float, clock: Callable[[], float]) -> float:
    """Measure the total throughput of all active workers; a collective call.

    Arguments:
        active: True if this worker trains.
        seconds: duration of the training.

    Returns:
        Forwards with backwards per second; the same on every worker.
    """
    model, data = _layers(_STAGE), torch.ones(4 * _SAMPLES, _STAGE[0])
    total = torch.zeros(1, dtype=torch.float64)
    dist.barrier()
    start_s, done = clock(), 0
    while active and (clock() - start_s < seconds or not done):
        model(data).sum().backward()
        done += 1
    if active:
        total += done / (clock() - start_s)
    dist.all_reduce(total)
    return float(total)


def _trained(strategy: str, microbatches: int) -> list[InstructionRecord]:
    """Train one batch of a small pipeline; return this worker's compute instructions.

    There is one stage for each worker, with a few linear layers.
    """
    workers, each = dist.get_world_size(), len(_STAGE) - 1
    widths = _STAGE + _STAGE[1:] * (workers - 1)
    names = [layer.name for layer in _captured(widths, 1).layers]
    starts = [each * s for s in range(workers)]
    cuts = [
        names[a:b] for a, b in zip(starts, [*starts[1:], len(names)], strict=True)
    ]  # the last stage also has the loss
    stages = tuple(PlanStage(tuple(own), (s,)) for s, own in enumerate(cuts))
    records = _records(widths, strategy, microbatches, stages, 1)
    return sorted((r for r in records if r.instruction.lane == COMPUTE), key=lambda record: record.start_s)


def _records(
    widths: Sequence[int],
    strategy: str,
    batch_size: int,
    stages: tuple[PlanStage, ...],
    batches: int,
    shard: str = "none",
) -> list[InstructionRecord]:
    """Train linear layers, with microbatches of one sample; return a worker's records.

    Arguments:
        widths: numbers of features between the layers.
        batches: number of periods of the program.
    """
    captured = _captured(widths, batch_size)
    cluster = Cluster("workers", (Level("local", dist.get_world_size(), 1e9),), CPU)
    plan = Plan(strategy, "overhead", batch_size, 1, stages, cluster, shard=shard)
    worker = Worker(Executable(captured, plan.layout(captured), plan.compile(captured)), clock=time.perf_counter)
    worker.run(batches)
    return worker.records


def _low(seconds: list[float]) -> float:
    """Return the lower quartile, because disturbances only increase a time."""
    return quantiles(seconds, n=4)[0]


class _Ones:
    """Data set of equal samples."""

    def __init__(self, width: int, count: int) -> None:
        self._width, self._count = width, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.ones(_SAMPLES, self._width), torch.ones(_SAMPLES, self._width)


def _layers(widths: Sequence[int]) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def _captured(widths: Sequence[int], batch_size: int) -> Captured:
    """Capture a chain of linear layers between the given widths.

    Microbatches have one sample.
    """
    job = Job(
        _layers(widths),
        lambda output, target: (output - target).sum(),
        _Ones(widths[0], batch_size),
        lambda weights: torch.optim.SGD(weights, lr=1e-3),
        batch_size,
    )
    return capture(job, 1)


def _device(layers: int) -> tuple[int, Device]:
    """Create a device with `layers` tiny layers; return both."""
    captured = _captured((_WIDTH,) * (layers + 1), 1)
    stage = PlanStage(tuple(layer.name for layer in captured.layers), (0,))
    cluster = Cluster("one device", (Level("device", 1, 1e9),), CPU)
    plan = Plan("data_parallel", "overhead", 1, 1, (stage,), cluster)
    return layers, Device(Executable(captured, plan.layout(captured), plan.compile(captured)), 0)


def _instructions(device: Device, rounds: int) -> list[list[Instruction]]:
    """Return the instructions of each microbatch, for `rounds` and the warm-up."""
    found: dict[int, list[Instruction]] = {}
    for instruction in device.program.unrolled(rounds + _WARM_UP)[0, COMPUTE]:
        found.setdefault(instruction.index, []).append(instruction)
    return [found[index] for index in sorted(found)]

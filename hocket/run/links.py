"""Measure the links between the workers of a process group: point-to-point and all-reduce, level by level.

Rules of this file: every worker of the group calls `measure_links` with the same arguments and decides the same in the
same order (a collective that one worker skips hangs the others); times are shared by all-reduce of numbers. Only
samples come out: hardware/links.py turns them into figures.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from statistics import quantiles

import torch
import torch.distributed as dist

from hocket.errors import InputError
from hocket.hardware.links import ALL_REDUCE, POINT_TO_POINT, LinkSample

SIZES_BYTES = tuple(2**k for k in range(10, 25, 2))
"""1 KiB to 16 MiB."""

Clock = Callable[[], float]
Transfer = Callable[[int], None]
"""Moves (or reduces) one message as many times as its argument says."""

_LEAST_REPEATS = 4  # the first of them only warms up
_TO_AND_FRO = 2  # messages between two looks at the clock: both directions count alike


def measure_links(
    widths: Sequence[int],
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 25,
    limit_s: float = 20.0,
    clock: Clock = time.perf_counter,
) -> tuple[LinkSample, ...]:
    """Measure each level between the workers of the initialised default process group; all of them call this.

    Point-to-point: messages between worker 0 and the first worker of the neighbouring component, to and fro.
    All-reduce: among the first workers of the components that worker 0's parent joins.

    Arguments:
        widths: of the levels, innermost first; their product is the number of workers.
        sizes_bytes: two of them at least; the smallest are measured first.
        repeats: at most so many for each size; fewer when the time runs out.
        limit_s: about how long it may take. Past it, larger messages are left out, but for two sizes.

    Returns:
        The same samples on every worker. Each is the lower quartile of its repeats: what disturbs a transfer (other
        programs, a late wake-up) only ever makes it longer. A level of width 1 has none.

    Raises:
        InputError: the widths do not fit the group.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    if prod(widths) != workers:
        raise InputError("widths", f"{tuple(widths)} for {prod(widths)} workers", f"a product of {workers}")
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    share_s = limit_s / max(1, 2 * sum(width > 1 for width in widths))
    samples: list[LinkSample] = []
    span = 1
    for level, width in enumerate(widths):
        members = list(range(0, span * width, span))
        span *= width
        if width == 1:
            continue
        group = dist.new_group(members)
        kinds = (
            (POINT_TO_POINT, members[:2], lambda message, pair=members[:2]: _to_and_fro(message, rank, pair)),
            (ALL_REDUCE, members, lambda message, group=group: _reduce(message, group)),
        )
        for kind, among, make in kinds:
            for size, seconds, cores in _series(make, rank in among, sizes_bytes, repeats, share_s, device, clock):
                samples.append(LinkSample(level, kind, len(among), size, seconds, cores))
        if rank in members:
            dist.destroy_process_group(group)
    return tuple(samples)


def _series(
    make: Callable[[torch.Tensor], Transfer],
    active: bool,
    sizes_bytes: Sequence[int],
    repeats: int,
    limit_s: float,
    device: torch.device,
    clock: Clock,
) -> Iterator[tuple[int, float, float]]:
    """Time a transfer for ascending sizes: bytes, seconds, busy cores. Workers that are not active only wait."""
    start_s = clock()
    for done, size in enumerate(sorted(sizes_bytes)):
        # The slowest worker's clock counts for all: if each looked at its own, one would stop and the others hang.
        if _largest(clock() - start_s, device) > limit_s and done >= 2:
            return
        transfer = make(torch.zeros(max(1, size // 4), dtype=torch.float32, device=device))
        size_start_s, measured_s, processor_s = clock(), list[float](), 0.0
        while len(measured_s) < max(_LEAST_REPEATS, repeats):
            # Agreeing is the barrier as well: all leave it together and start.
            spent_s = _largest(clock() - size_start_s, device)
            if len(measured_s) >= _LEAST_REPEATS and spent_s > limit_s / len(sizes_bytes):
                break
            before_s, processor_before_s = clock(), time.process_time()
            if active:
                transfer(_TO_AND_FRO)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            measured_s.append((clock() - before_s) / _TO_AND_FRO)
            processor_s += (time.process_time() - processor_before_s) / _TO_AND_FRO
        lower_quartile_s = quantiles(measured_s[1:], n=4, method="inclusive")[0]
        busy_cores = processor_s / sum(measured_s) if active else 0.0
        yield size, _largest(lower_quartile_s if active else 0.0, device), _largest(busy_cores, device)


def _largest(value: float, device: torch.device) -> float:
    """The largest of all workers' values, on every worker."""
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return float(box.item())


def _to_and_fro(message: torch.Tensor, rank: int, pair: Sequence[int]) -> Transfer:
    """One way, then back, and so on: each message waits for the one before."""

    def transfer(times: int) -> None:
        for turn in range(times):
            sender, receiver = pair if turn % 2 == 0 else reversed(pair)
            if rank == sender:
                dist.send(message, receiver)
            else:
                dist.recv(message, sender)

    return transfer


def _reduce(message: torch.Tensor, group: dist.ProcessGroup) -> Transfer:
    """All-reduces of the same tensor, one after the other."""

    def transfer(times: int) -> None:
        for _ in range(times):
            dist.all_reduce(message, group=group)

    return transfer

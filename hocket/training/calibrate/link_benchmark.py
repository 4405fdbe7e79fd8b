"""Link benchmark: messages and all-reduces between workers, by cluster level.

Every worker of the process group calls `measure_links` with the same arguments, and makes the same decisions in the
same order, since a collective that one worker skips hangs the others. Times are shared by all-reduces. The result is
samples; hardware/links.py fits latency and bandwidth to them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import fmean, quantiles

import torch
import torch.distributed as dist

from hocket.errors import InputError
from hocket.hardware.links import ALL_REDUCE, MEMBERS, POINT_TO_POINT, LinkSample, undisturbed_cores
from hocket.runtime.engine.transport.connect import connect
from hocket.runtime.engine.transport.shared_memory import Inbox, Outbox
from hocket.runtime.engine.transport.tensor_group import members_of

SIZES_BYTES = tuple(2**k for k in range(10, 25, 2))  # 1 KiB to 16 MiB

Clock = Callable[[], float]
Transfer = Callable[[int], None]  # transfers (or reduces) one message a number of times

_LEAST_REPEATS = 4  # the first repeat is a warm-up
_SAMPLES, _WIDTH = 64, 1024  # sizes of matrices multiplied between two all-reduces on a CPU: some ms and MB


def measure_links(
    widths: Sequence[int],
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = 25,
    limit_s: float = 20.0,
    clock: Clock = time.perf_counter,
) -> tuple[LinkSample, ...]:
    """Measure each level between the workers of the default process group.

    This is a collective call. It measures, for each level of a width above 1:
    - messages in both directions between worker 0 and the first worker of the neighbouring component;
    - all-reduces between the first workers of all components in worker 0's component of the level above;
    - if messages go through shared memory, also all-reduces of the two workers of the messages, as a TP group.

    On a CPU, matrices are multiplied and the message is rewritten before each measurement of an all-reduce or of shared
    memory, as a backward does.

    Arguments:
        widths: width of each level, innermost first; their product is the number of workers.
        sizes_bytes: message sizes, at least two; the smallest are measured first.
        repeats: maximum repeats of each size; fewer if the time runs out.
        limit_s: approximate time limit in seconds. After it, only the two smallest sizes are sure to be measured.
        clock: seconds, to measure messages.

    Returns:
        The same samples on every worker. A sample of messages is the lower quartile of the repeats, since disturbances
        (other programs, late wake-ups) only increase a time. A sample of all-reduces is the mean of the middle half,
        because some of gloo's all-reduces always take several times as long as others, and every update pays for that.

    Raises:
        InputError: the widths do not fit the group.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    if prod(widths) != workers:
        raise InputError("widths", f"{tuple(widths)} for {prod(widths)} workers", f"a product of {workers}")
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    share_s = limit_s / max(1, 3 * sum(width > 1 for width in widths))
    between = _Busy() if device.type == "cpu" else _nothing
    samples: list[LinkSample] = []
    span = 1
    for level, width in enumerate(widths):
        members = list(range(0, span * width, span))
        span *= width
        if width == 1:
            continue
        group = dist.new_group(members)
        pair = members[:2]
        mail = _Mail.between(pair, device)
        behind = between if mail.shared else _nothing  # a network transfer does not use the processor
        kinds = [
            _Kind(POINT_TO_POINT, pair, 2, _low, behind, partial(_to_and_fro, rank, pair, mail)),
            _Kind(ALL_REDUCE, members, 1, middle_mean, between, partial(_reduce, group), cores=undisturbed_cores),
        ]
        if mail.shared:
            groups = [pair, *([other] for other in range(workers) if other not in pair)]
            total = members_of(groups, device, True).total
            kinds.append(_Kind(MEMBERS, pair, 1, middle_mean, between, partial(_totals, total), time.thread_time))
        for kind in kinds:
            for size, seconds, cores in _series(kind, sizes_bytes, repeats, share_s, device, clock):
                samples.append(LinkSample(level, kind.name, len(kind.among), size, seconds, cores))
        if rank in members:
            dist.destroy_process_group(group)
    return tuple(samples)


@dataclass(frozen=True)
class _Kind:
    """A kind of transfer to measure."""

    name: str
    among: Sequence[int]  # ranks that take part
    together: int  # transfers in one measurement
    usual: Callable[[list[float]], float]  # from measured times to the sample's time
    between: Callable[[torch.Tensor], None]  # work before each measurement, called with the message
    make: Callable[[torch.Tensor], Transfer]  # creates the transfer of a message
    busy: Clock = time.process_time  # clock of processor time
    cores: Callable[[Sequence[float], Sequence[float]], float] | None = None  # from both times; None: their ratio


def _nothing(message: torch.Tensor) -> None:
    """Do nothing between measurements, in place of `_Busy`.

    Other work does not slow down a GPU or a network, and a pause would refill the token bucket of a traffic shaper.
    """


class _Busy:
    """Work between measurements, as in a backward: matrix products, and a new message."""

    def __init__(self) -> None:
        self._few, self._many = torch.ones(_SAMPLES, _WIDTH), torch.ones(_WIDTH, _WIDTH)

    def __call__(self, message: torch.Tensor) -> None:
        torch.mm(self._few, self._many)
        message.fill_(1.0)


def _low(seconds: list[float]) -> float:
    return quantiles(seconds, n=4, method="inclusive")[0]


def middle_mean(seconds: list[float]) -> float:
    """Compute the mean of the middle half."""
    found, out = sorted(seconds), len(seconds) // 4
    return fmean(found[out : len(found) - out])


def _series(
    kind: _Kind,
    sizes_bytes: Sequence[int],
    repeats: int,
    limit_s: float,
    device: torch.device,
    clock: Clock,
) -> Iterator[tuple[int, float, float]]:
    """Measure a transfer for ascending sizes; yield (bytes, seconds, busy cores).

    Workers that do not take part only wait.
    """
    active, start_s = dist.get_rank() in kind.among, clock()
    for done, size in enumerate(sorted(sizes_bytes)):
        # All workers use the slowest worker's time. With their own times, one worker could stop and the others hang.
        if _largest(clock() - start_s, device) > limit_s and done >= 2:
            return
        message = torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)
        transfer = kind.make(message)
        size_start_s, measured_s, processor_s = clock(), list[float](), list[float]()
        while len(measured_s) < max(_LEAST_REPEATS, repeats):
            kind.between(message)
            # This all-reduce is also the barrier before the measurement.
            spent_s = _largest(clock() - size_start_s, device)
            if len(measured_s) >= _LEAST_REPEATS and spent_s > limit_s / len(sizes_bytes):
                break
            before_s, processor_before_s = clock(), kind.busy()
            if active:
                transfer(kind.together)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            measured_s.append((clock() - before_s) / kind.together)
            processor_s.append((kind.busy() - processor_before_s) / kind.together)
        usual_s, busy_s = (
            _largest(kind.usual(found[1:]) if active else 0.0, device) for found in (measured_s, processor_s)
        )
        cores = busy_s / usual_s
        if kind.cores is not None:
            cores = _largest(kind.cores(measured_s[1:], processor_s[1:]) if active else 0.0, device)
        yield size, usual_s, cores


def _largest(value: float, device: torch.device) -> float:
    """Return the largest value of all workers, on every worker."""
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return float(box.item())


@dataclass(frozen=True)
class _Mail:
    """Transport between two workers, as in the engine."""

    outboxes: Mapping[int, Outbox]
    inboxes: Mapping[int, Inbox]
    shared: bool  # True if messages go through shared memory

    @classmethod
    def between(cls, pair: Sequence[int], device: torch.device) -> "_Mail":
        """Connect two workers; a collective call of all workers."""
        outboxes, inboxes, joined = connect([(pair[0], pair[1]), (pair[1], pair[0])] if device.type == "cpu" else [])
        return cls(outboxes, inboxes, bool(joined))

    def send(self, message: torch.Tensor, peer: int) -> None:
        """Send a message and wait."""
        if peer not in self.outboxes:
            dist.send(message, peer)
        elif (work := self.outboxes[peer].send(message)) is not None:
            work.wait()

    def receive(self, message: torch.Tensor, peer: int) -> None:
        """Receive a message of this size and wait."""
        if peer not in self.inboxes:
            dist.recv(message, peer)
        else:
            self.inboxes[peer].post(message.nbytes)[1].wait()


def _to_and_fro(rank: int, pair: Sequence[int], mail: _Mail, message: torch.Tensor) -> Transfer:
    """Create a ping-pong: each message waits for the one before."""

    def transfer(times: int) -> None:
        for turn in range(times):
            sender, receiver = pair if turn % 2 == 0 else reversed(pair)
            if rank == sender:
                mail.send(message, receiver)
            else:
                mail.receive(message, sender)

    return transfer


def _reduce(group: dist.ProcessGroup | None, message: torch.Tensor) -> Transfer:
    """Create all-reduces of the same tensor, one after the other."""

    def transfer(times: int) -> None:
        for _ in range(times):
            dist.all_reduce(message, group=group)

    return transfer


def _totals(total: Callable[[torch.Tensor], torch.Tensor], message: torch.Tensor) -> Transfer:
    """Return a function that runs `total`, a tensor-parallel sum, on the same tensor a given number of times."""

    def transfer(times: int) -> None:
        for _ in range(times):
            total(message)

    return transfer

"""Instruction and Value: the building blocks of a program.

A lane is a queue of instructions of one device, which run one after the other: compute, sends to one peer, and so on.

Rules of this file: an instruction names every value that it reads, writes and frees. A value is written once (static
single assignment), so that readiness, memory, weight versions and deadlock follow from the names alone. No costs here.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Operation of an instruction, such as a forward or a send.

    A new kind needs a good reason. `norm` had one: between the sums of gradients and the step, the norm over all
    stages must be computed.
    """

    LOAD = "load"
    FORWARD = "forward"
    BACKWARD = "backward"
    SEND = "send"
    RECEIVE = "receive"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    STEP = "step"
    SWAP_OUT = "swap_out"
    SWAP_IN = "swap_in"
    DROP = "drop"
    NORM = "norm"


class ValueKind(StrEnum):
    """Content of a value, such as weights or an activation.

    Each comment says what the value is, and after the colon what its `index` and its `part` are (-: it has no part).
    """

    INPUT = "in"  # tensors of the batch that the stage reads: microbatch, -
    ACTIVATION = "act"  # all tensors sent from the stage to another: microbatch, target stage
    GRADIENT = "grad"  # the gradients of that activation: microbatch, target stage
    STASH = "stash"  # tensors that autograd saves for the backward: microbatch, -
    WEIGHTS = "w"  # weights after `index` updates: version, -
    ACCUMULATOR = "dw"  # weight gradients summed up to and including this microbatch: microbatch, bucket
    REDUCED = "sum"  # weight gradients of one update summed over replicas: update, bucket
    PART = "part"  # this device's shard of a REDUCED sum, in separate memory: update, bucket
    OPTIMIZER = "opt"  # optimizer state after `index` updates: version, -
    SQUARES = "sq"  # sum of the squares of this device's share of one update's gradients: update, -
    NORM = "norm"  # sum of SQUARES over all devices: update, -
    SHARD = "shard"  # this device's shard of the weights after `index` updates, written by its step: version, -
    ENDED = "end"  # signal to the other wave: a forward (part 0) or backward (part 1) is over: microbatch, part
    LENT = "lent"  # weight gradients that a step has used, for the next step of the other wave: update, bucket
    GATHERED = "full"  # whole weights for one round of the replicas: first microbatch, 0 (forwards) or 1 (backwards)
    MARK = "mark"  # completion marker, without bytes: the period's first microbatch, a serial number; or a permit to
    # load a microbatch ahead of compute (Program.permit): microbatch, 0


# Kinds of values with an index that counts updates. The index of all others counts microbatches.
COUNTS_UPDATES = frozenset(
    {
        ValueKind.WEIGHTS,
        ValueKind.REDUCED,
        ValueKind.OPTIMIZER,
        ValueKind.SQUARES,
        ValueKind.NORM,
        ValueKind.SHARD,
        ValueKind.PART,
        ValueKind.LENT,
    }
)
COLLECTIVES = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER})
# Copies between a device and its host. The moved (or dropped) value determines what the index counts.
SWAPS = frozenset({Kind.SWAP_OUT, Kind.SWAP_IN})
_AS_THEIR_VALUE = SWAPS | {Kind.DROP}
_NAMED_AS_WRITTEN = SWAPS | COLLECTIVES
# Kinds whose index counts updates (except gathers for one round: see `Instruction.counts_updates`).
UPDATE_KINDS = COLLECTIVES | {Kind.STEP, Kind.NORM}


class Value(NamedTuple):
    """Name of a value on the device (or the host) of the instruction that names it.

    Attributes:
        what: kind of the value.
        stage: stage that the value belongs to; for ACTIVATION and GRADIENT, the source stage of the stage boundary.
        index: microbatch, update or weight version (see ValueKind).
        part: target stage, gradient bucket or other number (see ValueKind); -1 for none.
        copy: number of the copy of a swapped value. Copy 0 is the one that the value's writer made on the device. Odd
            copies are on the host, all other even copies on the device. Each copy is written once.
    """

    what: ValueKind
    stage: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which values do not need
    part: int = -1
    copy: int = 0

    @property
    def plain(self) -> "Value":
        """The value without its copy number."""
        return self if self.copy == 0 else self._replace(copy=0)

    @property
    def on_host(self) -> bool:
        """True if this copy is in host memory."""
        return self.copy % 2 == 1

    def __str__(self) -> str:
        return f"{self._plainly}~{self.copy}" if self.copy else self._plainly

    @property
    def _plainly(self) -> str:
        match self.what:
            case ValueKind.ACTIVATION | ValueKind.GRADIENT:
                return f"{self.what}.{self.stage}>{self.part}#{self.index}"
            case ValueKind.WEIGHTS | ValueKind.OPTIMIZER | ValueKind.SHARD:
                return f"{self.what}.{self.stage}v{self.index}"
            case ValueKind.SQUARES | ValueKind.NORM:
                return f"{self.what}.{self.stage}u{self.index}"
            case ValueKind.REDUCED | ValueKind.PART | ValueKind.LENT:
                return f"{self.what}.{self.stage}u{self.index}b{self.part}"
            case ValueKind.ACCUMULATOR:
                return f"{self.what}.{self.stage}#{self.index}b{self.part}"
            case ValueKind.GATHERED | ValueKind.MARK | ValueKind.ENDED:
                return f"{self.what}.{self.stage}#{self.index}.{self.part}"
        return f"{self.what}.{self.stage}#{self.index}"


COMPUTE = "compute"
"""Lane of the first wave's compute instructions; without waves, of all compute instructions."""
LOAD = "load"
"""Lane of all loads of a device that prefetches. Without prefetch, each load is in its stage's compute lane."""
SWAP_LANES = {Kind.SWAP_IN: "swap_in", Kind.SWAP_OUT: "swap_out"}
"""Lanes of swaps that overlap with compute. All other swaps are in the compute lane."""
REDUCE = "reduce"
GATHER = "gather"
RECEIVE = "receive"
_SEND = "send>"


def compute_lane(wave: int) -> str:
    """Name of the lane of a wave's compute instructions on each of its devices.

    A compute lane is a thread; on a GPU it is a stream.

    Arguments:
        wave: number of the wave (strategies/schedules/tick_tock.py); 0 without waves.
    """
    return f"{COMPUTE}.{wave}" if wave else COMPUTE


def computes(lane: str) -> bool:
    """True if this is the name of a compute lane."""
    return lane.startswith(COMPUTE)


def send_lane(peer: int) -> str:
    """Name of the lane of all sends to one peer.

    Lanes are part of the semantics: with one network lane for the whole device, 1F1B would deadlock.

    Arguments:
        peer: the receiving device.
    """
    return f"{_SEND}{peer}"


def sends(lane: str) -> bool:
    """True if this is the name of a lane of sends."""
    return lane.startswith(_SEND)


def receive_lane(peer: int) -> str:
    """Name of the lane of all receives from one peer.

    Arguments:
        peer: the sending device.
    """
    return f"{RECEIVE}<{peer}"


def group_lane(what: str, group: tuple[int, ...]) -> str:
    """Name of the lane of a group's collectives.

    Each group has its own lane, so no two groups can wait for each other.

    Arguments:
        what: REDUCE or GATHER. These are two lanes, because the steps between sums and gathers may stand at different
            places on different ranks.
        group: devices of the group, ascending.
    """
    return f"{what}@{','.join(str(d) for d in group)}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a program.

    Attributes:
        kind: the operation.
        stage: the stage that it works for. For a send or receive: the stage of the value, which is the source stage of
            the stage boundary, also for gradients.
        index: the microbatch. For norm, step, all_reduce and reduce_scatter: the update. For an all_gather that makes
            a version of the weights: the version. For a swap or drop: the index of the first value that it reads.
        device, lane: where it runs. Instructions of one lane run one after the other.
        reads, writes, frees: values on this device. `frees` is a subset of `reads` (drop: all of them).
        peer: the other device of a send or receive, else -1.
        group: the devices of a collective, ascending, else empty.
        again: True for the forward that recomputes the saved activations.
    """

    kind: Kind
    stage: int
    index: int
    device: int
    lane: str
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    frees: tuple[Value, ...] = ()
    peer: int = -1
    group: tuple[int, ...] = ()
    again: bool = False

    @property
    def counts_updates(self) -> bool:
        """True if the index counts updates or versions instead of microbatches."""
        if self.kind is Kind.ALL_GATHER:
            return not (self.writes and self.writes[0].what is ValueKind.GATHERED)
        if self.kind in _AS_THEIR_VALUE:
            return bool(self.reads) and self.reads[0].what in COUNTS_UPDATES
        return self.kind in UPDATE_KINDS

    @property
    def name(self) -> str:
        """Short name, unique on its device, as in traces: 'forward 1 #3'."""
        counter = "u" if self.counts_updates else "#"
        again = " again" if self.again else ""
        what = ""
        if self.kind in (Kind.SEND, Kind.RECEIVE, Kind.DROP) and (self.reads or self.writes):
            what = f" {(self.reads or self.writes)[0]}"
        elif self.kind in _NAMED_AS_WRITTEN and self.writes:
            what = f" {self.writes[0]}"
        return f"{self.kind}{again} {self.stage} {counter}{self.index}{what}"

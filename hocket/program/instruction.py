"""Instruction and Value: the words of a program.

Rules of this file: an instruction names every value that it reads, writes and frees; a value is written once (static
single assignment), so that readiness, memory, weight versions and deadlock follow from the names alone. No costs here.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """The kinds of instruction. A fourteenth needs a good reason.

    (The thirteenth, `norm`, had one: nothing else of compute stands between the sums of gradients and their step, where the
    norm over all stages must be known.)
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
    """Kind of a value. The comments define `index` and `part` of each kind."""

    INPUT = "in"  # tensors of the batch itself: microbatch, -
    ACTIVATION = "act"  # all tensors from stage to stage `part`: microbatch, target stage
    GRADIENT = "grad"  # the gradients of that activation: microbatch, target stage
    STASH = "stash"  # what autograd keeps for the backward: microbatch, -
    WEIGHTS = "w"  # weights after `index` updates: version, -
    ACCUMULATOR = "dw"  # weight gradients summed up to and with this microbatch: microbatch, bucket
    REDUCED = "sum"  # weight gradients of one update summed over replicas: update, bucket
    PART = "part"  # this device's part of such a sum, in memory of its own: update, bucket
    OPTIMIZER = "opt"  # optimizer state after `index` updates: version, -
    SQUARES = "sq"  # squares of this device's share of one update's gradients, summed up: update, -
    NORM = "norm"  # the same over all devices: update, -
    SHARD = "shard"  # the part of weights after `index` updates that this device's step makes: version, -
    ENDED = "end"  # signal that a forward (part 0) or backward (part 1) is over, for the next one of the other wave: microbatch, part
    LENT = "lent"  # weight gradients that a step has used, for the next step of the other wave: update, bucket
    GATHERED = "full"  # whole weights for one round of the replicas: its first microbatch, 0 for the forward or 1 for the backward
    MARK = "mark"  # no bytes: that an instruction of another lane is over: the period's first microbatch, a number of its own


# Values whose index counts updates; the index of all others counts microbatches.
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
# Between a device and its host; what such an instruction moves or drops says what its index counts.
SWAPS = frozenset({Kind.SWAP_OUT, Kind.SWAP_IN})
_AS_THEIR_VALUE = SWAPS | {Kind.DROP}
_NAMED_AS_WRITTEN = SWAPS | COLLECTIVES
# Kinds whose index counts updates (but for gathers for one round: see `Instruction.counts_updates`).
UPDATE_KINDS = COLLECTIVES | {Kind.STEP, Kind.NORM}


class Value(NamedTuple):
    """A value on the device (or its host) of the instruction that names it.

    `copy` tells the copies of a value that is swapped from each other: 0 is what its maker wrote, on the device; odd ones lie on the
    host, other even ones on the device again. Each is written once.
    """

    what: ValueKind
    stage: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a value for
    part: int = -1
    copy: int = 0

    @property
    def plain(self) -> "Value":
        """The value itself, whichever copy of it this is."""
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
"""Lane of the first wave's compute instructions, and where there are no waves of all."""
SWAP_LANES = {Kind.SWAP_IN: "swap_in", Kind.SWAP_OUT: "swap_out"}
"""Lanes of swaps that run beside compute; others stand in the compute lane."""
REDUCE = "reduce"
GATHER = "gather"
RECEIVE = "receive"
_SEND = "send>"


def compute_lane(wave: int) -> str:
    """Lane of one wave's compute instructions on each of its devices: a thread, on a GPU a stream."""
    return f"{COMPUTE}.{wave}" if wave else COMPUTE


def computes(lane: str) -> bool:
    """True if the lane is a compute lane."""
    return lane.startswith(COMPUTE)


def send_lane(peer: int) -> str:
    """Lane of all sends to one peer.

    One network lane for the whole device would deadlock 1F1B, so lanes are part of the semantics.
    """
    return f"{_SEND}{peer}"


def sends(lane: str) -> bool:
    """True if the lane is the lane of sends to a peer."""
    return lane.startswith(_SEND)


def receive_lane(peer: int) -> str:
    """Lane for everything received from one peer."""
    return f"{RECEIVE}<{peer}"


def group_lane(what: str, group: tuple[int, ...]) -> str:
    """Lane of the collectives of one group.

    Each group has its own lane, so no two groups can wait for each other.

    Arguments:
        what: REDUCE, or GATHER: members may have their steps at different places among their sums.
    """
    return f"{what}@{','.join(str(d) for d in group)}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a program.

    Attributes:
        kind, stage: what, and of which stage (for send and receive: the stage that made the value).
        index: microbatch, or update for norm, step, all_reduce and reduce_scatter, or version of the weights for an all_gather
            that makes one; of a swap or a drop the index of the value that it reads first.
        device, lane: where; instructions of one lane run one after the other.
        reads, writes, frees: values on this device. `frees` is a subset of what is read (drop: all of it).
        peer: the other device of a send or receive, else -1.
        group: the devices of a collective, ascending, else empty.
        again: True for the forward that recomputes a stash.
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
        """Short unique name on its device, as in traces: 'forward 1 #3'."""
        counter = "u" if self.counts_updates else "#"
        again = " again" if self.again else ""
        what = ""
        if self.kind in (Kind.SEND, Kind.RECEIVE, Kind.DROP) and (self.reads or self.writes):
            what = f" {(self.reads or self.writes)[0]}"
        elif self.kind in _NAMED_AS_WRITTEN and self.writes:
            what = f" {self.writes[0]}"
        return f"{self.kind}{again} {self.stage} {counter}{self.index}{what}"

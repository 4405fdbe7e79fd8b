"""Program: per device and lane an ordered list of instructions, as prologue, period and epilogue.

Asynchronous schedules have no finite form otherwise. In repetition r of the period every index that counts
microbatches has moved on by r * `stride`, every one that counts updates by r * stride // rule.batch[stage]; the epilogue
is written as if it followed zero repetitions and moves on in the same way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from hocket.program.instruction import COUNTS_UPDATES, Instruction, Value, ValueKind, compute_lane
from hocket.program.rule import Rule

Lane = tuple[int, str]
Lanes = Mapping[Lane, tuple[Instruction, ...]]
SHARDS = ("none", "optimizer", "full")
"""What of a stage's state is divided among its replicas: nothing; optimizer state and the step (ZeRO's first stage); weights as
well, which are gathered for each forward and backward (its third)."""


def replica(devices: Sequence[int], microbatch: int, merged: int = 1) -> int:
    """Replica that runs a microbatch: replicas take turns, one bundle each (1F1B-RR, section 2.4.2)."""
    return devices[microbatch // merged % len(devices)]


MAX_THREADS = 4096
"""That may move one bucket: more than any device gives to communication."""
MAX_CPU_THREADS = 16
"""Likewise on a processor, where each takes a process group with connections of its own."""


@dataclass(frozen=True)
class StageShape:
    """Facts about one stage that a program needs. Layers, bytes and seconds are kept elsewhere.

    Attributes:
        devices: the replicas, which take turns (see `replica`).
        sources: stages whose activations it reads, ascending; targets: stages that read its own.
        gradients: those of `sources` to which a gradient flows back.
        batch: whether it reads tensors of the batch itself.
        buckets: number of buckets of its weight gradients, the last backward layer's bucket first.
        tied: for some buckets, all stages (this one too) that share those weights: their gradients are summed.
        recompute: whether the stash is made again before the backward.
        columns: how many such pipelines there are, side by side and each with microbatches of its own, of which the program
            is one; gradients are summed over all.
        clips: whether a step reads the norm of the gradients of all stages first (of all stages or of none).
        weighted: whether a step divides by the weights of all losses of its update, which are summed with the norm (likewise).
        shard: one of SHARDS.
        merged: microbatches of a bundle, which one forward or backward runs together: those from a multiple of this on.
        threads: for each bucket, how many threads move its sum; (): what the library takes by itself.
        wave: which replica of the model it belongs to, of several that take turns on the same devices (strategies/schedules/tick_tock.py).
        overlaps: whether a wave's backwards need not wait for the other wave's; its forwards always do.
    """

    devices: tuple[int, ...]
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    batch: bool = False
    buckets: int = 1
    tied: tuple[tuple[int, tuple[int, ...]], ...] = ()
    recompute: bool = False
    columns: int = 1
    clips: bool = False
    weighted: bool = False
    shard: str = "none"
    merged: int = 1
    threads: tuple[int, ...] = ()
    wave: int = 0
    overlaps: bool = False

    @property
    def lane(self) -> str:
        """The lane of its compute instructions."""
        return compute_lane(self.wave)

    @property
    def needs_norm(self) -> bool:
        """True if a step waits for a sum over all devices.

        The sum is of squared gradients, of loss weights, or of both.
        """
        return self.clips or self.weighted

    @property
    def sharded(self) -> bool:
        """True if each replica steps a shard of the weights and all replicas gather them."""
        return self.shard != "none" and len(self.devices) * self.columns > 1

    @property
    def gathers(self) -> bool:
        """True if weights are whole only while a forward or backward needs them (ZeRO-3, FSDP)."""
        return self.sharded and self.shard == "full"

    def device(self, microbatch: int) -> int:
        """The replica that runs a microbatch."""
        return replica(self.devices, microbatch, self.merged)

    @property
    def round(self) -> int:
        """Microbatches after which it is the first replica's turn again."""
        return len(self.devices) * self.merged

    def threads_of(self, value: Value) -> int:
        """Threads (or NCCL CTAs) of the all-reduce that reads a value; 0 for the library's default."""
        return self.threads[value.part] if self.threads and value.what is ValueKind.ACCUMULATOR else 0

    def first(self, microbatch: int) -> int:
        """The first microbatch of the bundle that one belongs to: it gives the bundle its number."""
        return microbatch - microbatch % self.merged


@dataclass(frozen=True)
class Program:
    """Instructions of every device. Frozen; `hocket.program.text.printer` prints and parses it.

    Attributes:
        name: the strategy's name and configuration, for people.
        stages, rule: the structure that `check` proves the instructions against.
        stride: microbatches admitted in one period.
        admitted: microbatches admitted outside of the period, in prologue and epilogue.
        prologue, period, epilogue: instructions by (device, lane).
        swaps: whether all that a device keeps between periods lies on its host, as copies ~1 (program/passes/swapping/insert.py).
    """

    name: str
    stages: tuple[StageShape, ...]
    rule: Rule
    stride: int
    admitted: int
    prologue: Lanes
    period: Lanes
    epilogue: Lanes
    swaps: bool = False

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Numbers of all devices that take part, ascending."""
        return tuple(sorted({d for stage in self.stages for d in stage.devices}))

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes by device, compute lane first."""
        found = {lane for part in (self.prologue, self.period, self.epilogue) for lane in part}
        return tuple(sorted(found, key=lambda lane: (lane[0], lane[1] != "compute", lane[1])))

    def microbatches(self, repeats: int) -> int:
        """Microbatches trained on after some repetitions of the period and the epilogue."""
        return self.admitted + repeats * self.stride

    def updates(self, stage: int, repeats: int) -> int:
        """Updates of one stage's weights after some repetitions of the period and the epilogue."""
        return self.microbatches(repeats) // self.rule.batch[stage]

    def unrolled(self, repeats: int) -> dict[Lane, list[Instruction]]:
        """Every lane's whole list: prologue, `repeats` periods, epilogue."""
        whole: dict[Lane, list[Instruction]] = {lane: list(self.prologue.get(lane, ())) for lane in self.lanes}
        for r in range(repeats):
            for lane, part in self.period.items():
                whole[lane].extend(self.shifted(i, r) for i in part)
        for lane, part in self.epilogue.items():
            whole[lane].extend(self.shifted(i, repeats) for i in part)
        return whole

    def shifted(self, instruction: Instruction, repeats: int) -> Instruction:
        """The instruction moved on by some repetitions of the period."""
        if repeats == 0:
            return instruction
        i, by, move = instruction, repeats * self.stride, self._moved
        return Instruction(  # `replace` takes twice as long, and proofs and simulations move whole programs
            i.kind,
            i.stage,
            i.index + (by // self.rule.batch[i.stage] if i.counts_updates else by),
            i.device,
            i.lane,
            tuple([move(v, by) for v in i.reads]),
            tuple([move(v, by) for v in i.writes]),
            tuple([move(v, by) for v in i.frees]),
            i.peer,
            i.group,
            i.again,
        )

    def _moved(self, value: Value, by: int) -> Value:
        if value.what in COUNTS_UPDATES:
            by //= self.rule.batch[value.stage]
        return Value(value.what, value.stage, value.index + by, value.part, value.copy)

    def moved(self, value: Value, repeats: int) -> Value:
        """The value's name after some repetitions of the period."""
        return self._moved(value, repeats * self.stride)

    def initial(self, device: int) -> tuple[Value, ...]:
        """Values that a device holds before the first instruction: version 0 of weights and optimizer state."""
        return tuple(self._kept(device, lambda stage: 0))

    def final(self, device: int, repeats: int) -> tuple[Value, ...]:
        """Values that a device holds after the last instruction: the newest weights and optimizer state."""
        return tuple(self._kept(device, lambda stage: self.updates(stage, repeats)))

    def _kept(self, device: int, version: Callable[[int], int]) -> Iterator[Value]:
        """Yield values of its stages that a device keeps between segments."""
        for s, stage in enumerate(self.stages):
            if device in stage.devices:
                yield Value(
                    ValueKind.SHARD if stage.gathers else ValueKind.WEIGHTS, s, version(s), copy=int(self.swaps)
                )
                yield Value(ValueKind.OPTIMIZER, s, version(s), copy=int(self.swaps))

    def instructions(self) -> Iterator[tuple[str, Instruction]]:
        """Every instruction with the name of its part, lane by lane."""
        for part in ("prologue", "period", "epilogue"):
            lanes: Lanes = getattr(self, part)
            for lane in self.lanes:
                for instruction in lanes.get(lane, ()):
                    yield part, instruction

    def __len__(self) -> int:
        return sum(len(lane) for part in (self.prologue, self.period, self.epilogue) for lane in part.values())


def freeze(lanes: Mapping[Lane, list[Instruction]]) -> Lanes:
    """Lanes that nobody can change, without empty ones, in a fixed order."""
    return MappingProxyType({lane: tuple(lanes[lane]) for lane in sorted(lanes) if lanes[lane]})

"""Program: instructions by device and lane, as prologue, period and epilogue.

A run is the prologue (warm-up), any number of repetitions of the period (steady state), and the epilogue (cool-down).
Asynchronous schedules have no other finite form. In repetition r of the period, every index that counts microbatches
has moved on by r * `stride`, and every index that counts updates by r * stride // rule.batch[stage]. The epilogue is
written as if it followed zero repetitions, and moves on in the same way. A program that evaluates has no updates, so
these indices stay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from hocket.program.instruction import COUNTS_UPDATES, Instruction, Value, ValueKind, compute_lane
from hocket.program.rule import Rule

Lane = tuple[int, str]  # device, name of the lane
Lanes = Mapping[Lane, tuple[Instruction, ...]]
SHARDS = ("none", "optimizer", "full")
"""State that the replicas of a stage shard among them.

- none: every replica has everything.
- optimizer: optimizer state and the step (ZeRO-1).
- full: weights as well, which are gathered for each forward and backward (ZeRO-3).
"""


def replica(devices: Sequence[int], microbatch: int, merged: int = 1) -> int:
    """Device that runs a microbatch: replicas take turns of `merged` microbatches.

    Source: 1F1B-RR (Narayanan's dissertation, section 2.4.2).
    """
    return devices[microbatch // merged % len(devices)]


MAX_THREADS = 4096
"""Maximum number of communication threads of a gradient bucket."""
MAX_CPU_THREADS = 16
"""Maximum number on a CPU, where each thread needs a process group of its own."""


@dataclass(frozen=True)
class StageShape:
    """Facts about one stage that a program needs, without layers, bytes and seconds.

    Attributes:
        devices: devices of the replicas, which take turns (see `replica`).
        sources: stages that send activations to this stage, ascending.
        targets: stages that read this stage's activations, ascending.
        gradients: the `sources` to which a gradient flows back.
        batch: True if the stage reads tensors of the batch itself.
        buckets: number of gradient buckets, which are numbered as a backward finishes them (last layers first).
        tied: (bucket, stages) for each bucket of tied weights; the stages are all that share them, including this one.
            Gradients of such buckets are summed over these stages.
        recompute: True if saved activations are recomputed before the backward.
        columns: number of identical pipelines side by side (data parallelism), each with separate microbatches. The
            program is one of them; gradients are summed over all.
        clips: True if a step first reads the norm of the gradients of all stages. Equal for all stages.
        clips_alone: True if a step clips the gradients of this stage by their own norm, and needs no other stage for
            it. Equal for all stages.
        weighted: True if a step divides by the sum of the loss weights of its update, which is computed with the norm.
            Equal for all stages.
        scaled: True if losses are multiplied by a loss scale (float16). A step first reads the norm of the gradients of
            all stages, and changes nothing if it is not finite. Equal for all stages.
        shard: one of SHARDS.
        merged: microbatches that one forward or backward runs as one. The first of them is a multiple of this number.
        threads: for each bucket, the communication threads of its all-reduce; () for the library's default.
        wave: number of the model replica that the stage belongs to, if several take turns on the same devices
            (strategies/schedules/tick_tock.py).
        overlaps: True if a wave's backwards need not wait for the other wave's backwards. Forwards always wait.
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
    clips_alone: bool = False
    weighted: bool = False
    scaled: bool = False
    shard: str = "none"
    merged: int = 1
    threads: tuple[int, ...] = ()
    wave: int = 0
    overlaps: bool = False

    @property
    def lane(self) -> str:
        """Name of the lane of the stage's compute instructions."""
        return compute_lane(self.wave)

    @property
    def needs_norm(self) -> bool:
        """True if a step waits for a sum over all devices.

        The sum is of squared gradients, of loss weights, or of both.
        """
        return self.clips or self.weighted or self.scaled

    @property
    def sharded(self) -> bool:
        """True if each replica steps one shard of the weights, which are then gathered."""
        return self.shard != "none" and len(self.devices) * self.columns > 1

    @property
    def gathers(self) -> bool:
        """True if weights are whole only during a forward or backward (ZeRO-3, FSDP)."""
        return self.sharded and self.shard == "full"

    def device(self, microbatch: int) -> int:
        """Device of the replica that runs a microbatch."""
        return replica(self.devices, microbatch, self.merged)

    @property
    def round(self) -> int:
        """Number of microbatches in one turn of all replicas."""
        return len(self.devices) * self.merged

    def threads_of(self, value: Value) -> int:
        """Threads (or NCCL CTAs) of a value's all-reduce; 0 for the library's default."""
        return self.threads[value.part] if self.threads and value.what is ValueKind.ACCUMULATOR else 0

    def first(self, microbatch: int) -> int:
        """First of the microbatches that run as one with a microbatch (see `merged`)."""
        return microbatch - microbatch % self.merged


@dataclass(frozen=True)
class Program:
    """Instructions of every device.

    A program is frozen. `hocket.program.text.printer` prints it, `hocket.program.text.parser` parses it.

    Attributes:
        name: the strategy's name and configuration, for people.
        stages, rule: the structure that `check` proves the instructions against.
        stride: number of microbatches that enter the pipeline in one period.
        admitted: number of microbatches that enter the pipeline outside of the period, for prologue and epilogue.
        prologue, period, epilogue: instructions by (device, lane).
        swaps: True if everything that a device keeps between periods is on its host, as copies ~1
            (program/passes/swapping/insert.py).
        prefetch: number of microbatches that each stage of a device loads ahead, in a lane of their own
            (program/passes/prefetch.py); 0 if loads are in the compute lanes.
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
    prefetch: int = 0

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Indices of all devices of the program, ascending."""
        return tuple(sorted({d for stage in self.stages for d in stage.devices}))

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes by device, compute lane first."""
        found = {lane for part in (self.prologue, self.period, self.epilogue) for lane in part}
        return tuple(sorted(found, key=lambda lane: (lane[0], lane[1] != "compute", lane[1])))

    def microbatches(self, repeats: int) -> int:
        """Number of microbatches of a run with `repeats` repetitions of the period."""
        return self.admitted + repeats * self.stride

    def updates(self, stage: int, repeats: int) -> int:
        """Number of updates of a stage in a run with `repeats` repetitions of the period."""
        return self.rule.updates(stage, self.microbatches(repeats))

    def unrolled(self, repeats: int) -> dict[Lane, list[Instruction]]:
        """Instructions of every lane in a run with `repeats` repetitions of the period."""
        whole: dict[Lane, list[Instruction]] = {lane: list(self.prologue.get(lane, ())) for lane in self.lanes}
        for r in range(repeats):
            for lane, part in self.period.items():
                whole[lane].extend(self.shifted(i, r) for i in part)
        for lane, part in self.epilogue.items():
            whole[lane].extend(self.shifted(i, repeats) for i in part)
        return whole

    def shifted(self, instruction: Instruction, repeats: int) -> Instruction:
        """The instruction as it is after `repeats` repetitions of the period."""
        if repeats == 0:
            return instruction
        i, by, move = instruction, repeats * self.stride, self._moved
        return Instruction(  # `replace` is half as fast, and proofs and simulations move whole programs
            i.kind,
            i.stage,
            i.index + (self.rule.updates(i.stage, by) if i.counts_updates else by),
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
            by = self.rule.updates(value.stage, by)
        return Value(value.what, value.stage, value.index + by, value.part, value.copy)

    def moved(self, value: Value, repeats: int) -> Value:
        """Name of the value that takes this value's place after `repeats` periods."""
        return self._moved(value, repeats * self.stride)

    def initial(self, device: int) -> tuple[Value, ...]:
        """Values on a device before a run: version 0 of weights and optimizer state, and the first permits to load."""
        return (*self._kept(device, lambda stage: 0), *self._permits(device, 0))

    def final(self, device: int, repeats: int) -> tuple[Value, ...]:
        """Values on a device after a run: its newest weights and optimizer state, and unused permits to load."""
        kept = self._kept(device, lambda stage: self.updates(stage, repeats))
        return (*kept, *self._permits(device, self.microbatches(repeats)))

    def permit(self, stage: int, microbatch: int) -> Value:
        """Marker that a load reads: the microbatch may be loaded ahead of compute."""
        return Value(ValueKind.MARK, stage, microbatch, 0)

    def next_permit(self, stage: int, microbatch: int) -> Value:
        """Marker that a forward writes: its replica may load one more microbatch."""
        return self.permit(stage, microbatch + (self.prefetch + 1) * self.stages[stage].round)

    @property
    def load_span(self) -> int:
        """Maximum number of periods from the forward that writes a permit to the load that reads it."""
        most = max((stage.round for stage in self.stages if stage.batch), default=0) if self.prefetch else 0
        return -(-(self.prefetch + 1) * most // max(1, self.stride))

    def _permits(self, device: int, start: int) -> Iterator[Value]:
        """Yield a device's permits to load when all microbatches before `start` have had their forwards."""
        for s, stage in enumerate(self.stages):
            if self.prefetch and stage.batch and device in stage.devices:
                first = start + stage.devices.index(device) * stage.merged
                yield from (self.permit(s, first + turn * stage.round) for turn in range(self.prefetch + 1))

    def _kept(self, device: int, version: Callable[[int], int]) -> Iterator[Value]:
        """Yield a device's weights and optimizer state in the given version of each stage."""
        for s, stage in enumerate(self.stages):
            if device in stage.devices:
                yield Value(
                    ValueKind.SHARD if stage.gathers else ValueKind.WEIGHTS, s, version(s), copy=int(self.swaps)
                )
                yield Value(ValueKind.OPTIMIZER, s, version(s), copy=int(self.swaps))

    def instructions(self) -> Iterator[tuple[str, Instruction]]:
        """Yield every instruction with the name of its part, lane by lane."""
        for part in ("prologue", "period", "epilogue"):
            lanes: Lanes = getattr(self, part)
            for lane in self.lanes:
                for instruction in lanes.get(lane, ()):
                    yield part, instruction

    def __len__(self) -> int:
        return sum(len(lane) for part in (self.prologue, self.period, self.epilogue) for lane in part.values())


def freeze(lanes: Mapping[Lane, list[Instruction]]) -> Lanes:
    """Make the lanes an immutable mapping in a fixed order, without empty lanes."""
    return MappingProxyType({lane: tuple(lanes[lane]) for lane in sorted(lanes) if lanes[lane]})

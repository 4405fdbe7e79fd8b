"""Bytes of every value, and memory of an instruction while it runs and afterwards.

Rules of this file: `hold` is the maximum that an instruction adds to its device's memory while it runs, `net` the
change that remains when it has finished. The maximum of a forward or backward comes from the walk over the stage's
layers (stage_walk.py): a backward frees saved activations while it makes gradients, so both together are never counted
in full.
Source: Narayanan's dissertation, section 3.3.3 (MEMORY), extended by optimizer state, gradients, buffers and working
memory.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hocket.cost.compute import Columns
from hocket.cost.memory.bundles import BORDER, Bundles
from hocket.cost.memory.stage_walk import Walk
from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.order import heir_of
from hocket.program.passes.borders import StageCut, Tie, batch_tensors, crossing, ties_of

NORM_BYTES = 8.0  # one number for the squares of gradients, and one for the weights of losses
_SUMS = (ValueKind.ACCUMULATOR, ValueKind.REDUCED, ValueKind.LENT)
POOLED = (*_SUMS, ValueKind.WEIGHTS, ValueKind.SHARD)
"""Kinds of values of which some have pooled memory (`PlanMemory.pooled`)."""
_ALIGNMENT_BYTES = 64  # alignment of tensors that share a message or a flat bucket


@dataclass(frozen=True)
class StageBytes:
    """Bytes of one stage that do not depend on the microbatch.

    Attributes:
        weights_bytes: bytes of the whole (unsharded) weights.
        optimizer_bytes: bytes of one replica's optimizer state.
        buffers_bytes: bytes of buffers.
        bucket_of: bytes of gradients, by the position (index in the stage) of the layer that completes them in the
            backward, and by gradient bucket; shape (layers, buckets).
        made_of: the same bytes, by the position of the layer that allocates them in the backward, which is the last
            layer that uses the parameter.
        waiting: for parameters that several layers of the stage use, bytes of partial gradients that exist during the
            backward of a layer, until all parts are there and are added to the accumulator; by position and bucket.
        groups: for every bucket, the layers with gradients in it.
        summed: for every bucket, True if its gradients are summed over devices. They are then in flat memory, which is
            allocated as a whole.
        gaps_bytes: for every bucket, maximum bytes between the gradients in flat memory (alignment, padding).
        step_bytes: temporary memory of an optimizer step.
        shard_bytes: bytes of the shard of the weights that one replica's step writes; 0 without sharding.
        stepped: share of the stage's weights that one replica's step updates.
        replicas: number of replicas that the state is sharded over.
        gathers: True if weights are whole only during a forward or backward (`StageShape.gathers`).
    """

    weights_bytes: float
    optimizer_bytes: float
    buffers_bytes: float
    bucket_of: np.ndarray
    made_of: np.ndarray
    waiting: np.ndarray
    groups: tuple[tuple[int, ...], ...]
    summed: tuple[bool, ...]
    gaps_bytes: np.ndarray
    step_bytes: float
    shard_bytes: float = 0.0
    stepped: float = 1.0
    replicas: int = 1
    gathers: bool = False

    @cached_property
    def bucket_bytes(self) -> np.ndarray:
        """Bytes of each gradient bucket, tied buckets last; shape (buckets,)."""
        return self.bucket_of.sum(axis=0)


def stage_bytes(columns: Columns, cuts: tuple[StageCut, ...], s: int, every: tuple[Tie, ...]) -> StageBytes:
    """Bytes of one stage that do not depend on the microbatch.

    Parameters that several of its layers use count once.

    Arguments:
        columns: costs of the profile.
        cuts: all stages.
        s: index of the stage.
        every: all weights that several stages share.
    """
    cut, ties = cuts[s], tuple(tie for tie in every if s in tie.stages)
    layers, sizes = columns.profile.layers, columns.parameters
    own = cut.buckets or (cut.layers,)
    bucket_of_layer = {layer: b for b, bucket in enumerate(own) for layer in bucket}
    tie_of = {name: len(own) + k for k, tie in enumerate(ties) for name in tie.parameters}
    position = {layer: k for k, layer in enumerate(cut.layers)}
    table = np.zeros((len(cut.layers), len(own) + len(ties)))
    made, waiting, gaps = np.zeros_like(table), np.zeros_like(table), np.zeros(table.shape[1])
    last = {name: position[i] for i in cut.layers for name in layers[i].parameters}
    groups: list[set[int]] = [set() for _ in range(table.shape[1])]
    weights = optimizer = 0.0
    shared_weights = shared_optimizer = 0.0  # bytes of parameters that are shared with other stages
    seen: set[str] = set()
    # Layers are visited in ascending order: a gradient is complete after the first layer that uses the parameter,
    # which the backward visits last.
    for i in cut.layers:
        layer = layers[i]
        if not layer.parameters:
            weights, optimizer = weights + layer.weights_bytes, optimizer + layer.optimizer_bytes
            if layer.gradients_bytes:
                table[position[i], bucket_of_layer[i]] += layer.gradients_bytes
                made[position[i], bucket_of_layer[i]] += layer.gradients_bytes
                groups[bucket_of_layer[i]].add(i)
        for name in layer.parameters:
            if name in seen:
                continue
            seen.add(name)
            size = sizes[name]
            bucket = tie_of.get(name, bucket_of_layer[i])
            weights, optimizer = weights + size[0], optimizer + size[2]
            if name in tie_of:
                shared_weights, shared_optimizer = shared_weights + size[0], shared_optimizer + size[2]
            table[position[i], bucket] += size[1]
            made[last[name], bucket] += size[1]
            if last[name] > position[i]:
                waiting[position[i] : last[name], bucket] += size[1]
                waiting[position[i], bucket] += size[1]  # the sum of both parts
            gaps[bucket] += _ALIGNMENT_BYTES
            groups[bucket].add(i)
    buffers = sum(layers[i].buffers_bytes for i in cut.layers)
    steps = [layers[i].step_bytes for i in cut.layers]
    step = sum(steps) if columns.profile.step_together else max(steps)
    holders = ({d for t in tie.stages for d in (*cuts[t].devices, *cuts[t].beside)} for tie in ties)
    summed = (cut.replicated,) * len(own) + tuple(len(devices) > 1 for devices in holders)
    complete = tuple(tuple(sorted(group)) for group in groups)
    whole = StageBytes(weights, optimizer, buffers, table, made, waiting, complete, summed, gaps, step)
    if not cut.sharded:
        return whole
    # Shards have equal sizes, so flat memory is padded.
    replicas, padding = cut.replicas, float(_ALIGNMENT_BYTES * cut.replicas)
    gaps[: len(own)] += padding
    gap = float(gaps[: len(own)].sum())
    stepped = (shared_weights + (weights - shared_weights) / replicas) / weights if weights else 1.0
    return replace(
        whole,
        weights_bytes=weights + gap,
        optimizer_bytes=shared_optimizer + (optimizer - shared_optimizer + gap) / replicas,
        shard_bytes=(weights - shared_weights + gap) / replicas,
        step_bytes=min(step, sum(steps) * stepped),
        stepped=stepped,
        replicas=replicas,
        gathers=cut.shard == "full",
    )


@dataclass(slots=True)
class _Made:
    """Values that an instruction writes to new memory.

    Attributes:
        own: values of which the memory is neither pooled nor flat.
        inherited: identities of freed values that give their memory to written values.
        every_bytes, unpooled_bytes, pooled_bytes, flat_bytes, own_bytes, gradients_bytes: bytes of all values, of those
            without pooled memory, of those with pooled memory, of those in flat memory, of `own`, and of gradients in
            `own`.
    """

    own: list[Value]
    inherited: set[int]
    every_bytes: float
    unpooled_bytes: float
    pooled_bytes: float
    flat_bytes: float
    own_bytes: float
    gradients_bytes: float


_MOST_WALKS = 4096  # that plans of one profile share


class PlanMemory:
    """Bytes of values and instructions of one plan.

    Arguments:
        columns: costs of the profile.
        cuts: the stages.
        samples: samples of each microbatch of a batch.
        swaps: True if values may be swapped to the host. Then every value has separate memory, even if it is among the
            saved activations, and no memory is pooled.

    Attributes:
        bundles: microbatches that stages run together.
        stages: bytes of each stage that do not depend on the microbatch.
    """

    def __init__(
        self, columns: Columns, cuts: tuple[StageCut, ...], samples: tuple[int, ...] = (1,), swaps: bool = False
    ) -> None:
        self._columns, self._cuts, self.bundles, self._swaps = columns, cuts, Bundles(cuts, samples), swaps
        profile = columns.profile
        self._borders = crossing(profile.tensors, cuts)
        self._batch = batch_tensors(profile.tensors, cuts)
        ties = ties_of(profile.layers, cuts)
        self.stages = tuple(stage_bytes(columns, cuts, s, ties) for s in range(len(cuts)))
        self._added: dict[tuple[int, int], int] = {}
        """For weights that several stages share on the same devices: (stage, bucket) -> first of these stages.

        See `together` in program/order.py.
        """
        for s, cut in enumerate(cuts):
            for k, tie in enumerate(tie for tie in ties if s in tie.stages):
                if len({frozenset(cuts[t].devices) for t in tie.stages}) == 1:
                    self._added[s, max(1, len(cut.buckets)) + k] = tie.stages[0]
        self._walks: dict[tuple[int, int], Walk] = {}
        self._sizes: dict[tuple[ValueKind, int, int, int], float] = {}

    def value_bytes(self, value: Value, samples: int) -> float:
        """Bytes of the content of one value.

        Arguments:
            samples: samples of the value's microbatches, for values that depend on them.
        """
        key = (value.what, value.stage, value.part, samples)
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = self._value_bytes(value, samples)
        return found

    def _value_bytes(self, value: Value, samples: int) -> float:
        stage = self.stages[value.stage]
        match value.what:
            case ValueKind.WEIGHTS:
                return stage.weights_bytes
            case ValueKind.OPTIMIZER:
                return stage.optimizer_bytes
            case ValueKind.SQUARES | ValueKind.NORM:
                return NORM_BYTES * (1 + self._columns.profile.loss_weighted)
            case ValueKind.MARK:
                return 0.0
            case ValueKind.SHARD:
                return stage.shard_bytes
            case ValueKind.GATHERED:
                return stage.weights_bytes
            case ValueKind.PART:
                return float(stage.bucket_bytes[value.part]) / stage.replicas
            case ValueKind.ENDED:
                return 0.0
            case ValueKind.ACCUMULATOR | ValueKind.REDUCED | ValueKind.LENT:
                return float(stage.bucket_bytes[value.part])
        figures = self._columns.at(samples)
        match value.what:
            case ValueKind.STASH:
                return self._walk(value.stage, samples).stash_bytes
            case ValueKind.INPUT:
                indices = self._batch.get(value.stage, ())
            case _:
                indices = self._crossing(value)
        return float(sum(figures.tensor_bytes[i] for i in indices))

    def _crossing(self, value: Value) -> tuple[int, ...]:
        """Indices of the profile's tensors in an activation or gradient."""
        found = tuple(self._borders[(value.stage, value.part)])
        if value.what is ValueKind.ACTIVATION:
            return found
        return tuple(i for i in found if self._columns.profile.tensors[i].gradient)

    def own(self, value: Value) -> bool:
        """True if an activation or gradient has a tensor that differs among ranks.

        Ranks are the devices of a tensor-parallel group.
        """
        return any(self._columns.profile.tensors[i].own for i in self._crossing(value))

    def held_bytes(self, value: Value, device: int, samples: int) -> float:
        """Bytes of device memory that a value occupies on one of its devices.

        An activation that is also among the saved activations needs no separate memory on the device that made it:
        they stay until their backward is over, and so until every reader has the activation. Several tensors in one
        message, and gradients in a flat bucket, are aligned.

        Arguments:
            samples: samples of the value's microbatches.
        """
        if value.what in _SUMS:
            stage = self.stages[value.stage]
            return self.value_bytes(value, samples) + float(stage.summed[value.part] * stage.gaps_bytes[value.part])
        if value.what is ValueKind.PART:
            stage = self.stages[value.stage]
            return self.value_bytes(value, samples) + float(stage.gaps_bytes[value.part]) / stage.replicas
        if (
            value.what is ValueKind.SHARD and not self.stages[value.stage].gathers
        ):  # a shard is a part of the memory of the whole weights
            return self.stages[value.stage].weights_bytes
        if value.what not in BORDER:
            return self.value_bytes(value, samples)
        indices = self._borders[(value.stage, value.part)]
        if value.copy:
            return self.value_bytes(value, samples)
        copied = self.bundles.split(value) or self.bundles.joined(value, device)
        if copied or not self._makes(value, device) or self._packed(value, device):
            return self.value_bytes(value, samples) + _ALIGNMENT_BYTES * len(indices) * (len(indices) > 1)
        return self._loose_bytes(value, samples)

    def _makes(self, value: Value, device: int) -> bool:
        """True if an activation or gradient is written on this device instead of received."""
        return self.bundles.maker(value).device(value.index) == device

    def _joined_bytes(self, instruction: Instruction, samples: int) -> float:
        """Bytes that exist twice while a forward or backward joins the pieces of a bundle.

        Pieces are joined for one stage boundary at a time, so this is the maximum over boundaries.

        Arguments:
            samples: samples of the instruction's microbatches.
        """
        borders: dict[tuple[int, int], float] = {}
        for value in self.bundles.joins(instruction):
            key, size = (value.stage, value.part), self.bundles.samples_in(instruction, value, samples)
            borders[key] = borders.get(key, 0.0) + self.value_bytes(value, size)
        return max(borders.values(), default=0.0)

    def _packed(self, value: Value, device: int) -> bool:
        """True if an activation or gradient is copied into a message when it is made.

        It is if it goes to another device and has several tensors, or is an activation with a tensor that is not
        contiguous in memory.
        """
        reader = self.bundles.reader(value)
        if reader.device(value.index) == device:
            return False
        indices, tensors = self._borders[(value.stage, value.part)], self._columns.profile.tensors
        return len(indices) > 1 or (value.what is ValueKind.ACTIVATION and not all(tensors[i].dense for i in indices))

    def _loose_bytes(self, value: Value, samples: int) -> float:
        """Bytes of an activation's or gradient's tensors on the device that makes them.

        Tensors that are among the saved activations are left out.
        """
        maker = self._cuts[value.stage]
        if value.what is ValueKind.GRADIENT or maker.recompute or self._swaps:
            return self.value_bytes(value, samples)
        tensors, own = self._columns.profile.tensors, set(maker.layers)
        sizes, indices = self._columns.at(samples).tensor_bytes, self._borders[(value.stage, value.part)]
        return float(sum(sizes[i] for i in indices if own.isdisjoint(tensors[i].kept_by)))

    def pooled(self, value: Value) -> bool:
        """True if the memory of a value is pooled: kept for the next value of this kind.

        Weight versions and flat gradient buckets are pooled, unless the plan swaps or the stage is fully sharded.
        """
        if self._swaps:
            return False
        if value.what in _SUMS:
            return self.stages[value.stage].summed[value.part] and not self.stages[value.stage].gathers
        return value.what in (ValueKind.WEIGHTS, ValueKind.SHARD) and not self.stages[value.stage].gathers

    def net_bytes(self, instruction: Instruction, samples: int, pooled: bool = True) -> float:
        """Change of device memory from before an instruction to after it.

        It is negative if the instruction frees more than it makes.

        Arguments:
            samples: samples of the instruction's microbatches.
            pooled: True to count values with pooled memory as well.
        """
        return self._net_bytes(instruction, self._made(instruction, samples), samples, pooled)

    def hold_bytes(self, instruction: Instruction, samples: int, pooled: bool = True) -> float:
        """Maximum bytes that an instruction adds to device memory while it runs.

        The result is never below 0.

        Arguments:
            samples: samples of the instruction's microbatches.
            pooled: True to count new values with pooled memory as well, which is allocated at the start.
        """
        return self._hold_bytes(instruction, self._made(instruction, samples), samples, pooled)

    def net_and_hold_bytes(self, instruction: Instruction, samples: int, pooled: bool = True) -> tuple[float, float]:
        """`net_bytes` and `hold_bytes`, with less work than both."""
        made = self._made(instruction, samples)
        net = self._net_bytes(instruction, made, samples, pooled)
        return net, self._hold_bytes(instruction, made, samples, pooled)

    def _made(self, instruction: Instruction, samples: int) -> "_Made":
        """Values that an instruction writes to new memory, not to the memory of a freed value."""
        own, inherited = list[Value](), set[int]()
        every = unpooled = pooled = flat = whole = gradients = 0.0
        for value in instruction.writes:
            heir = heir_of(instruction, value)
            if heir is not None:
                inherited.add(id(heir))
                continue
            size = self._size(instruction, value, samples)
            every += size
            if self.pooled(value):
                pooled += size
                continue
            unpooled += size
            # Flat memory is allocated as a whole when the instruction begins, even if it is not pooled.
            if value.what is ValueKind.ACCUMULATOR and self._flat(value):
                flat += size
                continue
            own.append(value)
            whole += size
            if value.what is ValueKind.GRADIENT:
                gradients += size
        return _Made(own, inherited, every, unpooled, pooled, flat, whole, gradients)

    def _net_bytes(self, instruction: Instruction, made: "_Made", samples: int, pooled: bool) -> float:
        gone = 0.0
        for value in instruction.frees:
            if id(value) not in made.inherited and (pooled or not self.pooled(value)):
                gone += self._size(instruction, value, samples)
        return (made.every_bytes if pooled else made.unpooled_bytes) - gone

    def _hold_bytes(self, instruction: Instruction, made: "_Made", samples: int, pooled: bool) -> float:
        own, whole = made.own, made.own_bytes
        match instruction.kind:
            case Kind.LOAD:
                # The tensors of all samples of the microbatch, and their stack. Afterwards the stage holds only the
                # tensors that it reads.
                tensors, sizes = self._columns.profile.tensors, self._columns.at(samples).tensor_bytes
                whole = max(whole, 2 * float(sum(sizes[i] for i, t in enumerate(tensors) if t.source < 0)))
            case Kind.FORWARD:
                kept = any(v.what is ValueKind.STASH for v in own)
                leaves = any(v.what is ValueKind.ACTIVATION for v in own) or instruction.again
                whole = max(whole, self._walk(instruction.stage, samples).forward_peak(kept, leaves))
                whole = max(whole, self._joined_bytes(instruction, samples))
            case Kind.BACKWARD:
                fresh = [v.part for v in own if v.what is ValueKind.ACCUMULATOR]
                walk = self._walk(instruction.stage, samples)
                whole = max(0.0, walk.backward_peak(fresh, made.gradients_bytes))
                whole = max(whole, self._joined_bytes(instruction, samples))
            case Kind.NORM:
                whole += self._added_bytes(
                    v for v in instruction.reads if self._added.get((v.stage, v.part)) == v.stage
                )
            case Kind.STEP:
                whole += self.stages[instruction.stage].step_bytes
                whole += self._added_bytes(v for v in instruction.reads if v.stage == instruction.stage)
        # Messages are packed, and bundles divided into pieces, at the end. These values then exist twice.
        moving = [v for v in own if v.what in BORDER and (self._packed(v, instruction.device) or self.bundles.split(v))]
        if moving:
            besides = sum(self._besides(v, self.bundles.samples_in(instruction, v, samples)) for v in moving)
            net = self._net_bytes(instruction, made, samples, pooled=False)
            whole = max(whole, net - made.flat_bytes + besides)
        return whole + made.flat_bytes + (made.pooled_bytes if pooled else 0.0)

    def _flat(self, value: Value) -> bool:
        """True if a gradient bucket is in flat memory that is allocated for each update."""
        stage = self.stages[value.stage]
        return stage.gathers or (self._swaps and stage.summed[value.part])

    def _added_bytes(self, values: Iterable[Value]) -> float:
        """Bytes of the sums of gradients over stages of one device with tied weights.

        A step or norm makes one sum for each gradient bucket.

        Arguments:
            values: values that the instruction reads.
        """
        shared = ((v.stage, v.part) for v in values if v.what in _SUMS)
        return sum(float(self.stages[s].bucket_bytes[b]) for s, b in shared if (s, b) in self._added)

    def _besides(self, value: Value, samples: int) -> float:
        """Bytes of an activation or gradient in addition to its copy, while this is made.

        A piece of a bundle may be copied twice.

        Arguments:
            samples: samples of the value's microbatches.
        """
        loose = self._loose_bytes(value, samples)
        return max(loose, self.value_bytes(value, samples)) if self.bundles.split(value) else loose

    def _size(self, instruction: Instruction, value: Value, samples: int) -> float:
        """Bytes of device memory of a value that an instruction writes or frees; 0 on the host."""
        if value.on_host:
            return 0.0
        return self.held_bytes(value, instruction.device, self.bundles.samples_in(instruction, value, samples))

    def _walk(self, stage: int, samples: int) -> Walk:
        """Bytes of one stage's layers and tensors by position.

        They are computed once for each number of samples.
        """
        found = self._walks.get((stage, samples))
        if found is None:
            columns, own, about = self._columns, self._cuts[stage].layers, self.stages[stage]
            readers = Counter(i for (maker, _), indices in self._borders.items() if maker == stage for i in indices)
            key = (own, samples, frozenset(readers.items()), about.made_of.tobytes(), about.waiting.tobytes())
            found = columns.walks.get(key)
            if found is None:
                if len(columns.walks) >= _MOST_WALKS:
                    columns.walks.clear()
                found = Walk.of(columns, samples, own, about.made_of, readers, about.waiting)
                columns.walks[key] = found
            self._walks[stage, samples] = found
        return found

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

from hocket.cost.compute import Columns
from hocket.cost.memory.bundles import BORDER, Bundles
from hocket.cost.memory.stage_bytes import ALIGNMENT_BYTES, stage_bytes
from hocket.cost.memory.stage_walk import Walk
from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.order import heir_of
from hocket.program.passes.borders import StageCut, batch_tensors, crossing, ties_of

NORM_BYTES = 8.0  # one number for the squares of gradients, and one for the weights of losses
_SUMS = (ValueKind.ACCUMULATOR, ValueKind.REDUCED, ValueKind.LENT)
POOLED = (*_SUMS, ValueKind.WEIGHTS, ValueKind.SHARD)
"""Kinds of values of which some have pooled memory (`PlanMemory.pooled`)."""


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
            return self.value_bytes(value, samples) + ALIGNMENT_BYTES * len(indices) * (len(indices) > 1)
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
        inherited = {heir_of(instruction, value) for value in instruction.writes}
        made = [v for v in self._new(instruction) if pooled or not self.pooled(v)]
        gone = [v for v in instruction.frees if v not in inherited and (pooled or not self.pooled(v))]
        return self._sum(instruction, made, samples) - self._sum(instruction, gone, samples)

    def hold_bytes(self, instruction: Instruction, samples: int, pooled: bool = True) -> float:
        """Maximum bytes that an instruction adds to device memory while it runs.

        The result is never below 0.

        Arguments:
            samples: samples of the instruction's microbatches.
            pooled: True to count new values with pooled memory as well, which is allocated at the start.
        """
        figures = self._columns.at(samples)
        new = self._new(instruction)
        taken = self._sum(instruction, [v for v in new if self.pooled(v)], samples)
        # Flat memory is allocated as a whole when the instruction begins, even if it is not pooled.
        flat = [v for v in new if v.what is ValueKind.ACCUMULATOR and self._flat(v)]
        flat_bytes = self._sum(instruction, flat, samples)
        own = [v for v in new if not self.pooled(v) and v not in flat]
        whole = self._sum(instruction, own, samples)
        match instruction.kind:
            case Kind.LOAD:
                # The tensors of all samples of the microbatch, and their stack. Afterwards the stage holds only the
                # tensors that it reads.
                tensors = self._columns.profile.tensors
                whole = max(
                    whole, 2 * float(sum(figures.tensor_bytes[i] for i, t in enumerate(tensors) if t.source < 0))
                )
            case Kind.FORWARD:
                kept = any(v.what is ValueKind.STASH for v in own)
                leaves = any(v.what is ValueKind.ACTIVATION for v in own) or instruction.again
                whole = max(whole, self._walk(instruction.stage, samples).forward_peak(kept, leaves))
                whole = max(whole, self._joined_bytes(instruction, samples))
            case Kind.BACKWARD:
                fresh = [v.part for v in own if v.what is ValueKind.ACCUMULATOR]
                gradients = self._sum(instruction, [v for v in own if v.what is ValueKind.GRADIENT], samples)
                whole = max(0.0, self._walk(instruction.stage, samples).backward_peak(fresh, gradients))
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
            whole = max(whole, self.net_bytes(instruction, samples, pooled=False) - flat_bytes + besides)
        return whole + flat_bytes + (taken if pooled else 0.0)

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

    def _sum(self, instruction: Instruction, values: Iterable[Value], samples: int) -> float:
        return sum(
            self.held_bytes(v, instruction.device, self.bundles.samples_in(instruction, v, samples))
            for v in values
            if not v.on_host
        )

    def _new(self, instruction: Instruction) -> list[Value]:
        """Written values that need new memory, not the memory of a freed value."""
        return [v for v in instruction.writes if heir_of(instruction, v) is None]

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

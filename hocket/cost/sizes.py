"""Bytes of one plan's values and instructions, for memory_bound/footprint.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hocket.cost.memory.values import POOLED
from hocket.cost.model import CostModel
from hocket.program.instruction import COMPUTE, Instruction, Value, ValueKind
from hocket.program.order import heir_of, waves
from hocket.program.program import Program


@dataclass(frozen=True)
class PlanSizes:
    """Bytes of a program's values and instructions, from a cost model."""

    costs: CostModel
    program: Program

    @cached_property
    def _ragged(self) -> bool:
        # Only a few periods are considered. They have microbatches of every size only if a period is whole batches.
        return self.program.stride % len(self.costs.samples) == 0

    def _samples(self, index: int, merged: int) -> int:
        return self.costs.samples_from(index, merged) if self._ragged else merged * max(self.costs.samples)

    def value(self, value: Value, device: int) -> float:
        """Bytes of memory of a value on a device, or on its host."""
        return self.costs.memory.held_bytes(value, device, self._samples(value.index, self.costs.merged_of(value)))

    def held(self, instruction: Instruction) -> float:
        """Maximum bytes that a compute instruction adds to device memory while it runs.

        Written values with pooled memory do not count.
        """
        samples = self._samples(instruction.index, self.costs.merged_in(instruction))
        return self.costs.memory.hold_bytes(instruction, samples, pooled=False)

    def pooled(self, value: Value) -> bool:
        """True if the memory of a value is pooled: kept for the next value of this kind."""
        return self.costs.memory.pooled(value)

    def besides(self, device: int) -> float:
        """Bytes of buffers of a device, in addition to its values."""
        return self.costs.buffers_bytes(device)

    def resident(self, device: int) -> float:
        """Bytes of a device at the start: state, buffers, and memory pools at their peak.

        State is the device's values before the first instruction, without values on the host.
        """
        initial = (v for v in self.program.initial(device) if not (self.pooled(v) or v.on_host))
        state = sum(self.value(v, device) for v in initial)
        return self.costs.buffers_bytes(device) + state + self._pools[device]

    @cached_property
    def _pools(self) -> dict[int, float]:
        """Peak bytes of pooled memory, by device."""
        return {device: self._pool_bytes(device) for device in self.program.devices}

    def _pool_bytes(self, device: int) -> float:
        """Peak bytes of pooled memory along the compute lane of a device.

        With two waves on a device (tick-tock), the gradient sums of a wave are freed when the other wave has used
        them. The wave may have begun its next sums by then, so there are two sums for each bucket.
        """
        if waves(self.program.rule):
            own = [(s, stage) for s, stage in enumerate(self.program.stages) if device in stage.devices]
            weights = [Value(ValueKind.WEIGHTS, s, 0) for s, _ in own]
            sums = [Value(ValueKind.LENT, s, 0, b) for s, stage in own for b in range(stage.buckets)] * 2
            return sum(self.value(value, device) for value in filter(self.pooled, weights + sums))
        level: dict[tuple[int, int, bool], int] = {}
        most: dict[tuple[int, int, bool], float] = {}
        known: dict[Value, bool] = {}
        for value, count in self._changes(device):
            alike = Value(value.what, value.stage, 0, value.part)
            pooled = known.get(alike)
            if pooled is None:
                pooled = known[alike] = self.pooled(alike)
            if pooled:
                key = (value.stage, value.part, value.what in (ValueKind.WEIGHTS, ValueKind.SHARD))
                level[key] = level.get(key, 0) + count
                most[key] = max(most.get(key, 0.0), level[key] * self.value(value, device))
        return sum(most.values())

    def _changes(self, device: int) -> Iterator[tuple[Value, int]]:
        """Yield values of pooled kinds that appear (1) or are freed (-1) along the compute lane, in order.

        Values that change in other lanes are left out: they have no pooled memory.
        """
        program = self.program
        yield from ((value, 1) for value in program.initial(device) if value.what in POOLED)
        for part in (program.prologue, program.period, program.epilogue):
            for one in part.get((device, COMPUTE), ()):
                written = [value for value in one.writes if value.what in POOLED]
                heirs = {value: heir_of(one, value) for value in written}
                yield from ((value, 1) for value, ancestor in heirs.items() if ancestor is None)
                freed = [value for value in one.frees if value.what in POOLED]
                yield from ((value, -1) for value in freed if value not in heirs.values())

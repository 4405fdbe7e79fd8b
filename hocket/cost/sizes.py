"""Sizes of one plan's values and instructions, as hocket/program/footprint.py asks for them."""

from dataclasses import dataclass
from functools import cached_property

from hocket.cost.model import CostModel
from hocket.program.instruction import Instruction, Kind, Value
from hocket.program.program import Program


@dataclass(frozen=True)
class PlanSizes:
    """Bytes of a program's values under a cost model."""

    costs: CostModel
    program: Program

    @cached_property
    def _ragged(self) -> bool:
        # Few repetitions of the period are looked at: they show every size only where a period is whole batches.
        return self.program.stride % len(self.costs.samples) == 0

    def _samples(self, index: int) -> int:
        samples = self.costs.samples
        return samples[index % len(samples)] if self._ragged else max(samples)

    def value(self, value: Value, device: int) -> float:
        """Of a value on a device."""
        return self.costs.memory.held_bytes(value, device, self._samples(value.index))

    def held(self, instruction: Instruction) -> float:
        """The most that a compute instruction adds while it runs, pooled values that it writes left out."""
        return self.costs.memory.hold_bytes(instruction, self._samples(instruction.index), pooled=False)

    def pooled(self, value: Value) -> bool:
        """Whether the memory of such values is never given back."""
        return self.costs.memory.pooled(value)

    def besides(self, device: int) -> float:
        """Buffers, scalars, and the message that each lane is packing."""
        return self.costs.buffers_bytes(device) + self._messages.get(device, 0.0)

    @cached_property
    def _messages(self) -> dict[int, float]:
        lanes: dict[tuple[int, str], float] = {}
        most = max(self.costs.samples)
        for _, one in self.program.instructions():
            if one.kind is Kind.SEND:
                size = max(self.costs.memory.message_bytes(value, most) for value in one.reads)
                lanes[one.device, one.lane] = max(size, lanes.get((one.device, one.lane), 0.0))
        found: dict[int, float] = {}
        for (device, _), size in lanes.items():
            found[device] = found.get(device, 0.0) + size
        return found

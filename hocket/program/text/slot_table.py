"""Slot table: the slots of a program's compute lanes, with their labels.

Rules of this file: no rows or columns of text; diagram.py draws them.
"""

from hocket.program.instruction import Instruction, Kind
from hocket.program.memory_bound.slots import LaneSlot, place
from hocket.program.program import Program

MAX_BLOCKED = 6  # instructions shown for each device that cannot start
_LETTERS = {Kind.FORWARD: "F", Kind.BACKWARD: "B"}


class SlotTable:
    """Time slots of each compute lane's instructions.

    Instructions that never start follow after everything else.

    Attributes:
        slots: by lane, slots of its instructions in the lane's order.
        last: first slot after all instructions that start.
        blocked: True if an instruction never starts.
        total: number of slots.
        size: characters of the longest label.
    """

    def __init__(self, program: Program, repeats: int = 1, backward_slots: int = 2) -> None:
        self.program, self.labels = program, SlotLabels(program)
        slots = place(program, repeats, backward_slots)
        self.last = max((s.end for row in slots.values() for s in row if s.start >= 0), default=0)
        self.blocked = any(s.start < 0 for row in slots.values() for s in row)
        self.slots = {lane: _after(row, self.last) for lane, row in slots.items()} if self.blocked else slots
        self.total = max((s.end for row in self.slots.values() for s in row), default=0)
        self.size = max((len(self.labels.of(s.instruction)) for row in self.slots.values() for s in row), default=1)


class SlotLabels:
    """Labels of instructions in a staircase diagram.

    Examples: F3, B3, R3 (recomputed forward), F4-7 (merged microbatches). Letters 'a', 'b', ... are added if devices
    have several stages.
    """

    def __init__(self, program: Program) -> None:
        self.hosted = {d: [s for s, stage in enumerate(program.stages) if d in stage.devices] for d in program.devices}
        self.merged = [stage.merged for stage in program.stages]
        self.chunks = any(len(stages) > 1 for stages in self.hosted.values())

    def of(self, instruction: Instruction) -> str:
        """Label of an instruction; empty if it takes no slot."""
        if instruction.kind not in _LETTERS:
            return ""
        letter = "R" if instruction.again else _LETTERS[instruction.kind]
        last = instruction.index - 1 + (self.merged[instruction.stage] if instruction.stage < len(self.merged) else 1)
        to = f"-{last}" if last > instruction.index else ""
        return f"{letter}{instruction.index}{to}{self.chunk(instruction.device, instruction.stage)}"

    def chunk(self, device: int, stage: int) -> str:
        """Letter of a stage among the stages of a device; empty if no device has several."""
        hosted = self.hosted.get(device, [])
        if not self.chunks or stage not in hosted:
            return ""
        position = hosted.index(stage)
        return chr(ord("a") + position) if position < 26 else f"/{position}"

    def stages(self, device: int) -> str:
        """Names of a device's stages, with their letters."""
        hosted = self.hosted.get(device, [])
        if not self.chunks:
            return f"stage {hosted[0]}" if hosted else ""
        return "stages " + " ".join(f"{s}={self.chunk(device, s)}" for s in hosted)


def _after(row: list[LaneSlot], time: int) -> list[LaneSlot]:
    """Slots of a lane, with blocked instructions one after the other at the end.

    Arguments:
        time: slot in which the first blocked instruction is drawn.
    """
    placed, blocked = [s for s in row if s.start >= 0], [s for s in row if s.start < 0]
    for slot in blocked[:MAX_BLOCKED]:
        length = slot.end - slot.start
        placed.append(LaneSlot(slot.part, slot.repetition, slot.position, slot.instruction, time, time + length))
        time += length
    return placed

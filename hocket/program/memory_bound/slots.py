"""Compute instructions in slots of equal length, for diagrams.

The forward of a microbatch takes one slot, its backward one or two, and everything else none.

Rules of this file: readiness as in order.py, without frees and rendezvous. So a program that is not legal can be placed
as well, as far as it runs. Seconds are the simulator's job.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hocket.program.instruction import COLLECTIVES, COMPUTE, Instruction, Kind, Value, computes
from hocket.program.program import Lane, Lanes, Program


@dataclass(frozen=True, slots=True)
class LaneSlot:
    """Instruction of a compute lane, from slot `start` to slot `end` (exclusive).

    Attributes:
        part, repetition, position: place of the instruction: part, repetition of the period, position in the lane.
        start: first slot; -1 if the instruction cannot start.
    """

    part: str
    repetition: int
    position: int
    instruction: Instruction
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Entry:
    part: str
    repetition: int
    position: int
    instruction: Instruction


def place(program: Program, repeats: int = 1, backward_slots: int = 2) -> dict[Lane, list[LaneSlot]]:
    """Slots of each compute lane's instructions, in the lane's order.

    Instructions that can never start come last.

    Arguments:
        repeats: repetitions of the period.
        backward_slots: slots of the backward of one microbatch.
    """
    lanes = _unrolled(program, repeats)
    there: dict[tuple[int, Value], int] = {}
    for device in program.devices:
        there.update({(device, value): 0 for value in program.initial(device)})
    arrived: dict[tuple[str, int], dict[Lane, int]] = {}
    waiting: dict[tuple[int, Value], list[Lane]] = {}
    at = dict.fromkeys(lanes, 0)
    clock = dict.fromkeys(lanes, 0)
    slots: dict[Lane, list[LaneSlot]] = {(device, COMPUTE): [] for device in program.devices}
    slots |= {lane: [] for lane in lanes if computes(lane[1])}
    each = {Kind.FORWARD: 1, Kind.BACKWARD: backward_slots}
    queue = deque(lanes)

    def length(instruction: Instruction) -> int:
        slots, stage = each.get(instruction.kind, 0), instruction.stage
        return slots * program.stages[stage].merged if slots and 0 <= stage < len(program.stages) else slots

    def write(device: int, value: Value, time: int) -> None:
        if (device, value) not in there:
            there[device, value] = time
            queue.extend(waiting.pop((device, value), ()))

    while queue:
        lane = queue.popleft()
        while at[lane] < len(lanes[lane]):
            entry = lanes[lane][at[lane]]
            instruction = entry.instruction
            needed = instruction.writes if instruction.kind is Kind.RECEIVE else instruction.reads
            keys = [(_sent(lane[0]) if instruction.kind is Kind.RECEIVE else lane[0], value) for value in needed]
            absent = next((key for key in keys if key not in there), None)
            if absent:
                waiting.setdefault(absent, []).append(lane)
                break
            start = max([clock[lane], *(there[key] for key in keys)])
            if instruction.kind in COLLECTIVES:
                group = arrived.setdefault((lane[1], at[lane]), {})
                group[lane] = start
                if len(group) < len(instruction.group):
                    break
                start = max(group.values())
                for other in group:
                    for value in lanes[other][at[other]].instruction.writes:
                        write(other[0], value, start)
                    clock[other], at[other] = start, at[other] + 1
                queue.extend(other for other in group if other != lane)
                group.clear()
                continue
            end = clock[lane] = start + length(instruction)
            at[lane] += 1
            if instruction.kind is Kind.SEND:
                for value in instruction.reads:
                    write(_sent(instruction.peer), value, end)
            for value in instruction.writes:
                write(lane[0], value, end)
            if lane in slots:
                slots[lane].append(LaneSlot(entry.part, entry.repetition, entry.position, instruction, start, end))
    for (device, name), entries in lanes.items():
        if computes(name):
            for entry in entries[at[device, name] :]:
                size = length(entry.instruction)
                slots[device, name].append(
                    LaneSlot(entry.part, entry.repetition, entry.position, entry.instruction, -1, -1 + size)
                )
    return slots


def _sent(device: int) -> int:
    """Key of the values in transit to a device. It differs from all device numbers."""
    return -1 - device


def _unrolled(program: Program, repeats: int) -> dict[Lane, list[_Entry]]:
    found: dict[Lane, list[_Entry]] = {lane: [] for lane in program.lanes}
    for part, repetition in _parts(repeats):
        lanes: Lanes = getattr(program, part)
        for lane, instructions in lanes.items():
            found[lane].extend(
                _Entry(part, repetition, position, shifted(program, instruction, repetition))
                for position, instruction in enumerate(instructions)
            )
    return found


def shifted(program: Program, i: Instruction, repetition: int) -> Instruction:
    """The instruction as it is after some repetitions of the period.

    An instruction that names unknown stages is returned unchanged and drawn as it is.
    """
    named = {i.stage, *(value.stage for row in (i.reads, i.writes, i.frees) for value in row)}
    return program.shifted(i, repetition) if named <= set(range(len(program.stages))) else i


def _parts(repeats: int) -> Iterator[tuple[str, int]]:
    yield "prologue", 0
    for repetition in range(repeats):
        yield "period", repetition
    yield "epilogue", repeats

"""Staircase diagram: a program as rows of devices and columns of time slots.

Diagrams are for people and for golden files. A device has one row, or one row for each wave.

Rules of this file: plain characters only, no colours; every row has the same columns; the diagram says if something is
cut off.

    slot               0           4     ...
    device 0  stage 0  F0 F1 .  .  B0--- B1---*
    device 1  stage 1  .  F0 B0--- F1 B1---*

Source: Narayanan's dissertation, figures of chapters 2 to 4. There, colours distinguish forwards from backwards.
"""

from dataclasses import dataclass, field

from hocket.program.check.problem import Place
from hocket.program.instruction import COMPUTE, Kind, computes
from hocket.program.memory_bound.slots import LaneSlot, shifted
from hocket.program.program import Lane, Program
from hocket.program.text.slot_table import SlotTable

MAX_ROWS = 64
_RULER = 5  # slots between two numbers of the ruler


@dataclass
class _Row:
    """Row of one device, or of one wave of a device.

    Attributes:
        cells: text of each slot.
        behind: character before each slot, and one after the last: "*" for a step, "-" inside a backward.
        signs: by slot, the sign in an additional column before it: "|" where a part begins, "?" before blocked
            instructions.
    """

    name: str
    cells: list[str]
    behind: list[str]
    signs: dict[int, str] = field(default_factory=dict)


def draw(
    program: Program,
    *,
    repeats: int = 1,
    backward_slots: int = 2,
    width: int | None = 160,
    mark: Place | None = None,
    what: str = "device",
) -> str:
    """Draw a program as a staircase diagram: a row for each device, a column for each time slot.

    Arguments:
        repeats: repetitions of the period to draw.
        backward_slots: slots of a backward. A forward takes one slot, everything else none.
        width: maximum columns of the drawing; None draws everything.
        mark: place of an instruction to point at. In a lane that is not a compute lane, the pointer is at the compute
            instruction that writes or reads the same values.
        what: word at the beginning of each row, such as "device".
    """
    table = SlotTable(program, repeats, backward_slots)
    at = (mark.device, mark.lane if computes(mark.lane) else COMPUTE) if mark else None
    rows = {lane: _row(table, lane, what) for lane in table.slots}
    grid = _Grid(rows, table.total, table.size)
    pointed = _pointed(program, table.slots.get(at, []), mark) if mark and at else None
    window = grid.window(width, pointed.start if pointed else 0)
    shown = _shown_rows(list(rows), at)

    lines = grid.headings(window, table.slots[shown[0]] if shown else [])
    for lane in shown:
        lines.append(grid.line(lane, window))
        if mark and lane == at:
            lines.append(grid.pointer(pointed.start if pointed else window[0], window, _here(program, mark)))
    lines += _notes(table, window, len(rows) - len(shown))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _row(table: SlotTable, lane: Lane, what: str) -> _Row:
    device, wave = lane[0], lane[1].removeprefix(COMPUTE)
    slots, labels, size, total = table.slots[lane], table.labels, table.size, table.total
    row = _Row(f"{what} {device}{wave}  {labels.stages(device)}", [".".ljust(size)] * total, [" "] * (total + 1))
    whole = not table.program.prologue and not table.program.epilogue
    before: LaneSlot | None = None
    for slot in slots:
        if slot.instruction.kind is Kind.STEP:
            row.behind[slot.start] = "*"
        label = labels.of(slot.instruction)
        for time in range(slot.start, slot.end):
            text = label if time == slot.start else ""
            row.cells[time] = text.ljust(size, "-" if slot.end - slot.start > 1 else " ")
            if time + 1 < slot.end:
                row.behind[time + 1] = "-"
        new = before is not None and (slot.part, slot.repetition) != (before.part, before.repetition)
        if new or (before is None and slot.part != "prologue" and not whole):
            row.signs[slot.start] = "|"
        before = slot
    if any(slot.start >= table.last and slot.end > slot.start for slot in slots):
        row.signs[table.last] = "?"
    return row


@dataclass
class _Grid:
    """All rows with common columns. A sign in any row needs an additional column.

    Attributes:
        total: number of slots.
        size: characters of a slot.
    """

    rows: dict[Lane, _Row]
    total: int
    size: int

    def __post_init__(self) -> None:
        self.signs = sorted({time for row in self.rows.values() for time in row.signs})
        self.margin = max((len(row.name) for row in self.rows.values()), default=0) + 2

    def column(self, time: int, first: int) -> int:
        """Column of a slot in a window that begins with slot `first`, after its signs.

        Arguments:
            time: number of the slot.
        """
        return self.margin + (time - first) * (self.size + 1) + 2 * sum(first <= sign <= time for sign in self.signs)

    def window(self, width: int | None, around: int) -> tuple[int, int]:
        """First slot, and last slot + 1, that fit into the width, including a given slot.

        Arguments:
            width: maximum columns; None for all slots.
            around: slot that must be inside.
        """
        if width is None or self.column(self.total, 0) <= width:
            return 0, self.total
        fitting = max(1, (width - self.margin) // (self.size + 1) - 1)
        first = max(0, min(around - fitting // 2, self.total - fitting)) if around >= fitting else 0
        end = first + 1
        while end < self.total and self.column(end + 1, first) <= width:
            end += 1
        return first, end

    def line(self, lane: Lane, window: tuple[int, int]) -> str:
        row = self.rows[lane]
        first, end = window
        text = row.name.ljust(self.margin)
        for time in range(first, end + 1):
            if time in self.signs:
                busy = row.behind[time] == "-"
                text += row.signs.get(time, "-" if busy else " ") + ("-" if busy else " ")
            if time < end:
                text += row.cells[time] + row.behind[time + 1]
        return text

    def headings(self, window: tuple[int, int], slots: list[LaneSlot]) -> list[str]:
        """Line of part names, placed where the first row enters each part, and the ruler.

        Arguments:
            slots: slots of the first row.
        """
        first, end = window
        ruler = "slot".ljust(self.margin)
        for time in range(first, end):
            if time % _RULER == 0:
                ruler = ruler.ljust(self.column(time, first)) + str(time)
        parts = ""
        seen: set[tuple[str, int]] = set()
        for slot in slots:
            key = (slot.part, slot.repetition)
            if key not in seen and first <= slot.start < end:
                name = f"period +{slot.repetition}" if slot.part == "period" and slot.repetition else slot.part
                column = self.column(slot.start, first)
                if len(parts) <= column:
                    parts = parts.ljust(column) + name + " "
            seen.add(key)
        return [parts, ruler] if len(seen) > 1 else [ruler]

    def pointer(self, time: int, window: tuple[int, int], text: str) -> str:
        first, end = window
        return " " * self.column(max(first, min(time, end - 1)), first) + f"^ HERE: {text}"


def _pointed(program: Program, slots: list[LaneSlot], mark: Place) -> LaneSlot | None:
    """Slot of the compute instruction to point at; None without one.

    This is the marked instruction, or the one that writes or reads the values of a marked transfer.
    """
    row = [slot for slot in slots if slot.repetition in (0, 1)]
    if computes(mark.lane):
        exact = [slot for slot in row if (slot.part, slot.position) == (mark.part, mark.position)]
        return next(iter(exact or row[-1:]), None)
    marked = mark.instruction(program)
    if mark.part == "epilogue":
        marked = shifted(program, marked, max((slot.repetition for slot in row), default=0))
    makers = [slot for slot in row if set(marked.reads) & set(slot.instruction.writes)]
    takers = [slot for slot in row if set(marked.writes) & set(slot.instruction.reads)]
    return next(iter(makers or takers), None)


def _here(program: Program, mark: Place) -> str:
    where = "" if computes(mark.lane) else f" in lane {mark.lane}"
    return f"{mark.instruction(program).name}{where} ({mark.part}, instruction {mark.position})"


def _shown_rows(lanes: list[Lane], marked: Lane | None) -> list[Lane]:
    lanes = sorted(lanes)
    if len(lanes) <= MAX_ROWS:
        return lanes
    shown = lanes[:MAX_ROWS]
    return shown if marked is None or marked in shown else [*shown[:-1], marked]


def _notes(table: SlotTable, window: tuple[int, int], hidden: int) -> list[str]:
    """Lines below the drawing: legend, share of idle slots, and what is not shown.

    Arguments:
        hidden: number of rows that are not shown.
    """
    slots, total = table.slots, table.total
    told = ["F forward", "B backward"]
    if any(s.instruction.again for row in slots.values() for s in row):
        told.append("R forward again (recomputation)")
    told.append("* weights updated")
    if table.labels.chunks:
        told.append("a, b, ... the stages of a device")
    if table.program.prologue or table.program.epilogue:
        told.append("| the next part begins")
    lines = [", ".join(told)]
    if table.blocked:
        lines.append("? instructions after this can never start")
    elif total:
        idle = total * len(slots) - sum(s.end - s.start for row in slots.values() for s in row)
        lines.append(f"idle: {idle} of {len(slots)} x {total} slots ({100 * idle / (total * len(slots)):.1f} %)")
    if window != (0, total):
        lines.append(f"slots {window[0]} to {window[1] - 1} of {total} are shown; a larger width shows more")
    if hidden:
        lines.append(f"{hidden} more devices are not shown")
    return lines

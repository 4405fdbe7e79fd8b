"""Lanes of one device: their instructions, and routes of values between them.

A route says which other lane of the device reads an output of an instruction. Routes follow from the program and are
determined once, before it runs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from hocket.errors import ProgramError
from hocket.program.instruction import (
    COMPUTE,
    GATHER,
    LOAD,
    SWAP_LANES,
    Instruction,
    Value,
    ValueKind,
    computes,
    group_lane,
)
from hocket.program.memory_bound.receive_window import windows
from hocket.program.memory_bound.send_completion import Ends
from hocket.program.program import Program

_PARTS = ("prologue", "period", "epilogue")


Moves = tuple[tuple[Value, int], ...]


@dataclass(frozen=True)
class Entry:
    """One instruction of a lane, and the lanes that read its outputs.

    Attributes:
        routes: (position in `writes`, lane that reads the value), for outputs that another lane reads.
        stride: increase of the instruction's index per period.
        reads, writes, frees: values, each with the increase of its index per period.
    """

    instruction: Instruction
    routes: tuple[tuple[int, str], ...]
    stride: int
    reads: Moves
    writes: Moves
    frees: Moves

    @classmethod
    def of(cls, program: Program, instruction: Instruction, routes: tuple[tuple[int, str], ...]) -> "Entry":
        """Build the entry of an instruction; the increases per period follow from the program."""
        i, one = instruction, program.shifted(instruction, 1)
        pairs = ((i.reads, one.reads), (i.writes, one.writes), (i.frees, one.frees))
        moves = (tuple((a, b.index - a.index) for a, b in zip(old, new, strict=True)) for old, new in pairs)
        return cls(i, routes, one.index - i.index, *moves)

    def at(self, repeats: int) -> Instruction:
        """Return the instruction as it is after `repeats` periods.

        The result is that of `Program.shifted`, but several times as fast: it is built for every executed instruction.
        """
        i = self.instruction
        return Instruction(
            i.kind,
            i.stage,
            i.index + repeats * self.stride,
            i.device,
            i.lane,
            tuple([Value(v.what, v.stage, v.index + repeats * by, v.part, v.copy) for v, by in self.reads]),
            tuple([Value(v.what, v.stage, v.index + repeats * by, v.part, v.copy) for v, by in self.writes]),
            tuple([Value(v.what, v.stage, v.index + repeats * by, v.part, v.copy) for v, by in self.frees]),
            i.peer,
            i.group,
            i.again,
        )


LaneParts = Mapping[str, tuple[Entry, ...]]


def lanes_of(program: Program, device: int) -> dict[str, LaneParts]:
    """Build prologue, period and epilogue of every lane of a device, by lane name.

    Swap lanes and the first compute lane share one store, so there are no routes between them.

    Raises:
        ProgramError: two lanes read a value (lanes that share a store count as one), or a lane other than compute
            reads it twice. The last use of such a value would be unknown.
    """
    readers = _readers(program, device)
    names = [lane for d, lane in program.lanes if d == device]
    found: dict[str, LaneParts] = {}
    for lane in names:
        parts = {}
        for part in _PARTS:
            instructions = getattr(program, part).get((device, lane), ())
            parts[part] = tuple(Entry.of(program, i, _routes(program, i, lane, part, readers)) for i in instructions)
        found[lane] = parts
    return found


class LaneTable:
    """Lanes of one device, grouped by what runs them.

    Attributes:
        parts: prologue, period and epilogue of every lane.
        swaps: names of the swap lanes.
        waves: names of the compute lanes in addition to the first.
        loads: name of the lane of loads, if the program prefetches; otherwise empty.
        transfers: all other lanes, with their parts.
        windows: receive window of each lane that has one: maximum number of posted messages that are not consumed.
        ends: positions of the first compute lane at which sends must be complete.
        gathers: lane that gathers the weights, for each of this device's stages with sharded steps, by stage.
    """

    def __init__(self, program: Program, device: int) -> None:
        """Build the lanes of a device.

        Raises:
            ProgramError: as `lanes_of` raises it.
        """
        self.parts = lanes_of(program, device)
        self.swaps = sorted(lane for lane in self.parts if lane in SWAP_LANES.values())
        self.waves = sorted(lane for lane in self.parts if computes(lane) and lane != COMPUTE)
        self.loads = [lane for lane in self.parts if lane == LOAD]
        own = {*self.swaps, *self.loads}
        others = (lane for lane in self.parts if not computes(lane) and lane not in own)
        self.transfers = {lane: self.parts[lane] for lane in others}
        self.windows = {lane: window for (d, lane), window in windows(program).items() if d == device}
        self.ends = Ends(program, device)
        self.gathers = {
            s: group_lane(GATHER, tuple(sorted(shape.devices)))
            for s, shape in enumerate(program.stages)
            if shape.sharded and device in shape.devices
        }


def _readers(program: Program, device: int) -> dict[Value, str]:
    """Find the lane that reads each value, in an unrolled run of `_span` periods."""
    found: dict[Value, str] = {}
    for lane, _, i in _unrolled(program, device, _span(program)):
        lane = _home(lane)
        for value in i.reads:
            before = found.get(value)
            if value.what is ValueKind.SHARD:  # read in many rounds, and by the step that writes the next shard
                found[value] = lane if before in (None, COMPUTE) else before
                continue
            if before is not None and (before != lane or not computes(lane)):
                raise ProgramError(f"device {device}: {i.name}", f"{value} is read on {before} already", "one reader")
            found[value] = lane
    return found


def _home(lane: str) -> str:
    """Return the lane that has the store of this lane's values."""
    return COMPUTE if lane in SWAP_LANES.values() else lane


def _span(program: Program) -> int:
    # A value written in one period is read at most this many periods later, because at most the microbatches that the
    # prologue admits are in flight. A permit to load is read later still.
    return max(-(-program.admitted // program.stride), program.load_span) + 3


def _unrolled(program: Program, device: int, repeats: int) -> Iterator[tuple[str, str, Instruction]]:
    for d, lane in program.lanes:
        if d == device:
            for part in _PARTS:
                for r in range(repeats) if part == "period" else (repeats if part == "epilogue" else 0,):
                    for i in getattr(program, part).get((d, lane), ()):
                        yield lane, part, program.shifted(i, r)


def _routes(
    program: Program, instruction: Instruction, lane: str, part: str, readers: Mapping[Value, str]
) -> tuple[tuple[int, str], ...]:
    # In the unrolled run all values of the first period are read. The epilogue comes at its end.
    repeats = _span(program) if part == "epilogue" else 0
    found = []
    for position, value in enumerate(instruction.writes):
        reader = readers.get(program.moved(value, repeats))
        if reader is not None and reader != _home(lane):
            found.append((position, reader))
    return tuple(found)


Step = tuple[Instruction, tuple[tuple[int, str], ...]]
"""An instruction, and the other lanes that read its outputs: (position in `writes`, lane) for each."""


class Cursor:
    """Position in a lane: prologue, then all announced periods, then epilogue.

    Attributes:
        known: number of periods announced so far.
    """

    def __init__(self, parts: LaneParts) -> None:
        self._parts, self._part, self._next = parts, "prologue", 0
        self._entries = parts[self._part]
        self._periods = self._repetition = 0
        self._answers: deque[bool] = deque()
        self._head: Step | None = None
        self._last = False
        self.known = 0

    def answer(self, goes_on: bool) -> None:
        """Announce whether another period follows the announced ones.

        It is called until `goes_on` is False.
        """
        self._answers.append(goes_on)
        self.known += goes_on

    @property
    def place(self) -> tuple[str, int, int]:
        """Place of the next instruction: part, repetition of the period (else 0), index."""
        return self._part, self._repetition if self._part == "period" else 0, self._next

    def head(self) -> Step | None:
        """Return the next instruction with its routes, without advancing.

        Returns:
            None at the end of the lane, or while `answer` has not yet said whether another period follows.
        """
        if self._head is None:
            while self._next == len(self._entries):
                if self._last or not self._answers:
                    return None
                self._turn(self._answers.popleft())
            entry = self._entries[self._next]
            self._head = (entry.at(self._repetition) if self._repetition else entry.instruction), entry.routes
        return self._head

    def advance(self) -> None:
        """Advance past the next instruction, which has begun."""
        self._next += 1
        self._head = None

    def _turn(self, goes_on: bool) -> None:
        self._repetition = self._periods
        self._periods += goes_on
        self._last = not goes_on
        self._part, self._next = "period" if goes_on else "epilogue", 0
        self._entries = self._parts[self._part]


def walk(parts: LaneParts, go_on: Callable[[int], bool]) -> Iterator[Step]:
    """Yield the instructions of a lane with their routes, in order.

    Arguments:
        go_on: function from the number of periods so far to True if another period follows.
    """
    for entry in parts["prologue"]:
        yield entry.instruction, entry.routes
    repeats = 0
    while go_on(repeats):
        for entry in parts["period"]:
            yield entry.at(repeats), entry.routes
        repeats += 1
    for entry in parts["epilogue"]:
        yield entry.at(repeats), entry.routes

"""Recording: a worker's events in all segments of a run.

Each segment counts its microbatches and updates from zero. A recording continues the numbers from segment to segment,
so that no name is repeated. Only the newest events are kept, so that a long run does not fill the memory. This file
does not import torch.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hocket.program.instruction import COUNTS_UPDATES, Instruction, Value
from hocket.program.program import Program
from hocket.program.trace.trace import Event

# One instruction with begin and end on the worker's clock and, if known, its wait for a CPU core; all in seconds.
Ran = tuple[Instruction, float, float] | tuple[Instruction, float, float, float]


@dataclass(frozen=True)
class RecordingOffset:
    """Counts of the microbatches, and of each stage's updates, that ran before a segment."""

    microbatches: int
    updates: tuple[int, ...]

    def moved(self, instruction: Instruction) -> Instruction:
        """Shift an instruction's indices by the offset."""
        stage_updates = self.updates[instruction.stage]
        by = stage_updates if instruction.counts_updates else self.microbatches
        return replace(
            instruction,
            index=instruction.index + by,
            reads=tuple(map(self._value, instruction.reads)),
            writes=tuple(map(self._value, instruction.writes)),
            frees=tuple(map(self._value, instruction.frees)),
        )

    def _value(self, value: Value) -> Value:
        by = self.updates[value.stage] if value.what in COUNTS_UPDATES else self.microbatches
        return Value(value.what, value.stage, value.index + by, value.part, value.copy)


class Recording:
    """The newest events of one worker.

    Attributes:
        device: device of the worker.
        events: events in order of segment, then start.
        segments_s: begin of the first instruction of each segment, in seconds on the worker's clock.
        left_out: number of older events that were dropped.
    """

    def __init__(self, program: Program, device: int, most: int) -> None:
        """Start an empty recording of one device; it keeps at most `most` events."""
        self._program, self.device = program, device
        self._behind = RecordingOffset(0, (0,) * len(program.stages))
        self.events: deque[Event] = deque(maxlen=most)
        self.segments_s: list[float] = []
        self.left_out = 0

    def add(self, records: Iterable[Ran], periods: int) -> None:
        """Add the records of the next segment, in any order.

        Arguments:
            periods: number of periods of the segment.
        """
        ran = sorted(records, key=lambda record: record[1])
        room = (self.events.maxlen or 0) - len(self.events)
        self.left_out += max(0, len(ran) - room)
        if ran:
            self.segments_s.append(ran[0][1])
        self.events.extend(self._event(*record) for record in ran)
        program, behind = self._program, self._behind
        updates = tuple(done + program.updates(s, periods) for s, done in enumerate(behind.updates))
        self._behind = RecordingOffset(behind.microbatches + program.microbatches(periods), updates)

    def _event(self, ran: Instruction, start_s: float, end_s: float, queued_s: float = 0.0) -> Event:
        moved = self._behind.moved(ran)
        return Event(
            self.device, moved.lane, moved.name, moved.kind, moved.stage, moved.index, start_s, end_s, queued_s
        )

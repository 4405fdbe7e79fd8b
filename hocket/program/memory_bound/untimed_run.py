"""Run of a program without time: order of instructions, waits, and live values.

Rules of this file: it applies order.py's rules and nothing else. An instruction that may start stays ready unless a
value that it reads is freed. So if every reader of a value is ordered before the instruction that frees it, all
interleavings reach the same end, and running one of them proves all.

Two instructions are ordered if a path leads from one to the other through lanes, values and rendezvous. Paths are
searched inside one part of the run only (prologue, one period, epilogue). Periods are shifted copies of each other, so
a path found in one exists in every repetition.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hocket.program.check.deadlock import Standstill, waiting_problems
from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.check.rendezvous import meetings
from hocket.program.instruction import Instruction, Kind, Value
from hocket.program.memory_bound.receive_window import CONSUMERS, UNLIMITED, consumed, windows
from hocket.program.order import early_writes
from hocket.program.program import Lane, Lanes, Program


@dataclass(slots=True)
class Live:
    """A value that exists: event of its writer, and of its last reader in each lane.

    `early` is True if the value existed before its writer finished.
    """

    event: int
    early: bool = False
    readers: dict[Lane, int] = field(default_factory=dict)


State = dict[int, dict[Value, Live]]  # by device
_Key = tuple[int, Value | str]  # an instruction can wait for a value on a device, or for room in one of its lanes


@dataclass
class Untimed:
    """One untimed run of the parts of a program.

    An event is one instruction, or several that meet in a rendezvous, in the order of discovery.

    Attributes:
        gone: by (device, value), the event that freed the value.
        events, ran: places and instructions of each event; event 0 stands for the initial values.
        before: for each event, events that come directly before it in every interleaving.
        last: by lane, its last event.
        part_start: first event of the current part.
        windows, received: by receive lane, its window and the number of messages so far.
        posted: by receive lane, for each receive the event after which it is posted, as far as known.
    """

    program: Program
    live: State
    gone: dict[tuple[int, Value], int] = field(default_factory=dict)
    events: list[tuple[Place, ...]] = field(default_factory=list)
    ran: list[tuple[Instruction, ...]] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    last: dict[Lane, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    part_start: int = 0
    windows: dict[Lane, int] = field(default_factory=dict)
    received: dict[Lane, int] = field(default_factory=dict)
    posted: dict[Lane, list[int]] = field(default_factory=dict)

    @classmethod
    def start(cls, program: Program) -> "Untimed":
        """Make the state before the first instruction; event 0 is for initial values."""
        live = {device: {v: Live(0) for v in program.initial(device)} for device in program.devices}
        found = windows(program)
        # Every receive of an unlimited lane is posted from the start.
        posted = {lane: [0] * window for lane, window in found.items() if window < UNLIMITED}
        return cls(program, live, events=[()], ran=[()], before=[()], windows=found, posted=posted)

    def fork(self) -> "Untimed":
        """Copy the run. The copy can continue independently."""
        live = {d: {v: Live(x.event, x.early, dict(x.readers)) for v, x in row.items()} for d, row in self.live.items()}
        logs = list(self.events), list(self.ran), list(self.before)
        posted = {lane: list(events) for lane, events in self.posted.items()}
        return Untimed(
            self.program,
            live,
            dict(self.gone),
            *logs,
            dict(self.last),
            windows=self.windows,
            received=dict(self.received),
            posted=posted,
        )

    def run(self, part: str, repetition: int = 0) -> bool:
        """Run one part as far as possible. Problems are added to `problems`.

        Arguments:
            repetition: number of periods by which the part's microbatches are shifted.

        Returns:
            True if the part ran to its end.
        """
        lanes: Lanes = getattr(self.program, part)
        if repetition:
            lanes = {lane: tuple(self.program.shifted(i, repetition) for i in row) for lane, row in lanes.items()}
        self.part_start = len(self.events)
        meet = meetings(lanes)
        at = dict.fromkeys(lanes, 0)
        waiters: dict[_Key, list[Lane]] = {}
        together = {lane: (lane, *meet.get(lane, ())) for lane in lanes}
        passive = {lane for lane, row in lanes.items() if row[0].kind is Kind.RECEIVE}  # their sends move them on
        queue = deque(lane for lane in lanes if lane not in passive)
        while queue:
            lane = queue.popleft()
            members, end = together[lane], len(lanes[lane])
            while at[lane] < end:
                if not self._ready(lanes, at, members, waiters):
                    break
                for written in self._happen(part, lanes, at, members):
                    if written in waiters:
                        queue.extend(waiters.pop(written))
                for member in members:
                    at[member] += 1
                    if member != lane and member not in passive:
                        queue.append(member)
        stuck = {lane: at[lane] for lane, row in lanes.items() if at[lane] < len(row)}
        if stuck:
            freed = {
                key: tuple(zip(self.events[event], self.ran[event], strict=True)) for key, event in self.gone.items()
            }
            unposted = {lane for lane in stuck if not self.has_room(lane)}
            self.problems += waiting_problems(Standstill(self.program, part, lanes, stuck, self.live, freed, unposted))
        return not stuck

    def _ready(
        self, lanes: Lanes, at: dict[Lane, int], members: tuple[Lane, ...], waiters: dict[_Key, list[Lane]]
    ) -> bool:
        position = at[members[0]]
        for lane in members:
            if at[lane] != position:
                return False
            instruction = lanes[lane][position]
            here = self.live[lane[0]]
            for value in instruction.reads:
                if value not in here:
                    waiters.setdefault((lane[0], value), []).append(lane)
                    return False
            if self.posted and not self.has_room(lane):
                waiters.setdefault(lane, []).append(members[0])
                return False
        return True

    def has_room(self, lane: Lane) -> bool:
        """True if the next receive of a lane is posted (order.py, rule 6)."""
        return lane not in self.posted or self.received.get(lane, 0) < len(self.posted[lane])

    def _happen(self, part: str, lanes: Lanes, at: Mapping[Lane, int], members: tuple[Lane, ...]) -> Iterator[_Key]:
        """Run one event; yield values and receive lanes that other lanes may wait for."""
        event = len(self.events)
        places = tuple(Place(part, *lane, at[lane]) for lane in members)
        before: list[int] = []
        ran = tuple(lanes[lane][at[lane]] for lane in members)
        for lane, instruction in zip(members, ran, strict=True):
            if lane in self.last:
                before.append(self.last[lane])
            if lane in self.windows:
                number = self.received.get(lane, 0)
                self.received[lane] = number + 1
                if lane in self.posted:
                    before.append(self.posted[lane][number])
            here = self.live[lane[0]]
            for value in instruction.reads:
                live = here[value]
                live.readers[lane] = event
                if live.early and live.event:
                    if any((place.device, place.lane) == lane for place in self.events[live.event]):
                        continue  # same lane as the writer, so ordered behind its end as well
                    before.extend(self.before[live.event])  # ordered behind the writer's start only
                else:
                    before.append(live.event)
            self.last[lane] = event
        self.events.append(places)
        self.ran.append(ran)
        self.before.append(tuple(dict.fromkeys(before)))
        for lane, place, instruction in zip(members, places, ran, strict=True):
            here = self.live[lane[0]]
            for value in instruction.frees:
                self._free(event, place, instruction, value, here.pop(value))
            early = early_writes(instruction) if instruction.kind is Kind.BACKWARD else ()
            for value in instruction.writes:
                if value in here:
                    self._twice(place, instruction, value, here[value])
                here[value] = Live(event, value in early)
                yield lane[0], value
            if self.posted and instruction.kind in CONSUMERS:
                for way, _ in consumed(self.program, instruction):
                    if way in self.posted:
                        self.posted[way].append(event)
                        yield way

    def _free(self, event: int, place: Place, instruction: Instruction, value: Value, live: Live) -> None:
        self.gone[place.device, value] = event
        for lane, reader in live.readers.items():
            if lane != (place.device, place.lane) and not self._ordered(lane, reader, event):
                other = self._at(reader, lane)
                self.problems.append(
                    problem_at(
                        place,
                        instruction,
                        "race",
                        f"frees {value}, which {other.instruction(self.program).name} on device {other.device}, lane "
                        f"{other.lane} ({other.part}, instruction {other.position}) may still read",
                        "every reader to finish before",
                        "Free it at the last reader.",
                    )
                )

    def _twice(self, place: Place, instruction: Instruction, value: Value, live: Live) -> None:
        self.problems.append(
            problem_at(
                place,
                instruction,
                "twice",
                f"writes {value}, which already exists" + self.written_by(live, place.device),
                "each value to be written once",
            )
        )

    def _ordered(self, lane: Lane, reader: int, event: int) -> bool:
        """True if one event comes before another in every legal timing.

        That is so if a path leads from one to the other inside the current part of the run.

        Arguments:
            lane: a lane of `reader`.
            reader: the event that must be first.
            event: the later event, in any lane.
        """
        least = max(reader, self.part_start)
        seen: set[int] = set()
        todo = [e for e in self.before[event] if e >= least]
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            if any((place.device, place.lane) == lane for place in self.events[one]):
                return True
            todo.extend(e for e in self.before[one] if e >= least)
        return False

    def _at(self, event: int, lane: Lane) -> Place:
        return next(place for place in self.events[event] if (place.device, place.lane) == lane)

    def written_by(self, live: Live, device: int) -> str:
        """Text ' (written by ...)' for messages; empty for an initial value."""
        places = [place for place in self.events[live.event] if place.device == device]
        return f" (written by {places[0].instruction(self.program).name})" if places else ""

"""Transfers: the lanes of one device other than compute.

Compute's own thread begins them, and threads of the library carry them on.

Rules of this file: an instruction begins as soon as it may (order.py) and compute comes by; nobody waits but compute, for
what it reads next. So there is no hand-over between threads on the way of a message, and what is posted at any time
follows from where compute is: receives by their windows, sends and collectives when their values are made.

A send is over at once where memory is shared and the receive is posted. Otherwise somebody has to wait: gloo cannot be asked
(facts of torch 2.13: `is_completed` of a point-to-point work is False until somebody has waited), and a tensor must live
until its send is over. A thread for each lane of sends waits for them one after the
other and says so; compute lets their tensors go when an instruction has ended and before one begins (order.py, rule 5).
That thread may come late to say what has long been over: compute waits for its word once the program says that the send is
over (program/memory_bound/send_completion.py), so that no message lives longer than the program's footprint counts it, however busy the machine is.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from torch import Tensor

from hocket.errors import InternalError
from hocket.program.instruction import COLLECTIVES, REDUCE, Instruction, Kind, Value, ValueKind, computes
from hocket.program.memory_bound.send_completion import End, Ends
from hocket.program.program import StageShape
from hocket.runtime.engine.lanes import Cursor, LaneParts
from hocket.runtime.engine.peak_memory import PeakMemory
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.engine.transport.collective_queue import CollectiveQueue, Turn
from hocket.runtime.engine.transport.messages import Layouts
from hocket.runtime.engine.transport.process_groups import Groups, TransferError, finish
from hocket.runtime.engine.transport.shared_memory import SharedTransfer
from hocket.runtime.update.sharding import made_by, over

Lost = Callable[[Instruction, Exception], Exception]
# How long compute waits for a lane's thread to say what is surely over: only a machine that stands still takes so long;
# and for what may be over, while operations are looked at: that is Python's work, and the thread comes late.
_SURELY_S, _MAYBE_S = 1.0, 2e-3


class InstructionRecord(NamedTuple):
    """One executed instruction.

    Begin and end on the worker's clock, and seconds waited for a core (see Event).
    """

    instruction: Instruction
    start_s: float
    end_s: float
    queued_s: float = 0.0


class _Sent(NamedTuple):
    """A send that has begun.

    Attributes:
        end: when it is surely over.
    """

    instruction: Instruction
    message: Tensor
    work: SharedTransfer
    start_s: float
    end: End | None


@dataclass
class _Lane:
    """A lane: where it is, what it has been given, and (of receives) how many more may be posted.

    Attributes:
        sent: for the lane's thread; kept: sends whose messages live; over: how many are over, as the thread counts them;
            let_go: how many messages have gone.
        word: for the thread's word that one more is over.
    """

    cursor: Cursor
    room: int
    limited: bool
    values: dict[Value, Any] = field(default_factory=dict)
    sent: SimpleQueue[_Sent | None] = field(default_factory=SimpleQueue)
    kept: deque[_Sent] = field(default_factory=deque)
    over: int = 0
    let_go: int = 0
    word: threading.Condition = field(default_factory=threading.Condition)


class _Arriving(NamedTuple):
    """A receive or collective that has begun.

    `made` is what it writes, once its works are over.
    """

    lane: _Lane
    instruction: Instruction
    made: Any
    works: list[SharedTransfer]
    start_s: float


class Transfers:
    """Transfers of one segment.

    Calls come from the compute thread, except those of threads that the constructor starts. With waves (which send no
    messages) all compute lanes call; lanes of swaps call as well.

    Attributes:
        failure: why a send failed, once one has.
        records: what is over, if it is recorded.
    """

    def __init__(
        self,
        number: int,
        stages: Sequence[StageShape],
        lanes: Mapping[str, LaneParts],
        windows: Mapping[str, int],
        ends: Ends,
        groups: Groups,
        layouts: Layouts,
        handover: StreamHandover,
        memory: PeakMemory,
        lost: Lost,
        clock: Callable[[], float],
        record: bool,
        tell: Callable[[], None],
        carried: Callable[[Any], Any],
        sent: Callable[[Value], None],
    ) -> None:
        """Start the lanes; nothing begins before `post_all`.

        Arguments:
            stages: of the program.
            windows: of the lanes of receives. ends: of the lanes of sends.
            lost: makes of a transfer's failure the error to raise.
            tell: called when a receive or collective has begun.
            carried: what of a value goes into a message. sent: called when a message needs its memory no more.
        """
        self._groups, self._layouts, self._handover, self._memory = groups, layouts, handover, memory
        self._ends, self._stages = ends, stages
        self._lost, self._clock, self._record, self._tell = lost, clock, record, tell
        self._carried, self._sent = carried, sent
        self._lanes = {
            name: _Lane(Cursor(parts), windows.get(name, 0), name in windows) for name, parts in lanes.items()
        }
        self._arriving: dict[Value, _Arriving] = {}
        self._consumed: dict[Value, _Lane] = {}
        self._lock = threading.RLock()  # a backward hands on buckets while another lane of compute does so, too
        self.failure: Exception | None = None
        self.records: list[InstructionRecord] = []
        senders = {
            name: lane
            for name, lane in self._lanes.items()
            if any(entry.instruction.kind is Kind.SEND for part in lanes[name].values() for entry in part)
        }
        self._senders = tuple(senders.values())
        self._turns = {
            name: CollectiveQueue(f"device {number} {name}", clock)
            for name in self._lanes
            if name.startswith(REDUCE) and not handover.needed  # a GPU's stream keeps the order
        }
        self._threads = [
            threading.Thread(target=self._release, args=(lane,), name=f"device {number} {name}", daemon=True)
            for name, lane in senders.items()
        ]
        for thread in self._threads:
            thread.start()

    # -- what compute tells

    def answer(self, goes_on: bool) -> None:
        """Take the answer to whether another period follows."""
        with self._lock:
            for lane in self._lanes.values():
                lane.cursor.answer(goes_on)

    def post_all(self) -> None:
        """Begin whatever may begin, in every lane."""
        with self._lock:
            for lane in self._lanes.values():
                self._post(lane)

    def give(self, name: str, value: Value, thing: Any) -> None:
        """A lane's value is there."""
        with self._lock:
            lane = self._lanes[name]
            if value.what is ValueKind.SHARD:  # the older one has been read for the last time
                lane.values = {
                    v: x for v, x in lane.values.items() if (v.what, v.stage) != (ValueKind.SHARD, value.stage)
                }
            lane.values[value] = thing
            self._post(lane)

    def take(self, value: Value) -> Any:
        """Value written by a receive or collective, once it is there."""
        with self._lock:
            arriving = self._arriving.pop(value, None)
        if arriving is None:
            raise InternalError(f"compute reads {value}, and nothing that brings it has begun")
        if arriving.instruction.kind is Kind.RECEIVE:
            self._consumed[value] = arriving.lane
        return self._arrived(arriving)

    def arriving(self, value: Value) -> bool:
        """True if the transfer of a value has begun and its value is not taken yet."""
        return value in self._arriving

    def consumed(self, values: Iterable[Value]) -> None:
        """These have been read; of those that were taken the lanes have room for more (rule 6)."""
        if self._consumed:
            with self._lock:
                for lane in [self._consumed.pop(value) for value in values if value in self._consumed]:
                    lane.room += 1
                    self._post(lane)

    def dropped(self, name: str) -> None:
        """Compute has no more need of weights that came by a lane: it has room for more (rule 6)."""
        with self._lock:
            self._lanes[name].room += 1
            self._post(self._lanes[name])

    def let_go(self, begun: int) -> None:
        """Release the memory of completed sends.

        Compute calls this when it ends an instruction, or has its inputs for the next.

        Arguments:
            begun: compute instructions of this segment so far, that one included.
        """
        for lane in self._senders:
            patience_s = _MAYBE_S if self._memory.looking else 0.0
            while lane.kept:
                if lane.let_go == lane.over:
                    end = lane.kept[0].end
                    surely = end is not None and end.instruction < begun and end.periods <= lane.cursor.known
                    if not self._said(lane, _SURELY_S if surely else patience_s):
                        break
                    patience_s = 0.0
                self._sent(lane.kept.popleft().instruction.reads[0])
                lane.let_go += 1

    def _said(self, lane: _Lane, patience_s: float) -> bool:
        """Wait until the lane's thread says that one more send is over; whether it did in time."""
        if patience_s:
            with lane.word:
                lane.word.wait_for(lambda: lane.let_go < lane.over or self.failure is not None, patience_s)
        return lane.let_go < lane.over

    def end(self) -> None:
        """Return when every lane is at its end."""
        if self._arriving:
            raise InternalError(f"nobody took {', '.join(map(str, self._arriving))}")
        for lane in self._lanes.values():
            lane.sent.put(None)
        for thread in self._threads:
            thread.join()
        for turns in self._turns.values():
            turns.end()
        for lane in self._senders:
            while lane.kept:
                self._sent(lane.kept.popleft().instruction.reads[0])
        if self.failure is not None:
            raise self.failure
        for name, lane in self._lanes.items():
            if (head := lane.cursor.head()) is not None:
                raise InternalError(f"lane {name} ends before {head[0].name} has begun")

    # -- beginning

    def _post(self, lane: _Lane) -> None:
        """Begin a lane's instructions for as long as they may begin."""
        while (head := lane.cursor.head()) is not None:
            instruction, routes = head
            if (lane.limited and not lane.room) or any(value not in lane.values for value in instruction.reads):
                return
            if any(not computes(reader) for _, reader in routes):  # lanes of swaps share compute's values
                raise InternalError(f"{instruction.name} is read by another lane than compute")
            lane.room -= lane.limited
            end = self._ends.of(instruction.lane, *lane.cursor.place) if instruction.kind is Kind.SEND else None
            lane.cursor.advance()
            try:
                kept, frees = lane.values, instruction.frees
                things = [kept.pop(value) if value in frees else kept[value] for value in instruction.reads]
                self._begin(lane, instruction, things, end)
            except TransferError as error:
                raise self._lost(instruction, error) from error

    def _begin(self, lane: _Lane, instruction: Instruction, things: list[Any], end: End | None) -> None:
        start_s = self._clock()
        with self._handover.lane(instruction.lane):
            if instruction.kind is Kind.SEND:
                layout = self._layouts.of(instruction.reads[0])
                value = instruction.reads[0]
                message = layout.pack(self._carried(self._handover.taken(things.pop())))
                self._memory.made(() if value.on_host else (message,))
                work = self._groups.send(layout, message, instruction.peer)
                if work is None:
                    self._over(instruction, start_s)
                    self._sent(value)
                    return
                sent = _Sent(instruction, message, work, start_s, end)
                lane.kept.append(sent)
                lane.sent.put(sent)
                return
            if instruction.kind is Kind.RECEIVE:
                layout = self._layouts.of(instruction.writes[0])
                message, work = self._groups.receive(layout, instruction.peer)
                self._memory.made(() if instruction.writes[0].on_host else (message,))
                made: Any = layout.unpack(message)
                works = [work]
            elif instruction.kind in COLLECTIVES:
                made = made_by(instruction, self._handover.taken(things.pop()))
                self._memory.made((*made.flats, *made.parts))
                works = self._collective(instruction, tuple(zip(made.flats, made.parts, strict=True)))
            else:
                raise InternalError(f"{instruction.name} is not a transfer that this engine knows")
        self._arriving[instruction.writes[0]] = _Arriving(lane, instruction, made, works, start_s)
        self._tell()

    def _collective(self, instruction: Instruction, pairs: tuple[tuple[Tensor, Tensor], ...]) -> list[SharedTransfer]:
        kind, threads = instruction.kind, self._stages[instruction.stage].threads_of(instruction.reads[0])
        self._groups.carried_bytes[kind] += sum(whole.nbytes for whole, _ in pairs)

        def begin() -> list[SharedTransfer]:
            calls = (self._groups.collective(kind, instruction.lane, *pair, threads) for pair in pairs)
            return [work for works in calls for work in works]

        if turns := self._turns.get(instruction.lane):
            return [turns.put(begin)]
        works = begin()
        if threads:  # another group may be next: it waits on this lane's stream
            for work in works:
                finish(work)
        return works

    # -- ending

    def _arrived(self, arriving: _Arriving) -> Any:
        """Value of a receive or collective, ready for compute."""
        with self._handover.lane(arriving.instruction.lane):
            for work in arriving.works:
                try:
                    finish(work)
                except TransferError as error:
                    raise self._lost(arriving.instruction, error) from error
            if arriving.instruction.kind in COLLECTIVES:
                over(arriving.instruction, arriving.made)
            (turn, *_) = arriving.works
            if isinstance(turn, Turn):
                self._recorded(arriving.instruction, turn.start_s, turn.end_s)
            else:
                self._over(arriving.instruction, arriving.start_s)
            made = self._handover.given(arriving.made)
        return self._handover.taken(made)

    def _release(self, lane: _Lane) -> None:
        """The thread of a lane of sends: waits for them one after the other."""
        while (sent := lane.sent.get()) is not None:
            try:
                with self._handover.lane(sent.instruction.lane):
                    finish(sent.work)
                    self._over(sent.instruction, sent.start_s)
            except Exception as error:  # compute raises it: what ends a thread unseen would end the run well
                with lane.word:
                    self.failure = self._lost(sent.instruction, error) if isinstance(error, TransferError) else error
                    lane.word.notify()
                return
            del sent  # or it would live while this thread waits for the next
            with lane.word:
                lane.over += 1
                lane.word.notify()

    def _over(self, instruction: Instruction, start_s: float) -> None:
        if self._record:
            self._handover.synchronize()
            self._recorded(instruction, start_s, self._clock())

    def _recorded(self, instruction: Instruction, start_s: float, end_s: float) -> None:
        if self._record:
            self.records.append(InstructionRecord(instruction, start_s, end_s))

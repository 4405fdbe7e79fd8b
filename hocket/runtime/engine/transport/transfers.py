"""Transfers: the lanes of one device other than compute and swap lanes.

The compute thread begins transfers, and the communication library's threads carry them out. An instruction begins when
it may start (order.py) and the compute thread next checks its lane. Only the compute thread waits, for its next
inputs. So a message is not handed over between threads. The posted transfers follow from the position of the compute
lane: receives by their windows, sends and collectives when their inputs are computed.

A send is complete at once if memory is shared and the receive is posted. Otherwise a thread has to wait for it. Gloo
cannot be polled (in torch 2.13, `is_completed` of a point-to-point work is False until a thread has waited), and a
tensor must live until its send is complete. So each send lane has a thread that waits for its sends one after the other
and counts them. The compute thread frees their tensors after an instruction ends and before the next begins (order.py,
rule 5).

That thread may report a completed send late. The compute thread therefore waits for the report once the program implies
that the send is complete (program/memory_bound/send_completion.py). So no message lives longer than the program's
memory footprint counts it, even on a busy machine.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from torch import Tensor

from hocket.errors import InternalError
from hocket.program.instruction import COLLECTIVES, GATHER, REDUCE, Instruction, Kind, Value, ValueKind, computes
from hocket.program.memory_bound.send_completion import End
from hocket.runtime.engine.lanes import Cursor, LaneTable
from hocket.runtime.engine.recorder import EngineRecorder
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.engine.transport.collective_queue import CollectiveQueue, Turn
from hocket.runtime.engine.transport.peer_lost import lost
from hocket.runtime.engine.transport.process_groups import Groups, TransferError, finish
from hocket.runtime.engine.transport.shared_memory import SharedTransfer
from hocket.runtime.stage.device import Device
from hocket.runtime.update.sharding import made_by, over

# Maximum wait of compute for a lane's thread to report a send that must be complete; only a stalled machine takes so
# long.
# Then the wait for a send that may be complete, while memory is observed: observing keeps Python busy, so the thread is
# late.
_SURELY_S, _MAYBE_S = 1.0, 2e-3


class _Sent(NamedTuple):
    """Send that has begun.

    Attributes:
        end: position of the compute lane at which the send must be complete; None if unknown.
    """

    instruction: Instruction
    message: Tensor
    work: SharedTransfer
    start_s: float
    end: End | None


@dataclass
class _Lane:
    """State of a lane of transfers.

    Attributes:
        cursor: position of the lane.
        room: number of messages that the receive window still allows to post.
        limited: True if the lane has a receive window.
        values: inputs that other lanes have given to the lane.
        sent: queue of sends for the lane's thread.
        kept: sends with messages that are still in memory.
        over: number of completed sends, counted by the lane's thread.
        let_go: number of freed messages.
        word: notified when the thread counts a completed send.
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
    """Receive or collective that has begun.

    Attributes:
        made: the output, valid once all `works` are complete.
        works: pending transfers.
        start_s: time at which it began, in seconds.
    """

    lane: _Lane
    instruction: Instruction
    made: Any
    works: list[SharedTransfer]
    start_s: float


class Transfers:
    """Transfers of one segment: a run of prologue, some periods and epilogue.

    Calls come from the compute thread, and from the threads that the constructor starts. With waves (which send no
    messages) all compute lanes call. Swap lanes call as well.

    Attributes:
        failure: exception of a failed send, or None.
    """

    def __init__(
        self,
        device: Device,
        lane_table: LaneTable,
        groups: Groups,
        handover: StreamHandover,
        recorder: EngineRecorder,
        tell: Callable[[], None],
    ) -> None:
        """Start the lanes; nothing begins before `post_all`.

        Arguments:
            tell: called when a receive or collective has begun.
        """
        self._device, self._groups, self._handover, self._ends = device, groups, handover, lane_table.ends
        self._recorder, self._memory, self._tell = recorder, recorder.memory, tell
        lanes, windows = lane_table.transfers, lane_table.windows
        self._lanes = {
            name: _Lane(Cursor(parts), windows.get(name, 0), name in windows) for name, parts in lanes.items()
        }
        self._arriving: dict[Value, _Arriving] = {}
        self._consumed: dict[Value, _Lane] = {}
        self._lock = threading.RLock()  # several compute lanes may hand over buckets at the same time
        self.failure: Exception | None = None
        senders = {
            name: lane
            for name, lane in self._lanes.items()
            if any(entry.instruction.kind is Kind.SEND for part in lanes[name].values() for entry in part)
        }
        self._senders = tuple(senders.values())
        self._turns = {
            name: CollectiveQueue(f"device {device.number} {name}", recorder.now)
            for name in self._lanes
            if name.startswith((REDUCE, GATHER)) and not handover.needed  # on a GPU the stream keeps the order
        }
        self._threads = [
            threading.Thread(target=self._release, args=(lane,), name=f"device {device.number} {name}", daemon=True)
            for name, lane in senders.items()
        ]
        for thread in self._threads:
            thread.start()

    # -- calls of the compute lane

    def answer(self, goes_on: bool) -> None:
        """Announce to all lanes whether another period follows."""
        with self._lock:
            for lane in self._lanes.values():
                lane.cursor.answer(goes_on)

    def post_all(self) -> None:
        """Begin all instructions that may begin, in every lane."""
        with self._lock:
            for lane in self._lanes.values():
                self._post(lane)

    def give(self, name: str, value: Value, thing: Any) -> None:
        """Give a lane one of its inputs; begin what may then begin.

        Arguments:
            name: the lane.
            thing: the engine's object for the value (stage/device.py), from `StreamHandover.given`.
        """
        with self._lock:
            lane = self._lanes[name]
            if value.what is ValueKind.SHARD:  # the older shard is no longer needed
                lane.values = {
                    v: x for v, x in lane.values.items() if (v.what, v.stage) != (ValueKind.SHARD, value.stage)
                }
            lane.values[value] = thing
            self._post(lane)

    def take(self, value: Value) -> Any:
        """Wait for the output of a receive or collective, and return it.

        Raises:
            PeerLost: the transfer failed.
        """
        with self._lock:
            arriving = self._arriving.pop(value, None)
        if arriving is None:
            raise InternalError(f"compute reads {value}, and nothing that brings it has begun")
        if arriving.instruction.kind is Kind.RECEIVE:
            self._consumed[value] = arriving.lane
        return self._arrived(arriving)

    def arriving(self, value: Value) -> bool:
        """True if the transfer of a value has begun and the value is not taken yet."""
        return value in self._arriving

    def consumed(self, values: Iterable[Value]) -> None:
        """Note that values have been read, so that further receives can be posted.

        See order.py, rule 6.
        """
        if self._consumed:
            with self._lock:
                for lane in [self._consumed.pop(value) for value in values if value in self._consumed]:
                    lane.room += 1
                    self._post(lane)

    def dropped(self, name: str) -> None:
        """Note that compute has freed gathered weights, so that others can be gathered.

        See order.py, rule 6.

        Arguments:
            name: the lane that gathered them.
        """
        with self._lock:
            self._lanes[name].room += 1
            self._post(self._lanes[name])

    def let_go(self, begun: int) -> None:
        """Release the memory of completed sends.

        The compute lane calls this after an instruction, and when it has the inputs for the next.

        Arguments:
            begun: number of instructions of the first compute lane so far, including the one that ended or is next.
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
                self._device.sent(lane.kept.popleft().instruction.reads[0])
                lane.let_go += 1

    def _said(self, lane: _Lane, patience_s: float) -> bool:
        """Wait until the lane's thread has counted one more completed send.

        Returns:
            False if it has not within `patience_s` seconds.
        """
        if patience_s:
            with lane.word:
                lane.word.wait_for(lambda: lane.let_go < lane.over or self.failure is not None, patience_s)
        return lane.let_go < lane.over

    def end(self) -> None:
        """Wait until every lane has ended.

        Raises:
            Exception: the exception of a failed send.
        """
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
                self._device.sent(lane.kept.popleft().instruction.reads[0])
        if self.failure is not None:
            raise self.failure
        for name, lane in self._lanes.items():
            if (head := lane.cursor.head()) is not None:
                raise InternalError(f"lane {name} ends before {head[0].name} has begun")

    # -- beginning

    def _post(self, lane: _Lane) -> None:
        """Begin a lane's instructions as long as the next may begin.

        Raises:
            PeerLost: a transfer failed at once.
        """
        while (head := lane.cursor.head()) is not None:
            instruction, routes = head
            if (lane.limited and not lane.room) or any(value not in lane.values for value in instruction.reads):
                return
            if any(not computes(reader) for _, reader in routes):  # swap lanes share compute's values
                raise InternalError(f"{instruction.name} is read by another lane than compute")
            lane.room -= lane.limited
            end = self._ends.of(instruction.lane, *lane.cursor.place) if instruction.kind is Kind.SEND else None
            lane.cursor.advance()
            try:
                kept, frees = lane.values, instruction.frees
                things = [kept.pop(value) if value in frees else kept[value] for value in instruction.reads]
                self._begin(lane, instruction, things, end)
            except TransferError as error:
                raise lost(self._device, instruction, error) from error

    def _begin(self, lane: _Lane, instruction: Instruction, things: list[Any], end: End | None) -> None:
        start_s = self._recorder.now()
        with self._handover.lane(instruction.lane):
            if instruction.kind is Kind.SEND:
                value = instruction.reads[0]
                layout = self._groups.layouts.of(value)
                message = layout.pack(self._device.carried(self._handover.taken(things.pop())))
                self._memory.made(() if value.on_host else (message,))
                work = self._groups.send(layout, message, instruction.peer)
                if work is None:
                    self._recorder.transferred(instruction, start_s)
                    self._device.sent(value)
                    return
                sent = _Sent(instruction, message, work, start_s, end)
                lane.kept.append(sent)
                lane.sent.put(sent)
                return
            if instruction.kind is Kind.RECEIVE:
                layout = self._groups.layouts.of(instruction.writes[0])
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
        kind, stage = instruction.kind, self._device.program.stages[instruction.stage]
        threads = stage.threads_of(instruction.reads[0])
        self._groups.carried_bytes[kind] += sum(whole.nbytes for whole, _ in pairs)

        def begin() -> list[SharedTransfer]:
            calls = (self._groups.collective(kind, instruction.lane, *pair, threads) for pair in pairs)
            return [work for works in calls for work in works]

        if turns := self._turns.get(instruction.lane):
            return [turns.put(begin)]
        works = begin()
        if threads:  # the next collective may use another group, so this lane's stream waits
            for work in works:
                finish(work)
        return works

    # -- ending

    def _arrived(self, arriving: _Arriving) -> Any:
        """Wait for a receive or collective; return its output, ready for compute."""
        with self._handover.lane(arriving.instruction.lane):
            for work in arriving.works:
                try:
                    finish(work)
                except TransferError as error:
                    raise lost(self._device, arriving.instruction, error) from error
            if arriving.instruction.kind in COLLECTIVES:
                over(arriving.instruction, arriving.made)
            (turn, *_) = arriving.works
            if isinstance(turn, Turn):
                self._recorder.transferred(arriving.instruction, turn.start_s, turn.end_s)
            else:
                self._recorder.transferred(arriving.instruction, arriving.start_s)
            made = self._handover.given(arriving.made)
        return self._handover.taken(made)

    def _release(self, lane: _Lane) -> None:
        """Wait for a lane's sends, one after the other, in the lane's thread."""
        while (sent := lane.sent.get()) is not None:
            try:
                with self._handover.lane(sent.instruction.lane):
                    finish(sent.work)
                    self._recorder.transferred(sent.instruction, sent.start_s)
            except Exception as error:  # compute raises it; otherwise the run would seem to end well
                with lane.word:
                    transfer = isinstance(error, TransferError)
                    self.failure = lost(self._device, sent.instruction, error) if transfer else error
                    lane.word.notify()
                return
            del sent  # otherwise its tensor would live while this thread waits for the next
            with lane.word:
                lane.over += 1
                lane.word.notify()

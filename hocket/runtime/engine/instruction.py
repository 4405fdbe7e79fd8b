"""Execution of one instruction of a compute lane or a swap lane.

It covers the way of the values from their source to their destination.

Rules of this file: what an instruction reads is taken from the lane's own store, from another lane of the device or from a transfer; what
it writes for others is handed on as soon as it is made. What it means is device.py's, when it runs is the lane's (segment.py).
"""

import threading
from collections.abc import Callable
from typing import Any

from hocket.profiling.measure.core_time import CoreWaits
from hocket.program.instruction import SWAPS, Instruction, Kind, Value, ValueKind, computes, sends
from hocket.runtime.engine.compute_lanes import Exchange
from hocket.runtime.engine.peak_memory import PeakMemory
from hocket.runtime.engine.shared_values import SharedValues
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.engine.transport.process_groups import TransferError
from hocket.runtime.engine.transport.transfers import InstructionRecord, Lost, Transfers
from hocket.runtime.stage.device import Device

_BETWEEN_WAVES = frozenset({ValueKind.ENDED, ValueKind.LENT})  # what compute lanes of one device hand each other
Routes = tuple[tuple[int, str], ...]


class Execution:
    """Executes the instructions of one segment, of all lanes that are no transfers."""

    def __init__(
        self,
        device: Device,
        transfers: Transfers,
        exchange: Exchange,
        handover: StreamHandover,
        memory: PeakMemory,
        lost: Lost,
        clock: Callable[[], float] | None,
    ) -> None:
        """Between the lanes of one device.

        Arguments:
            exchange: what its lanes have for each other, a shelf where they share their values.
            lost: makes of a failed sum over a group's members the error to raise.
            clock: seconds, if what runs is recorded.
        """
        self._device, self._handover, self._memory = device, handover, memory
        self._transfers, self._exchange = transfers, exchange
        self._lost, self._clock = lost, clock
        self._meters = threading.local()  # every compute lane and lane of swaps has a thread

    def gather(self, instruction: Instruction, store: dict[Value, Any]) -> None:
        """Put into a lane's store what an instruction reads and is not there; wait for it.

        What other waves give comes first: a wave's sums begin behind those of the wave before, whose step tells that they have begun.
        """
        absent = [value for value in instruction.reads if value not in store]
        for value in sorted(absent, key=lambda one: one.what not in _BETWEEN_WAVES):
            store[value] = self._taken(value)

    def _taken(self, value: Value) -> Any:
        """Value written by another lane, once it is there."""
        if value.what in _BETWEEN_WAVES:
            return self._handover.taken(self._exchange.take(value))
        return self._device.came(value, self._transfers.take(value))

    def borrow(self, shelf: SharedValues, instruction: Instruction, waits: bool = False) -> dict[Value, Any]:
        """Values that an instruction reads if lanes share their values.

        Arguments:
            waits: for kernels as well.
        """
        store, events = shelf.borrow(
            instruction,
            self._transfers.arriving,
            lambda value: self._device.came(value, self._transfers.take(value)),
        )
        for event in events if waits else ():
            event.synchronize()
        return store

    def execute(self, instruction: Instruction, routes: Routes, store: dict[Value, Any], begun: int = 0) -> None:
        """Run an instruction whose reads are all in the store, and hand on what it writes for others.

        Arguments:
            begun: of the first compute lane, compute instructions so far, this one included.
        """
        start_s = 0.0
        if self._clock is not None:
            self._look_for_waits()
            start_s = self._clock()
        early: set[Value] = set()
        publish = None
        if routes and instruction.kind is Kind.BACKWARD:
            publish = self._publisher(instruction, routes, early)
        try:
            self._device.execute(instruction, store, publish)
        except TransferError as error:  # a sum over the members of the group
            raise self._lost(instruction, error) from error
        flowing = (store[v] for v in instruction.writes if v.what is ValueKind.GRADIENT and not v.on_host)
        self._memory.made(tensor for tensors in flowing for tensor in tensors)  # compiled code made them unseen
        if self._clock is not None:
            self._handover.synchronize()
            end_s = self._clock()
            self._look_for_waits()
            self._transfers.records.append(InstructionRecord(instruction, start_s, end_s, self._meters.queued_s))
            self._meters.queued_s = 0.0
        if begun:
            self._transfers.let_go(begun)
        self._hand_on(instruction, routes, store, early)
        if isinstance(self._exchange, SharedValues):
            self._exchange.put(
                {value: store.pop(value) for value in instruction.writes if value in store},
                self._handover.event() if instruction.kind not in SWAPS else None,  # whose copies are over
            )

    def _look_for_waits(self) -> None:
        """Add what the thread has waited for a core since it looked last.

        Called before and after every instruction: between two of them other threads of the process may have run while this one was
        blocked, and these seconds are not to be set off against waits inside an instruction.
        """
        meter: CoreWaits | None = getattr(self._meters, "meter", None)
        if meter is None:
            self._meters.meter, self._meters.queued_s = CoreWaits(), 0.0
        else:
            self._meters.queued_s += meter.lap()

    def _hand_on(self, instruction: Instruction, routes: Routes, store: dict[Value, Any], early: set[Value]) -> None:
        """Give to other lanes the values that they read.

        Values that they received while the instruction ran are left out.
        """
        for position, lane in routes:
            value = instruction.writes[position]
            keeps = value.what is ValueKind.SHARD and self._device.program.stages[value.stage].gathers
            thing = store[value] if keeps else store.pop(value)
            if not keeps:
                self._device.gave(value, sending=sends(lane))
            if computes(lane):
                self._exchange.give(value, self._handover.given(thing))
            elif value not in early:
                self._transfers.give(lane, value, self._handover.given(thing))
            del thing  # or it would outlive its sending

    def _publisher(self, instruction: Instruction, routes: Routes, early: set[Value]) -> Callable[[Value, Any], None]:
        """Hands a finished gradient bucket to its all-reduce during the backward (rule 2)."""
        lane_of = {instruction.writes[position]: lane for position, lane in routes}

        def publish(value: Value, bucket: Any) -> None:
            if value in lane_of:
                early.add(value)
                self._transfers.give(lane_of[value], value, self._handover.given(bucket))

        return publish

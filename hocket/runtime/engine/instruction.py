"""Execution of one instruction of a compute lane or a swap lane.

The inputs of an instruction come from the lane's own store, from another lane of the device, or from a transfer. Its
outputs for other lanes are handed over as soon as they are computed. device.py defines the meaning of an instruction,
and the lane (segment.py) decides when it runs.
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

_BETWEEN_WAVES = frozenset({ValueKind.ENDED, ValueKind.LENT})  # values that compute lanes of one device exchange
Routes = tuple[tuple[int, str], ...]


class Execution:
    """Executes the instructions of one segment in compute and swap lanes."""

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
        """Prepare the execution.

        Arguments:
            exchange: exchange between the device's lanes; a `SharedValues` if compute and swap lanes share values.
            lost: converts the error of a failed tensor-parallel sum to the error to raise.
            clock: current time in seconds, to record instructions; None to record nothing.
        """
        self._device, self._handover, self._memory = device, handover, memory
        self._transfers, self._exchange = transfers, exchange
        self._lost, self._clock = lost, clock
        self._meters = threading.local()  # one per thread, that is per compute or swap lane

    def gather(self, instruction: Instruction, store: dict[Value, Any]) -> None:
        """Wait for the missing inputs of an instruction; put them into the lane's store.

        Values of other waves are taken first. A wave's all-reduces begin after those of the wave before it, and the
        values of that wave's step signal their begin.
        """
        absent = [value for value in instruction.reads if value not in store]
        for value in sorted(absent, key=lambda one: one.what not in _BETWEEN_WAVES):
            store[value] = self._taken(value)

    def _taken(self, value: Value) -> Any:
        """Wait for a value that another lane writes."""
        if value.what in _BETWEEN_WAVES:
            return self._handover.taken(self._exchange.take(value))
        return self._device.came(value, self._transfers.take(value))

    def borrow(self, shelf: SharedValues, instruction: Instruction, waits: bool = False) -> dict[Value, Any]:
        """Return the inputs of an instruction, if lanes share their values.

        Arguments:
            shelf: the shared values.
            waits: True to wait also for the kernels that compute the inputs.
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
        """Run an instruction, and hand over its outputs for other lanes.

        All its inputs must be in the store.

        Arguments:
            routes: (position in `writes`, lane) of the outputs for other lanes.
            begun: number of instructions of the first compute lane so far, including this one; 0 in other lanes.
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
        except TransferError as error:  # a sum over the ranks of the tensor-parallel group
            raise self._lost(instruction, error) from error
        flowing = (store[v] for v in instruction.writes if v.what is ValueKind.GRADIENT and not v.on_host)
        self._memory.made(
            tensor for tensors in flowing for tensor in tensors
        )  # the observer does not see allocations of compiled code
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
                self._handover.event() if instruction.kind not in SWAPS else None,  # the copies of a swap are complete
            )

    def _look_for_waits(self) -> None:
        """Add the thread's wait for a core since the last call.

        It is called before and after every instruction. Between two instructions, other threads of the process may have
        run while this thread was blocked. That time must not be mixed with waits inside an instruction.
        """
        meter: CoreWaits | None = getattr(self._meters, "meter", None)
        if meter is None:
            self._meters.meter, self._meters.queued_s = CoreWaits(), 0.0
        else:
            self._meters.queued_s += meter.lap()

    def _hand_on(self, instruction: Instruction, routes: Routes, store: dict[Value, Any], early: set[Value]) -> None:
        """Give other lanes the values that they read.

        Values in `early` were given while the instruction ran.
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
            del thing  # otherwise it would outlive its send

    def _publisher(self, instruction: Instruction, routes: Routes, early: set[Value]) -> Callable[[Value, Any], None]:
        """Return a function that hands a gradient bucket to its all-reduce (rule 2).

        The backward calls it for each bucket as soon as the bucket is complete.
        """
        lane_of = {instruction.writes[position]: lane for position, lane in routes}

        def publish(value: Value, bucket: Any) -> None:
            if value in lane_of:
                early.add(value)
                self._transfers.give(lane_of[value], value, self._handover.given(bucket))

        return publish

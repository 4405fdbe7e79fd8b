"""Execution of one instruction of a compute lane, a swap lane or the load lane.

The inputs of an instruction come from the lane's own store, from another lane of the device, or from a transfer.
Outputs for other lanes are handed over as soon as they are computed. device.py defines the meaning of an instruction,
and the lane (segment.py) decides when it runs.
"""

from collections.abc import Callable
from typing import Any

from hocket.program.instruction import LOAD, SWAPS, Instruction, Kind, Value, ValueKind, computes, sends
from hocket.runtime.engine.compute_lanes import Exchange
from hocket.runtime.engine.recorder import EngineRecorder
from hocket.runtime.engine.shared_values import SharedValues
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.engine.transport.peer_lost import lost
from hocket.runtime.engine.transport.process_groups import TransferError
from hocket.runtime.engine.transport.transfers import Transfers
from hocket.runtime.stage.device import Device

_BETWEEN_WAVES = frozenset({ValueKind.ENDED, ValueKind.LENT})  # values that compute lanes of one device exchange
_BETWEEN_LANES = _BETWEEN_WAVES | {ValueKind.INPUT, ValueKind.MARK}  # the last two: with the load lane
Routes = tuple[tuple[int, str], ...]


class Execution:
    """Executes the instructions of one segment in compute, swap and load lanes.

    Attributes:
        device: device of the worker.
        transfers: transfers of the segment.
        exchange: exchange between the device's lanes; a `SharedValues` if compute and swap lanes share values.
        handover: passes values between the CUDA streams of the device's lanes.
        recorder: recorder of the worker.
    """

    def __init__(
        self,
        device: Device,
        transfers: Transfers,
        exchange: Exchange,
        handover: StreamHandover,
        recorder: EngineRecorder,
    ) -> None:
        self.device, self.handover, self.recorder = device, handover, recorder
        self.transfers, self.exchange = transfers, exchange

    def gather(self, instruction: Instruction, store: dict[Value, Any]) -> None:
        """Wait for the missing inputs of an instruction; put them into the lane's store.

        Values of other waves are taken first. They signal that the all-reduces of the previous wave have begun, and
        only then the all-reduces of this wave may begin.
        """
        absent = [value for value in instruction.reads if value not in store]
        for value in sorted(absent, key=lambda one: one.what not in _BETWEEN_WAVES):
            store[value] = self._taken(value)

    def _taken(self, value: Value) -> Any:
        """Wait for a value that another lane writes, and return it."""
        if value.what in _BETWEEN_LANES:
            return self.handover.taken(self.exchange.take(value))
        return self.device.came(value, self.transfers.take(value))

    def borrow(self, shelf: SharedValues, instruction: Instruction, waits: bool = False) -> dict[Value, Any]:
        """Take the inputs of an instruction from the store that lanes share.

        Arguments:
            shelf: the shared store; the call waits until it has all inputs.
            waits: True to wait also until the GPU kernels that compute the inputs have finished.
        """
        store, events = shelf.borrow(
            instruction,
            self.transfers.arriving,
            lambda value: self.device.came(value, self.transfers.take(value)),
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

        Raises:
            PeerLost: a collective of the tensor-parallel group failed.
        """
        start_s = self.recorder.start()
        early: set[Value] = set()
        publish = None
        if routes and instruction.kind is Kind.BACKWARD:
            publish = self._publisher(instruction, routes, early)
        try:
            self.device.execute(instruction, store, publish)
        except TransferError as error:  # a sum over the ranks of the tensor-parallel group
            raise lost(self.device, instruction, error) from error
        flowing = (store[v] for v in instruction.writes if v.what is ValueKind.GRADIENT and not v.on_host)
        self.recorder.memory.made(
            tensor for tensors in flowing for tensor in tensors
        )  # the observer does not see allocations of compiled code
        self.recorder.stop(instruction, start_s)
        if begun:
            self.transfers.let_go(begun)
        self._hand_on(instruction, routes, store, early)
        if isinstance(self.exchange, SharedValues):
            self.exchange.put(
                {value: store.pop(value) for value in instruction.writes if value in store},
                self.handover.event() if instruction.kind not in SWAPS else None,  # the copies of a swap are complete
            )

    def _hand_on(self, instruction: Instruction, routes: Routes, store: dict[Value, Any], early: set[Value]) -> None:
        """Give other lanes the outputs that they read.

        Arguments:
            routes: (position in `writes`, lane) of the outputs for other lanes.
            early: outputs that other lanes got already while the instruction ran.
        """
        for position, lane in routes:
            value = instruction.writes[position]
            keeps = value.what is ValueKind.SHARD and self.device.program.stages[value.stage].gathers
            thing = store[value] if keeps else store.pop(value)
            if not keeps:
                self.device.gave(value, sending=sends(lane))
            if computes(lane) or lane == LOAD:
                self.exchange.give(value, self.handover.given(thing))
            elif value not in early:
                self.transfers.give(lane, value, self.handover.given(thing))
            del thing  # otherwise it would outlive its send

    def _publisher(self, instruction: Instruction, routes: Routes, early: set[Value]) -> Callable[[Value, Any], None]:
        """Return a function that hands a gradient bucket to its all-reduce while the backward still runs.

        The backward calls it for each bucket as soon as the bucket is complete (hocket/program/order.py, rule 2).

        Arguments:
            routes: (position in `writes`, lane) of the buckets.
            early: set to which the function adds each bucket that it has handed over, so that `_hand_on` does not do it
                again.
        """
        lane_of = {instruction.writes[position]: lane for position, lane in routes}

        def publish(value: Value, bucket: Any) -> None:
            if value in lane_of:
                early.add(value)
                self.transfers.give(lane_of[value], value, self.handover.given(bucket))

        return publish

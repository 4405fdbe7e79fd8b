"""Segment: prologue, periods and epilogue of one device.

Each compute lane, each swap lane and the load lane has its own thread. The first compute lane runs in the calling
thread. It asks the observer whether to continue, and informs the transfers of its position. The other lanes follow the
observer's answers. instruction.py handles inputs and outputs of an instruction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hocket.program.instruction import COMPUTE, Kind, Value, ValueKind
from hocket.runtime.engine.compute_lanes import Lanes
from hocket.runtime.engine.instruction import Execution
from hocket.runtime.engine.lanes import LaneTable, walk
from hocket.runtime.engine.losses import Losses
from hocket.runtime.engine.shared_values import SharedValues
from hocket.runtime.engine.stop_ahead import StopAhead
from hocket.runtime.progress.observer import Observer


class Segment:
    """One run of a device's lanes: prologue, some periods, epilogue.

    Attributes:
        periods: number of periods run; set when the first compute lane has ended.
    """

    def __init__(
        self,
        execution: Execution,
        lane_table: LaneTable,
        observer: Observer,
        losses: Losses,
    ) -> None:
        """Prepare a segment; nothing runs yet.

        Arguments:
            execution: executes the instructions of the segment's lanes.
        """
        self._execution, self._lane_table = execution, lane_table
        self._device, self._transfers, self._exchange = execution.device, execution.transfers, execution.exchange
        self._handover, self._memory = execution.handover, execution.recorder.memory
        self._observer, self._losses = observer, losses
        self.periods = 0

    def run(self, repeats: int, store: dict[Value, Any]) -> dict[Value, Any]:
        """Run prologue, at most `repeats` periods, and epilogue.

        Arguments:
            store: values present at the beginning.

        Returns:
            Values present at the end, without values that transfers bring.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        self._handover.wait_all()
        waves, loads, exchange = self._lane_table.waves, self._lane_table.loads, self._exchange
        with _divided_threads(1 + len(waves)) as threads, exchange.failing():
            stores = [self._of_lane(store, lane) for lane in waves]
            works = [partial(self._wave, lane, own, threads) for lane, own in zip(waves, stores, strict=True)]
            for value in [value for value in store if loads and value.what is ValueKind.MARK]:
                exchange.give(value, store.pop(value))
            works += [partial(self._load_lane, lane) for lane in loads]
            if isinstance(exchange, SharedValues):
                works += [partial(self._swap_lane, exchange, lane) for lane in self._lane_table.swaps]
            lanes = Lanes(exchange, works, f"device {self._device.number}")
            self.periods = self._compute(repeats, store)
            lanes.join()
        if isinstance(exchange, SharedValues):
            store = dict(exchange.items())
        self._handover.wait_all()
        for own in stores:
            store.update(own)
        if loads:
            store.update(exchange.left())  # permits to load that no load has used
        self._losses.report()
        return store

    def _of_lane(self, store: dict[Value, Any], lane: str) -> dict[Value, Any]:
        """Remove the values of the stages of one compute lane from a store; return them."""
        stages = self._device.program.stages
        return {value: store.pop(value) for value in list(store) if stages[value.stage].lane == lane}

    def _wave(self, lane: str, store: dict[Value, Any], threads: int, number: int) -> None:
        """Run all instructions of an additional compute lane, in the thread of this lane.

        Arguments:
            threads: CPU threads of torch for this lane.
            number: number of the lane in the exchange.
        """
        self._begin_thread(threads)
        follower = self._memory.follower()
        with follower, self._handover.lane(lane):
            for instruction, routes in walk(self._lane_table.parts[lane], lambda _: self._exchange.goes_on(number)):
                follower.look()
                self._execution.gather(instruction, store)
                self._execution.execute(instruction, routes, store)

    def _swap_lane(self, shelf: SharedValues, lane: str, number: int) -> None:
        """Run a swap lane in its own thread.

        Arguments:
            shelf: store of the values that lanes share.
            number: number of the lane in the exchange.
        """
        self._begin_thread(1)  # one thread saturates the memory bandwidth of a copy
        with self._handover.lane(lane):
            for instruction, routes in walk(self._lane_table.parts[lane], lambda _: shelf.goes_on(number)):
                store = self._execution.borrow(shelf, instruction, waits=True)
                self._execution.execute(instruction, routes, store)
                self._transfers.consumed(instruction.reads)

    def _load_lane(self, lane: str, number: int) -> None:
        """Run the lane of loads in its own thread, ahead of the compute lane.

        Arguments:
            number: number of the lane in the exchange.
        """
        self._begin_thread(1)
        follower = self._memory.follower()
        with follower, self._handover.lane(lane):
            for instruction, routes in walk(self._lane_table.parts[lane], lambda _: self._exchange.goes_on(number)):
                follower.look()
                store: dict[Value, Any] = {}
                self._execution.gather(instruction, store)
                self._execution.execute(instruction, routes, store)

    def _begin_thread(self, threads: int) -> None:
        if self._handover.needed:
            torch.cuda.set_device(self._device.device)
        torch.set_num_threads(threads)

    def _compute(self, repeats: int, store: dict[Value, Any]) -> int:
        """Run the first compute lane; return the number of periods run."""
        exchange, transfers, execution, observer = self._exchange, self._transfers, self._execution, self._observer
        ahead = StopAhead(repeats, observer, transfers, exchange)
        for value, thing in store.items():
            if value.what is ValueKind.SHARD and value.stage in self._lane_table.gathers:
                transfers.give(self._lane_table.gathers[value.stage], value, self._handover.given(thing))
        transfers.post_all()
        for done, (instruction, routes) in enumerate(walk(self._lane_table.parts[COMPUTE], ahead.go_on)):
            self._memory.look(ahead.run)
            if transfers.failure is not None:
                raise transfers.failure
            if exchange.failure is not None:
                raise exchange.failure
            there = exchange if isinstance(exchange, SharedValues) else store
            waits = any(value not in there for value in instruction.reads)
            if waits:
                observer.waits(instruction)
            if isinstance(exchange, SharedValues):
                store = execution.borrow(exchange, instruction)
            else:
                execution.gather(instruction, store)
            transfers.let_go(done + 1)
            observer.runs(instruction)
            execution.execute(instruction, routes, store, done + 1)
            if self._losses and (self._device.device.type == "cpu" or instruction.kind is Kind.STEP):
                self._losses.report()  # on a GPU, reading a loss drains the queue, so losses are read at the step
            if waits:
                transfers.consumed(instruction.reads)
            for value in instruction.frees:
                if value.what is ValueKind.GATHERED:
                    weights = self._device.stages[value.stage].weights
                    self._memory.made(flat for slot in weights.slots for flat in slot.flats)
                    transfers.dropped(self._lane_table.gathers[value.stage])
        return ahead.run


@contextmanager
def _divided_threads(lanes: int) -> Iterator[int]:
    """Divide torch's CPU threads among `lanes` compute lanes inside this context.

    Yields:
        The number of threads of one lane, at least 1.
    """
    threads = torch.get_num_threads()
    own = max(1, threads // lanes)
    if own != threads:
        torch.set_num_threads(own)
    yield own
    if own != threads:
        torch.set_num_threads(threads)

"""Swapping: instructions that move values between device and host memory.

The swapper knows instructions and stages. It reports every value that is added, freed or moved to the memory manager
(memory_manager.py). A device without swaps and without a memory budget has no swapper.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from math import ceil
from typing import Any

from torch import Tensor

from hocket.hardware.link_sums import LinkSums
from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.order import heir_of
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.runtime.swapping.states import STATE, HostCopy

Store = MutableMapping[Value, Any]
_KEPT = 256  # latest swaps of a value whose times are kept
_HELD_UP = 0.02  # share of the slowest swaps that is left out


class Swapper:
    """Runs the swaps of one device, and keeps host copies from segment to segment.

    A segment is one run of the program: prologue, some periods, epilogue.

    Attributes:
        memory: memory manager of the device.
    """

    def __init__(self, memory: MemoryManager, rests: bool) -> None:
        """Create the swapper, without values.

        Arguments:
            rests: True if weights and optimizer state stay on the host between segments.
        """
        self.memory, self._rests = memory, rests
        self._took: dict[tuple[Kind, ValueKind, int, int, int], deque[float]] = {}
        self._resting: dict[tuple[int, ValueKind], HostCopy] = {}
        self._lock = threading.Lock()

    # -- between segments

    def settle(self, stage: int, runner: StageRunner, new: bool = True) -> None:
        """Register a stage that is new or has new weights with the memory manager.

        If weights and optimizer state stay on the host between segments, they are moved there.

        Arguments:
            new: False for a runner that shares the weights of a registered stage (`SharedStages`).

        Raises:
            MemoryExceeded: the weights of a single stage do not fit.
        """
        self.memory.storages.keep(runner.fixed())
        for what in STATE if self._rests and new else ():
            value = Value(what, stage, 0)
            self.memory.wrote(value, _thing(runner, what))
            copy = self.memory.swap_out(value, value._replace(copy=1), (value,), counted=False)
            self._resting[stage, what] = copy

    @contextmanager
    def at_hand(self, stage: int, runner: StageRunner) -> Iterator[None]:
        """Keep one stage's weights and optimizer state on the device inside this context.

        They may be changed there.
        """
        for what in STATE if self._rests else ():
            copy, device = Value(what, stage, 0, copy=1), Value(what, stage, 0, copy=2)
            self.memory.rename(self._resting.pop((stage, what)), copy)
            self.memory.swap_in(copy, device, (copy,), counted=False)
            self.memory.freed(device, inherited=True)
        yield
        self.settle(stage, runner)

    def begin(self, value: Value, runner: StageRunner) -> Any:
        """Return the store's object for a value that exists before a segment.

        Raises:
            MemoryExceeded: the value does not fit.
        """
        if value.on_host:
            copy = self._resting.pop((value.stage, value.what))
            self.memory.rename(copy, value)
            return copy
        thing = _thing(runner, value.what)
        self.memory.wrote(value, thing)
        return thing

    def end(self, store: Mapping[Value, Any]) -> None:
        """End a segment; the remaining host copies are kept until the next segment.

        Arguments:
            store: values at the end of the segment.
        """
        for value, thing in store.items():
            if isinstance(thing, HostCopy):
                self._resting[value.stage, value.what] = thing
            else:
                self.memory.freed(value)

    def readable(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Replace each tensor that was swapped out by a view of its host copy.

        The device memory of such a tensor has been freed. Other tensors and objects are unchanged.
        """
        return {n: self.memory.readable(t) if isinstance(t, Tensor) else t for n, t in tensors.items()}

    # -- while a segment runs

    def swap(self, instruction: Instruction, store: Store) -> None:
        """Run a swap; add its outputs to the store and remove the values that it frees.

        Raises:
            MemoryExceeded: the destination has too little memory.
        """
        self.memory.streams.settle()  # in the compute lane, pending kernels must not count as time of the swap
        began = time.perf_counter()
        # A swap may also read a value that it frees: the host copy of an earlier value in the same memory.
        comes_in = instruction.kind is Kind.SWAP_IN
        sources = [value for value in _moved(instruction.reads) if value.on_host == comes_in]
        size_bytes = 0
        for value, written in zip(sources, _moved(instruction.writes), strict=True):
            own = [one for one in instruction.frees if one.what is value.what and one.stage == value.stage]
            own = [one for one in own if one.part == value.part]
            move = self.memory.swap_in if comes_in else self.memory.swap_out
            store[written] = move(value, written, own)
            size_bytes += (store[value] if comes_in else store[written]).held.nbytes
        took_s, value = time.perf_counter() - began, sources[0]
        with self._lock:  # the compute lane runs the first swaps of a period; other swaps may have their own lanes
            key = (instruction.kind, value.what, value.stage, value.part, size_bytes)
            self._took.setdefault(key, deque(maxlen=_KEPT)).append(took_s)
        for value in instruction.writes:
            if value.what is ValueKind.MARK:
                store[value] = None
        for value in instruction.frees:
            del store[value]

    def took(self) -> LinkSums:
        """Sum up bytes and seconds of swaps, to fit latency and bandwidth.

        A swap counts with the mean time of the latest swaps of the same value, without the slowest two percent, which
        other work disturbed.
        """
        found = LinkSums()
        for (*_, size_bytes), seconds in self._took.items():
            usual = sorted(seconds)[: max(1, len(seconds) - ceil(_HELD_UP * len(seconds)))]
            found += LinkSums.of(size_bytes, sum(usual) / len(usual), len(seconds))
        return found

    def written(self, instruction: Instruction, store: Mapping[Value, Any]) -> None:
        """Report the values that an instruction has written on the device.

        Raises:
            MemoryExceeded: the values do not fit.
        """
        for value in _moved(instruction.writes):
            self.memory.wrote(value, store[value])

    def freed(self, instruction: Instruction) -> None:
        """Report the values that an instruction frees."""
        inherited = {heir_of(instruction, written) for written in instruction.writes}
        for value in _moved(instruction.frees):
            self.memory.freed(value, value in inherited)

    def came(self, value: Value, thing: Any) -> Any:
        """Report a value received by the device or its host.

        Arguments:
            thing: the received object.

        Returns:
            The store's object for the value, in memory that can be freed.

        Raises:
            MemoryExceeded: the value does not fit.
        """
        if value.on_host:
            return self.memory.received(value, thing)
        if isinstance(thing, tuple) and not all(tensor.untyped_storage().resizable() for tensor in thing):
            thing = tuple(tensor.clone() for tensor in thing)
        if value.what is not ValueKind.MARK:
            self.memory.wrote(value, thing)
        return thing


def _moved(values: Iterable[Value]) -> list[Value]:
    return [value for value in values if value.what is not ValueKind.MARK]


def _thing(runner: StageRunner, what: ValueKind) -> Any:
    return runner.weights.newest if what is ValueKind.WEIGHTS else runner.weights

"""Recorder of a worker: times of instructions and peak memory of its device.

On CUDA the allocator reports the peak memory. On a CPU every operation must be observed, which slows operations down.
So only the first two periods, in one segment or two, are observed, with the prologue before them. They hold as much as
all later periods: the second period has optimizer state and every weight version.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.profiling.measure.core_time import CoreWaits
from hocket.program.instruction import Instruction
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.stage.device import Device

_PERIODS = 2
_MOST_NOTES = 100_000


class InstructionRecord(NamedTuple):
    """One executed instruction.

    Begin and end are on the worker's clock. `queued_s` is the wait for a core, in seconds (see Event).
    """

    instruction: Instruction
    start_s: float
    end_s: float
    queued_s: float = 0.0


class EngineRecorder:
    """Records the instructions and the memory of one worker.

    Attributes:
        memory: memory of the device's tensors.
        instructions: executed instructions of the last segment, in any order; empty without a clock.
    """

    def __init__(self, device: Device, handover: StreamHandover, clock: Callable[[], float] | None) -> None:
        """Start without records.

        Arguments:
            clock: current time in seconds; None to keep only the peak of memory.
        """
        self.memory = PeakMemory(device, clock)
        self._handover, self._clock = handover, clock
        self.begin()

    def begin(self) -> None:
        """Begin a segment."""
        self.instructions: list[InstructionRecord] = []
        self._meters = threading.local()  # one per thread, that is per compute or swap lane

    def now(self) -> float:
        """Return the current time in seconds; 0 without a clock."""
        return 0.0 if self._clock is None else self._clock()

    def start(self) -> float:
        """Begin an instruction of a compute or swap lane.

        Returns:
            The current time in seconds.
        """
        if self._clock is not None:
            self._look_for_waits()
        return self.now()

    def stop(self, instruction: Instruction, start_s: float) -> None:
        """Record an instruction of a compute or swap lane, which ends now."""
        if self._clock is not None:
            self._handover.synchronize()
            end_s = self._clock()
            self._look_for_waits()
            self.instructions.append(InstructionRecord(instruction, start_s, end_s, self._meters.queued_s))
            self._meters.queued_s = 0.0

    def transferred(self, instruction: Instruction, start_s: float, end_s: float | None = None) -> None:
        """Record a transfer.

        Arguments:
            end_s: end of the transfer, in seconds; None if it ends now.
        """
        if self._clock is not None:
            if end_s is None:
                self._handover.synchronize()
                end_s = self._clock()
            self.instructions.append(InstructionRecord(instruction, start_s, end_s))

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


class PeakMemory:
    """Observes one device's tensors.

    Attributes:
        looking: True while operations are observed.
        course: (seconds, bytes) after each observed operation that changed the bytes; the first ones, if there are too
            many.
    """

    def __init__(self, device: Device, clock: Callable[[], float] | None = None) -> None:
        """Start without observations.

        Arguments:
            clock: current time in seconds, to keep the course; None to keep only the peak.
        """
        self._device, self.looking, self._left = device, False, _PERIODS
        self._tracker = StorageTracker()
        self.course: list[tuple[float, float]] = []
        self._clock = clock
        if clock is not None:
            self._tracker.watch = self._note

    def _note(self, live_bytes: int) -> None:
        changed = not self.course or self.course[-1][1] != live_bytes
        if self._clock is not None and changed and len(self.course) < _MOST_NOTES:
            self.course.append((self._clock(), float(live_bytes)))

    def look(self, periods: int) -> None:
        """Begin or end an observation.

        It is called before each instruction, with the number of completed periods of the segment.
        """
        if periods >= self._left:
            self.end(periods)
        elif not self.looking and self._device.device.type == "cpu":
            self._tracker.register(self._device.model.resident())
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
            self.looking = True

    def follower(self) -> "Follower":
        """Create a follower, which observes another thread while this device is observed."""
        return Follower(self, self._tracker)

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Register tensors that other lanes have allocated, mainly messages."""
        if self.looking:
            self._tracker.register(tensors)

    def end(self, periods: int) -> None:
        """Stop observing in this segment.

        If too few periods were observed, the observation continues in the next segment.
        """
        if self.looking:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._left, self.looking = max(0, self._left - periods), False
            if self._clock is not None:  # last value of the segment
                self.course.append((self._clock(), float(self._tracker.live_bytes)))

    @property
    def peak_bytes(self) -> int:
        """Peak so far, in bytes."""
        if self._device.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device.device)
        return self._tracker.peak_bytes


class Follower:
    """Context manager that observes a thread's operations while a device is observed."""

    def __init__(self, memory: PeakMemory, tracker: StorageTracker) -> None:
        self._memory, self._tracker = memory, tracker
        self._mode: _Beside | None = None

    def __enter__(self) -> "Follower":
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def look(self) -> None:
        """Begin or end observing the thread; called before each instruction."""
        if not self._memory.looking:
            self._end()
        elif self._mode is None:
            self._mode = _Beside(self._tracker)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _end(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None


class _Beside(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that forwards another thread's operations to a tracker."""

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._tracker.__torch_dispatch__(func, types, args, kwargs)

"""Peak memory of a device's tensors in a run.

On CUDA the allocator reports the peak memory. On a CPU every operation must be observed, which slows operations down.
So only the first two periods, in one segment or two, are observed, with the prologue before them. They hold as much as
all later periods: the second period has optimizer state and every weight version.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.profiling.capture.storage_tracker import StorageTracker
from hocket.runtime.stage.device import Device

_PERIODS = 2
_MOST_NOTES = 100_000


class PeakMemory:
    """Measures the memory of one device's tensors.

    Attributes:
        looking: True while operations are observed.
        course: (seconds, bytes) after each observed operation that changed the bytes; only the first ones, if there
            are too many.
    """

    def __init__(self, device: Device, clock: Callable[[], float] | None = None) -> None:
        """Create the meter; nothing is observed yet.

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
        """Begin the observation, or end it after enough periods; called before each instruction.

        On a CPU, the observation begins at the first instruction and ends after two periods, counted over all segments.
        On CUDA nothing is observed.

        Arguments:
            periods: number of completed periods of the segment.
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

        Arguments:
            periods: number of completed periods of the segment.
        """
        if self.looking:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._left, self.looking = max(0, self._left - periods), False
            if self._clock is not None:  # last value of the segment
                self.course.append((self._clock(), float(self._tracker.live_bytes)))

    @property
    def peak_bytes(self) -> int:
        """Peak memory so far, in bytes; on a CPU, while operations were observed."""
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

"""Memory: the most bytes of tensors that a device holds.

CUDA's allocator knows it. On a CPU every operation has to be looked at, which makes them slower: it is done for the
first two periods, of one segment or of two, and for the prologue before each, which hold what all later ones hold (the second
has optimizer state and every weight version), and then no more.
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
    """Looks at one device's tensors.

    Attributes:
        looking: whether operations are being looked at.
        course: (seconds, bytes) behind every operation that was looked at, where they changed; of long periods the first ones.
    """

    def __init__(self, device: Device, clock: Callable[[], float] | None = None) -> None:
        """Start without observations.

        Arguments:
            clock: if the course is to be kept.
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

        Called before each instruction with the completed periods of the segment.
        """
        if periods >= self._left:
            self.end(periods)
        elif not self.looking and self._device.device.type == "cpu":
            self._tracker.register(self._device.model.resident())
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
            self.looking = True

    def follower(self) -> "Follower":
        """Follower of another thread's operations, active while this thread is observed."""
        return Follower(self, self._tracker)

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Called by other lanes: tensors that they have made, messages above all."""
        if self.looking:
            self._tracker.register(tensors)

    def end(self, periods: int) -> None:
        """Stop observing in this segment.

        If fewer periods were completed than observation needs, it goes on in the next segment.
        """
        if self.looking:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._left, self.looking = max(0, self._left - periods), False
            if self._clock is not None:  # until now
                self.course.append((self._clock(), float(self._tracker.live_bytes)))

    @property
    def peak_bytes(self) -> int:
        """The most so far."""
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
        """Called before each instruction."""
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
    """A tracker's eyes in another thread."""

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._tracker.__torch_dispatch__(func, types, args, kwargs)

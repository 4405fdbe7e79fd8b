"""Memory: the most bytes of tensors that a device holds.

CUDA's allocator knows it. On a CPU every operation has to be looked at, which makes them slower: it is done for the
first two periods, of one segment or of two, and for the prologue before each, which hold what all later ones hold (the second
has optimizer state and every weight version), and then no more.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from hocket.profile.storage import StorageTracker
from hocket.run.device import Device

_PERIODS = 2


class Memory:
    """Looks at one device's tensors.

    Attributes:
        looking: whether operations are being looked at.
    """

    def __init__(self, device: Device) -> None:
        self._device, self.looking, self._left = device, False, _PERIODS
        self._tracker = StorageTracker()

    def look(self, periods: int) -> None:
        """Called before each instruction, with the periods of the segment that are completed: begin to look, or end it."""
        if periods >= self._left:
            self.end(periods)
        elif not self.looking and self._device.device.type == "cpu":
            self._tracker.register(self._device.resident())
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
            self.looking = True

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Called by other lanes: tensors that they have made, messages above all."""
        if self.looking:
            self._tracker.register(tensors)

    def end(self, periods: int) -> None:
        """Look no more, but in the next segment, if fewer periods than it takes were completed in this one."""
        if self.looking:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._left, self.looking = max(0, self._left - periods), False

    @property
    def peak_bytes(self) -> int:
        """The most so far."""
        if self._device.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device.device)
        return self._tracker.peak_bytes

"""Memory: the most bytes of tensors that a device holds.

CUDA's allocator knows it. On a CPU every operation has to be looked at, which makes them slower: it is done for the
prologue and the first two periods of the first segment, which hold what all later ones hold (the second has optimizer
state and every weight version), and then no more.
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
        self._device, self.looking, self._done = device, False, False
        self._tracker = StorageTracker()

    def look(self, periods: int) -> None:
        """Called before each instruction, with the periods completed: begin to look, or end it."""
        if self._done:
            return
        if periods >= _PERIODS:
            self.stop()
        elif not self.looking and self._device.device.type == "cpu":
            self._tracker.register(self._device.resident())
            self._tracker.__enter__()  # type: ignore[no-untyped-call]
            self.looking = True

    def made(self, tensors: Iterable[Tensor]) -> None:
        """Called by other lanes: tensors that they have made, messages above all."""
        if self.looking:
            self._tracker.register(tensors)

    def stop(self) -> None:
        """Look no more."""
        if self.looking:
            self._tracker.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._done, self.looking = True, False

    @property
    def peak_bytes(self) -> int:
        """The most so far."""
        if self._device.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device.device)
        return self._tracker.peak_bytes

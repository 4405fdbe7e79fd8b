"""Host buffers: host memory for swapped values, reused by size, within a budget.

On CUDA, buffers are page-locked. Locking is expensive, so buffers are kept for reuse as long as the budget allows. They
are not allocated with `torch.empty(pin_memory=True)`: its allocator rounds up to a power of two and keeps freed memory,
so the host would hold up to twice the budget.
"""

import mmap
import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.util.units import show_bytes

_PORTABLE = 1  # cudaHostRegisterPortable: locked for all devices
Refuse = Callable[[int, int], Exception]
"""Builds the error for a buffer that does not fit, from its size and bytes in use."""


class HostBuffers:
    """Host buffers of one device.

    Attributes:
        used_bytes: bytes of buffers in use.
        held_bytes: bytes of all buffers, including free ones.
        peak_bytes: peak of `used_bytes`.
    """

    def __init__(self, pinned: bool, budget_bytes: float = float("inf")) -> None:
        self._pinned, self._budget_bytes = pinned, budget_bytes
        self._free: dict[int, list[Tensor]] = {}
        self.used_bytes = self.held_bytes = self.peak_bytes = 0

    def take(self, size_bytes: int, refuse: Refuse) -> Tensor:
        """Return a buffer of exactly `size_bytes` bytes, with undefined contents.

        Raises:
            Exception: the error that `refuse` builds, if the budget does not allow the buffer.
        """
        if self.used_bytes + size_bytes > self._budget_bytes:
            raise refuse(size_bytes, self.used_bytes)
        free = self._free.get(size_bytes)
        if free:
            buffer = free.pop()
        else:
            self._make_room(size_bytes)
            buffer = _locked(size_bytes) if self._pinned else _plain(size_bytes)
            self.held_bytes += size_bytes
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        """Put back a buffer that is no longer needed, for reuse."""
        self._free.setdefault(buffer.nbytes, []).append(buffer)
        self.used_bytes -= buffer.nbytes

    def _make_room(self, size_bytes: int) -> None:
        """Free unused buffers, largest first, until `size_bytes` more fit in the budget."""
        for size in sorted(self._free, reverse=True):
            while self._free[size] and self.held_bytes + size_bytes > self._budget_bytes:
                self._free[size].pop()
                self.held_bytes -= size


def _locked(size_bytes: int) -> Tensor:
    pages = np.frombuffer(mmap.mmap(-1, max(1, size_bytes)), np.uint8)
    buffer, address = torch.from_numpy(pages[:size_bytes]), pages.ctypes.data
    code = int(torch.cuda.cudart().cudaHostRegister(address, pages.nbytes, _PORTABLE))  # type: ignore[no-untyped-call]
    if code != 0:
        hint = "Give the process more memory that may be locked, or allow fewer bytes on the host."
        raise InputError(
            "swap", f"CUDA's error {code} for {show_bytes(size_bytes)} of the host", "page-locked host memory", hint
        )
    # All views of the buffer keep the array alive, so its end is the end of the pages' use.
    weakref.finalize(pages, _unlock, address).atexit = False
    return buffer


def _unlock(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _plain(size_bytes: int) -> Tensor:
    # Made by NumPy, so that trackers of device memory do not count it.
    return torch.from_numpy(np.empty(size_bytes, np.uint8))

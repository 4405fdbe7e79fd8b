"""Host buffers: host memory for swapped values, reused by size, within a budget.

Rules of this file: on CUDA buffers are page-locked, which is dear to make: none is given back while the budget holds. They are pages of
their own that are locked, and not `torch.empty(pin_memory=True)`: its allocator takes the next power of two for each, and keeps what
is given back, so that the host would hold up to twice the budget.
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
"""Makes the error of a buffer of so many bytes that does not fit beside so many."""


class HostBuffers:
    """See the head of this file.

    Attributes:
        used_bytes: of buffers that are taken; held_bytes: with those that wait to be used again; peak_bytes: the most that were taken.
    """

    def __init__(self, pinned: bool, budget_bytes: float = float("inf")) -> None:
        self._pinned, self._budget_bytes = pinned, budget_bytes
        self._free: dict[int, list[Tensor]] = {}
        self.used_bytes = self.held_bytes = self.peak_bytes = 0

    def take(self, size_bytes: int, refuse: Refuse) -> Tensor:
        """A buffer of exactly so many bytes, with anything in it.

        Raises:
            what `refuse` makes: the budget does not allow it.
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
        """Return a buffer that is no longer needed."""
        self._free.setdefault(buffer.nbytes, []).append(buffer)
        self.used_bytes -= buffer.nbytes

    def _make_room(self, size_bytes: int) -> None:
        """Free unused buffers, the largest first, until this many bytes fit in the budget."""
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
    # The array is the last that holds the pages, whatever views of the buffer there are.
    weakref.finalize(pages, _unlock, address).atexit = False
    return buffer


def _unlock(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _plain(size_bytes: int) -> Tensor:
    # Unseen by what counts a device's tensors, as those of a GPU's host are.
    return torch.from_numpy(np.empty(size_bytes, np.uint8))

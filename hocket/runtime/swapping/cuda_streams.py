"""CUDA streams: record which streams use a memory block.

Memory of swapped values is allocated, filled, freed and copied in different streams. CUDA's caching allocator keeps
memory for the stream that allocated it. If another stream uses the memory, `record_stream` must say so before the
memory is freed. The allocator then reuses the memory only after the work enqueued in that stream until the release is
complete. On a CPU nothing is done.

Source: PyTorch's documentation, `torch.Tensor.record_stream` and "CUDA semantics".
"""

import torch
from torch import Tensor


def has_streams(device: torch.device) -> bool:
    """True if operations on the device run asynchronously in streams."""
    return device.type == "cuda"


def indexed(device: torch.device | str) -> torch.device:
    """Return a device with its index; "cuda" becomes the current CUDA device."""
    device = torch.device(device)
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


class Streams:
    """Streams of one device that use its memory; compute uses the default stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._needed = device, has_streams(device)

    def used_by_compute(self, memory: Tensor) -> None:
        """Mark memory as used by the compute stream, so that it may be freed at any time."""
        if self._needed:
            memory.record_stream(torch.cuda.default_stream(self._device))

    def used_here(self, memory: Tensor) -> None:
        """Mark memory as used by the current stream."""
        if self._needed:
            memory.record_stream(torch.cuda.current_stream(self._device))

    def settle(self) -> None:
        """Wait for all work in the current stream."""
        if self._needed:
            torch.cuda.current_stream(self._device).synchronize()

"""CUDA streams for memory that is used in several streams.

Memory is allocated, filled, emptied and moved in different streams.

Rules of this file: nothing here does anything on a CPU. Source: `torch.Tensor.record_stream` and "CUDA semantics" of PyTorch's
documentation: an allocator keeps memory for the stream that asked for it; what another stream uses it for has to be said before it is
given back, and counts as over when all is over that was put into that stream until then.
"""

import torch
from torch import Tensor


def has_streams(device: torch.device) -> bool:
    """True if operations on the device run asynchronously in streams."""
    return device.type == "cuda"


def indexed(device: torch.device | str) -> torch.device:
    """A device as its tensors name it: "cuda" alone is the current one."""
    device = torch.device(device)
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


class Streams:
    """The streams of one device, as its memory sees them.

    The default stream is compute's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._needed = device, has_streams(device)

    def used_by_compute(self, memory: Tensor) -> None:
        """Memory may die while kernels of compute, put into its stream until then, still use it."""
        if self._needed:
            memory.record_stream(torch.cuda.default_stream(self._device))

    def used_here(self, memory: Tensor) -> None:
        """Mark memory as used by the current stream."""
        if self._needed:
            memory.record_stream(torch.cuda.current_stream(self._device))

    def settle(self) -> None:
        """Wait until all is over that was put into the current stream."""
        if self._needed:
            torch.cuda.current_stream(self._device).synchronize()

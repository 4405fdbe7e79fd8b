"""C memory allocator of a process that trains on CPU cores.

glibc returns large freed blocks to the kernel, and the kernel clears every page again at its next use. A training step frees and
allocates the same tensors each time: thousands of page faults an iteration.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for its next allocations.

    The process keeps the memory of its peak until it ends. This cannot be undone.

    Returns:
        True if the C library has been told; False where it is not glibc.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))

"""Time slices of threads: message threads preempt compute threads at once.

In Linux (6.12 or later: EEVDF with custom slices) a thread that wakes up preempts another thread only if its own time
slice is shorter. Message threads wake up for microseconds, several times for each collective. With equal slices, each
wake-up may wait for a whole slice of the thread that computes on the same core. A long slice for compute threads avoids
the wait. It changes no thread's share of the core, and it needs no privilege. Other programs get the core as before.
Other systems are not affected.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_S = 0.1
"""Longest slice that the kernel grants, in seconds."""
_NORMAL, _BATCH = 0, 3
# Numbers of sched_setattr and sched_getattr; libc has no wrappers for them.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of sched_setattr(2), in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("slice_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def time_slice_s(thread: int = 0) -> float | None:
    """Return the time slice of a thread of this process.

    Arguments:
        thread: native thread id; 0 is the calling thread.

    Returns:
        Seconds; None if the kernel does not support custom slices, or the thread's scheduling policy has none.
    """
    found = _get(thread)
    return found.slice_ns / 1e9 if found is not None and found.slice_ns else None


@contextmanager
def long_time_slice() -> Iterator[None]:
    """Give the calling thread, and threads started inside, the longest time slice.

    Without support by the kernel, nothing changes.
    """
    before = _get(0)
    if before is None or not before.slice_ns or not _set(before, round(LONGEST_S * 1e9)):
        yield
        return
    try:
        yield
    finally:
        _set(before, before.slice_ns)


def _get(thread: int) -> _Attributes | None:
    """Return a thread's scheduling attributes.

    Returns:
        None on other systems or processors, and for real-time and other policies.
    """
    numbers = _CALLS.get(os.uname().machine) if sys.platform == "linux" else None
    if numbers is None:
        return None
    found = _Attributes()
    failed = ctypes.CDLL(None).syscall(numbers[1], thread, ctypes.byref(found), ctypes.sizeof(found), 0)
    return None if failed or found.policy not in (_NORMAL, _BATCH) else found


def _set(before: _Attributes, slice_ns: int) -> bool:
    """Set the calling thread's slice; keep its policy and niceness.

    Arguments:
        before: the thread's present attributes.

    Returns:
        True if the kernel accepted the slice.
    """
    wanted = _Attributes.from_buffer_copy(before)
    wanted.size, wanted.slice_ns = ctypes.sizeof(wanted), slice_ns
    return not ctypes.CDLL(None).syscall(_CALLS[os.uname().machine][0], 0, ctypes.byref(wanted), 0)

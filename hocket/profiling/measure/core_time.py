"""Core time: waiting time of a thread for a CPU core, and a clock without it.

Linux counts the nanoseconds in which each thread was runnable without a core (`schedstat`). On other systems, the
waiting time is 0. Time that a hypervisor takes from the whole machine (steal time) is not included.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SCHEDULED = Path("/proc/thread-self/schedstat")
_MOST_BYTES = 128
_TRIES = 1000  # consecutive waits between two reads that are a microsecond apart


class _Handle:
    """Open file of the calling thread's `schedstat`.

    A read costs a microsecond; opening the file costs ten.
    """

    def __init__(self) -> None:
        self.process = os.getpid()  # a forked process must not read its parent's thread
        try:
            self.number = os.open(_SCHEDULED, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            with suppress(OSError):
                os.close(self.number)


_own = threading.local()


def queued_s(scheduled: Path | None = None) -> float:
    """Return the seconds that the calling thread has waited for a core.

    The result is 0 if the kernel does not count this time.

    Arguments:
        scheduled: file to read instead of the thread's own `schedstat`: nanoseconds on a core, nanoseconds of waiting
            for one, and number of turns.
    """
    try:
        if scheduled is not None:
            return int(scheduled.read_bytes().split()[1]) * 1e-9
        handle: _Handle | None = getattr(_own, "handle", None)
        if handle is None or handle.process != os.getpid():
            handle = _own.handle = _Handle()
        if handle.number < 0:
            return 0.0
        return int(os.pread(handle.number, _MOST_BYTES, 0).split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True)
class CoreClock:
    """Clock that also tells the calling thread's waits for a core.

    Attributes:
        now: returns the current time, in seconds.
        queued: returns the seconds that the calling thread has waited for a core so far.
    """

    now: Callable[[], float] = time.perf_counter
    queued: Callable[[], float] = queued_s


def on_core_s(clock: Callable[[], float] = time.perf_counter, queued: Callable[[], float] = queued_s) -> float:
    """Return seconds on a clock that stops while the thread waits for a core.

    Time in which the thread sleeps or waits for anything else is included. The clock never runs backwards: both counts
    are read again if the thread waited between them.
    """
    before_s = queued()
    for _ in range(_TRIES):
        now_s, after_s = clock(), queued()
        if after_s == before_s:
            break
        before_s = after_s
    return now_s - after_s


def _own_threads_s() -> float:
    """Return the CPU seconds of all other threads of this process."""
    return time.process_time() - time.thread_time()


class CoreWaits:
    """Meter of the calling thread's waits for a core that another process had.

    A wait for a core that another thread of the same process had is caused by the program itself (the second wave of
    `tick_tock`, threads that carry messages) and is not counted. If the process may run on several cores, the count
    is a lower bound, because its other threads may have run on other cores.
    """

    def __init__(
        self, queued: Callable[[], float] = queued_s, own_threads_s: Callable[[], float] = _own_threads_s
    ) -> None:
        self._queued, self._threads = queued, own_threads_s
        self._queued_s, self._threads_s = queued(), own_threads_s()

    def lap(self) -> float:
        """Return the waiting seconds since the last call or the construction."""
        queued, threads = self._queued(), self._threads()
        found = (queued - self._queued_s) - (threads - self._threads_s)
        self._queued_s, self._threads_s = queued, threads
        return max(0.0, found)

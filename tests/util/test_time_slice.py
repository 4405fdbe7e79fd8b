"""Time slices of threads that compute."""

import os
import platform
import sys
import threading

import pytest

from hocket.util import time_slice
from hocket.util.time_slice import LONGEST_S, long_time_slice, time_slice_s

needs_slices = pytest.mark.skipif(time_slice_s() is None, reason="this kernel has no time slices (Linux 6.12)")


@pytest.mark.skipif(
    sys.platform != "linux"
    or platform.machine() not in time_slice._CALLS
    or tuple(map(int, platform.release().split(".")[:2])) < (6, 12),
    reason="time slices need Linux 6.12",
)
def test_slices_are_found_where_the_kernel_has_them() -> None:
    """The other tests skip without slices, so they cannot notice that slices are no longer found."""
    assert time_slice_s() is not None


@needs_slices
def test_a_thread_has_the_longest_slice_inside_and_its_own_after() -> None:
    """The time slice is long inside the context and restored afterwards.

    A thread that is started inside has the long slice too. The slice is also restored after an error.
    """
    usual_s, inside_s = time_slice_s(), list[float | None]()

    def fail() -> None:
        assert time_slice_s() == LONGEST_S
        thread = threading.Thread(target=lambda: inside_s.append(time_slice_s()))
        thread.start()
        thread.join()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), long_time_slice():
        fail()
    assert inside_s == [LONGEST_S]
    assert time_slice_s() == usual_s
    assert usual_s is not None
    assert usual_s < LONGEST_S


@needs_slices
def test_other_threads_keep_their_slice() -> None:
    """An older thread keeps its shorter time slice.

    It therefore gets the core when it wakes up.
    """
    begin, end = threading.Event(), threading.Event()

    def wait() -> None:
        begin.set()
        end.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    begin.wait()
    try:
        with long_time_slice():
            slice_s = time_slice_s(thread.native_id or 0)
            assert slice_s is not None
            assert slice_s < LONGEST_S
    finally:
        end.set()
        thread.join()


@needs_slices
def test_a_niceness_stays() -> None:
    """Only the slice changes: a run under `nice` stays as nice as it is."""
    found = list[int]()

    def nice() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), after)
        with long_time_slice():
            found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    after = min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19)  # the tests themselves may run with the least priority
    thread = threading.Thread(target=nice)
    thread.start()
    thread.join()
    assert found == [after]


def test_nothing_happens_where_there_are_no_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor with unknown system calls computes as before."""
    monkeypatch.setattr(time_slice, "_CALLS", {})
    assert time_slice_s() is None
    with long_time_slice():
        assert time_slice_s() is None

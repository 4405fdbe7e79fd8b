"""Waits of a thread for a core, and a clock without them."""

import os
import time
from pathlib import Path

import pytest

from hocket.profiling.measure.core_time import CoreWaits, on_core_s, queued_s


def test_seconds_in_the_queue_for_a_core(tmp_path: Path) -> None:
    """Waiting time is the second number of three, in nanoseconds.

    0 without such a file, or with another format.
    """
    told = tmp_path / "schedstat"
    told.write_text("5000000000 2500000000 7\n")
    assert queued_s(told) == 2.5
    told.write_text("what\n")
    assert queued_s(told) == queued_s(tmp_path / "none") == 0.0
    assert queued_s() >= 0.0


def test_a_forked_process_reads_of_its_own_thread() -> None:
    """A forked process reads its own thread's waits, from 0."""
    before = queued_s()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if queued_s() <= max(before, 0.5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_clock_counts_blocked_time_but_no_waits() -> None:
    """The clock counts blocked time but no waits, and never passes the wall clock."""
    wall_s, core_s = time.perf_counter(), on_core_s()
    time.sleep(0.01)
    assert 0.005 < on_core_s() - core_s <= time.perf_counter() - wall_s


def test_a_wait_while_the_clock_is_read_does_not_turn_it_back() -> None:
    """A wait between the two reads does not turn the clock back.

    The thread loses its core for 3 s between the wall clock and the queue; both are read again.
    """
    walls, queues = iter((10.0, 13.1)), iter((2.0, 5.0, 5.0))
    assert on_core_s(lambda: next(walls), lambda: next(queues)) == pytest.approx(8.1)


def test_waits_for_cores_that_own_threads_had_do_not_count() -> None:
    """Waits for cores that own threads had do not count.

    Of 5 s of waits, 3 s went to other threads of the process. Time of other threads while this one was blocked is no
    wait.
    """
    queued, threads = iter((1.0, 6.0, 6.0, 8.0)), iter((2.0, 5.0, 9.0, 9.0))
    meter = CoreWaits(lambda: next(queued), lambda: next(threads))
    assert [meter.lap() for _ in range(3)] == [2.0, 0.0, 2.0]

"""Spare processes: forks that wait to become companions of a measurement.

A fork of a process that has loaded torch starts in milliseconds, a new interpreter in some seconds. A process that has
trained cannot be forked, because its threads would be missing. So the forks are made before the job is loaded.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from hocket.profiling.measure.background_load import Companion, new_process
from hocket.profiling.measure.background_load import main as companion

_PR_SET_PDEATHSIG = 1


class SpareProcess:
    """A fork, with a part of the interface of `subprocess.Popen`; see `SpareProcesses`."""

    def __init__(self, close: Sequence[int]) -> None:
        self.returncode: int | None = None
        parent = os.getpid()
        (to_read, write), (read, to_write) = os.pipe(), os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for handle in (to_read, write, read, to_write):
                os.close(handle)
            raise
        if self.pid == 0:
            for handle in (write, read, *close):
                os.close(handle)
            _wait_for_orders(to_read, to_write, parent)
        os.close(to_read)
        os.close(to_write)
        self.stdin, self.stdout = os.fdopen(write, "wb"), os.fdopen(read, "rb")

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._ended(os.WNOHANG)

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the process has ended; return its exit code."""
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class SpareProcesses:
    """Forks of this process that become companions when they are started."""

    def __init__(self, count: int, close: Sequence[int] = ()) -> None:
        """Fork this process, which must not have trained.

        There are fewer forks if the system starts no more processes, and none except on Linux: elsewhere a process that
        has loaded torch cannot be forked safely.

        Arguments:
            count: number of forks.
            close: file descriptors that the forks close.
        """
        self._spare: list[SpareProcess] = []
        with suppress(OSError):
            for _ in range(count if sys.platform == "linux" else 0):
                handles = [stream.fileno() for one in self._spare for stream in (one.stdin, one.stdout)]
                self._spare.append(SpareProcess([*close, *handles]))

    def start(self, orders: str, threads: int) -> Companion:
        """Let a fork become a companion (`hocket.profiling.measure.background_load.main`).

        Without a fork, a new process is started.

        Arguments:
            threads: as at the fork.

        Raises:
            OSError: the system starts no process.
        """
        if not self._spare:
            return new_process(orders, threads)
        process = self._spare.pop()
        with suppress(BrokenPipeError):  # it has ended, which its companion's reader notices
            process.stdin.write(orders.encode() + b"\n")
            process.stdin.flush()
        return process

    def end(self) -> None:
        """End the forks that were not started."""
        while self._spare:
            process = self._spare.pop()
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def _wait_for_orders(orders: int, answers: int, parent: int) -> None:
    """Wait for one line of orders, and train as a companion until the parent ends; never return."""
    try:
        os.setsid()  # the parent hears Ctrl-C and ends this process
        if sys.platform == "linux":
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the kernel knew of it
            os._exit(0)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for source, target in ((orders, 0), (answers, 1), (nowhere, 2)):
            os.dup2(source, target)
            os.close(source)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        if text := sys.stdin.readline():
            companion(text)
    finally:
        os._exit(1)

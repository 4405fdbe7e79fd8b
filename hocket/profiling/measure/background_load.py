"""Companions: processes that train the same job while a profile is measured.

They load the machine as the other workers of a run will.

Cores of one machine share memory and caches, so an operation costs more time on one of several busy cores than on one
alone.

Rules of this file: `python -m hocket.profiling.measure.background_load ORDERS` is one companion. It prints nothing,
and ends when its standard input or its parent does. Its failure is a note of the profile and no error. The parent's
side uses no torch.
"""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, cast

import hocket
from hocket.util.malloc import keep_freed_memory

MOST = 15
"""Largest default number of companions: each holds a whole copy of the model."""
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_WAIT_S = 120.0
_PATH = "PYTHONPATH"
_PR_SET_PDEATHSIG = 1
_MAX_TEXT = 300


def usable_cores(quota: Path = _QUOTA) -> int:
    """Number of cores that this process may use, at least 1.

    It is the number of cores in its affinity, limited by the quota of a container.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or no limit in it
        allowed_us, _, period_us = quota.read_text().partition(" ")
        cores = min(cores, int(allowed_us) // int(period_us))
    return max(1, cores)


def usual_neighbours(device: str = "cpu", threads: int = 1) -> int:
    """Default number of companions, for one worker on each usable core.

    A worker occupies `threads` cores. The measured worker is not counted. At most MOST; 0 for a CUDA device.
    """
    return min(MOST, max(0, usable_cores() // threads - 1)) if device == "cpu" else 0


class Companion(Protocol):
    """Process of a companion; a part of `subprocess.Popen`."""

    stdin: Any
    stdout: Any

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> Any: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


Start = Callable[[str, int], Companion]
"""Starts a companion with orders (see `main`) and a number of threads."""


def new_process(orders: str, threads: int) -> Companion:
    """Start a companion in a new Python interpreter.

    Raises:
        OSError: the system starts no process.
    """
    known = [os.environ[_PATH]] if os.environ.get(_PATH) else []
    paths = os.pathsep.join([*known, str(Path(hocket.__file__).parent.parent)])
    return subprocess.Popen(
        [sys.executable, "-m", "hocket.profiling.measure.background_load", orders],
        env={**os.environ, "OMP_NUM_THREADS": str(threads), _PATH: paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


class BackgroundLoad:
    """Context manager of the companions of one measurement; it ends all of them.

    Attributes:
        problems: failures, as text for the user.
    """

    def __init__(
        self, job: Path | None, count: int, threads: int, wait_s: float = _WAIT_S, start: Start = new_process
    ) -> None:
        """Prepare the load; nothing is started yet.

        Arguments:
            job: the job's file; None if no other process can load the job.
            count: number of companions.
            threads: threads of each companion.
            wait_s: limit in seconds for a companion to load the job, or to train a first microbatch of another size.
            start: starts a companion.
        """
        self._start = start
        self._job, self._threads, self._wait_s = job, threads, wait_s
        self._count, self._size = count, 0
        self._running: list[Companion] = []
        self.problems: list[str] = []
        if count and job is None:
            self.problems.append("the job has no file that another process could load")

    def __enter__(self) -> "BackgroundLoad":
        orders = json.dumps({"job": str(self._job), "threads": self._threads, "parent": os.getpid()})
        try:
            for _ in range(self._count if self._job is not None else 0):
                self._running.append(self._start(orders, self._threads))
        except OSError as error:
            self.problems.append(f"a companion could not be started: {error}")
        except BaseException:
            self._end(list(self._running))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(list(self._running))

    @property
    def busy(self) -> int:
        """Number of working companions."""
        for process in list(self._running):
            if process.poll() is not None:
                self._lose(process, f"ended with code {process.returncode}")
        return len(self._running)

    def train(self, size: int) -> None:
        """Let all companions train microbatches of this size, and wait until they do.

        Companions that fail are ended.
        """
        if size == self._size:
            return
        self._size, waiting = size, list(self._running)
        for process in waiting:
            with suppress(BrokenPipeError):
                pipe = cast(BinaryIO, process.stdin)
                pipe.write(f"{size}\n".encode())
                pipe.flush()
        limit = time.monotonic() + self._wait_s
        with selectors.DefaultSelector() as selector:
            for process in waiting:
                selector.register(cast(BinaryIO, process.stdout), selectors.EVENT_READ, process)
            while waiting and (left_s := limit - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    process = key.data
                    words = cast(BinaryIO, process.stdout).readline().decode(errors="replace").strip()
                    if words != str(size):
                        process.wait()
                        self._lose(process, words[:_MAX_TEXT] or f"ended with code {process.returncode}")
                    selector.unregister(key.fileobj)
                    waiting.remove(process)
        for process in waiting:
            self._lose(process, f"did not train a microbatch of {size} within {self._wait_s:.0f} s")

    def _lose(self, process: Companion, why: str) -> None:
        self._end([process])
        if (text := f"a companion {why}") not in self.problems:
            self.problems.append(text)

    def _end(self, processes: Sequence[Companion]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    cast(BinaryIO, pipe).close()
            self._running.remove(process)


class _Wanted:
    """Microbatch size that the parent process asks for; read from standard input."""

    def __init__(self) -> None:
        self.size = 0
        self.known = threading.Event()

    def listen(self) -> None:
        """Listen until the parent ends, then exit."""
        for line in sys.stdin:
            self.size = int(line)
            self.known.set()
        os._exit(0)


def main(text: str) -> None:
    """Train as one companion until the parent process ends.

    Arguments:
        text: JSON object with `job` (path), `threads` and `parent` (process id).
    """
    orders = json.loads(text)
    if sys.platform == "linux":
        # A thread that holds the interpreter could keep this process from seeing its input's end.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != orders["parent"]:  # the parent ended before the kernel knew of it
        os._exit(0)
    said = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the parent has already printed the job's output
    wanted = _Wanted()
    threading.Thread(target=wanted.listen, daemon=True).start()
    try:
        _train(Path(orders["job"]), orders["threads"], wanted, said)
    except BaseException as error:
        with suppress(BrokenPipeError):
            os.write(said, f"failed: {type(error).__name__}: {error}".splitlines()[0].encode() + b"\n")
        os._exit(1)


def _train(path: Path, threads: int, wanted: _Wanted, said: int) -> None:
    import torch

    from hocket.profiling.capture.capture import capture
    from hocket.profiling.job.job_file import load_job
    from hocket.profiling.measure.worker_costs import WorkerCosts

    torch.set_num_threads(threads)
    keep_freed_memory()
    captured = capture(load_job(path))
    wanted.known.wait()
    worker: WorkerCosts | None = None
    while True:
        size = wanted.size
        fresh = worker is None or worker.size != size
        if fresh:
            worker = None  # frees the old worker before the new one is built
            worker = WorkerCosts(captured.for_size(size), size, torch.device("cpu"))
        assert worker is not None
        worker.once(time.perf_counter)
        if fresh:
            os.write(said, f"{size}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1])

"""Workers as torchrun starts them, without the agent that ends one worker when another one dies.

The workers are forks of a process that has loaded torch (hocket/training/launch/fork_server.py): each starts some
seconds earlier than a new interpreter.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hocket.training.launch import fork_server
from hocket.training.launch.environment import worker_environment
from tests.limits import HUNG_S

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02


class Worker:
    """One worker, with its output in two files."""

    def __init__(self, folder: Path, variables: dict[str, str], words: Sequence[str]) -> None:
        """Start `python words` in this folder, with further environment variables."""
        self._out, self._err = (folder / f"worker-{variables['RANK']}.{end}" for end in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = fork_server.start(
                __name__,
                [json.dumps(variables), str(folder), *words],
                worker_environment(1),
                out=out.fileno(),
                handles=[err.fileno()],
                name=f"hocket-{variables['RANK']}",
            )

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text()

    def wait(self) -> int:
        """Wait for the end; return the exit code."""
        return self._process.wait(timeout=HUNG_S)

    def wait_for_step(self, step: int) -> None:
        """Wait until this worker, which is the first one, has printed the line of a step."""
        self.wait_for(f'"step": {step},')

    def wait_for(self, words: str) -> None:
        """Wait until this worker has printed these words."""
        end_s = time.monotonic() + HUNG_S
        while words not in self.out:
            assert self._process.poll() is None, self.err
            assert time.monotonic() < end_s, self.err
            time.sleep(_LOOK_S)

    def signal(self, number: int) -> None:
        """Send a signal, as `kill` does."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Kill it, if it has not ended, and wait for its end."""
        self._process.kill()
        self._process.wait(timeout=HUNG_S)


@contextmanager
def two_workers(folder: Path, words: Sequence[str]) -> Iterator[list[Worker]]:
    """Start two workers of the same command (the words behind `python`); kill what is left of them at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    workers: list[Worker] = []
    try:
        for rank in ("0", "1"):
            workers.append(Worker(folder, meeting | {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}, words))
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """Become `python` with its words, in a folder."""
    variables, folder, *words = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= json.loads(variables)
    os.chdir(folder)
    os.dup2(handles[0], sys.stderr.fileno())
    module = words[0] == "-m"
    sys.argv = words[module:]
    try:
        if module:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1 if end.code else 0)

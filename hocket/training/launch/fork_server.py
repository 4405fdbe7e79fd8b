"""Fork server: a process that has loaded torch and forks local workers.

Workers then start quickly and share the loaded libraries. Loading torch takes a few seconds per worker. The fork server
loads it once for all workers of a run. It is kept for the next run of the same process, unless inherited state
(environment, limits, affinity) has changed since.

This file is the side of the process that starts workers; it does not import torch. The other side is
fork_server_main.py. Requests and answers are messages over a Unix socket, one JSON document each. A request carries
open files.
"""

import atexit
import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import hocket

MAX_MESSAGE_BYTES = 2**16
PATH = "PYTHONPATH"
_MAIN = "hocket.training.launch.fork_server_main"
_LOOK_S = 1.0


class ForkedProcess:
    """A process started by a fork server, with an interface like `subprocess.Popen`."""

    def __init__(self, nursery: "_Nursery", number: int) -> None:
        self._nursery, self._number = nursery, number

    @property
    def pid(self) -> int | None:
        """Process id; None before the process has started."""
        return self._nursery.pid_of(self._number)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._nursery.code_of(self._number)

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        self._nursery.kill(self._number)

    def wait(self, timeout: float = inf) -> int:
        """Wait until the process has ended; return its exit code.

        Arguments:
            timeout: maximum wait in seconds.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("a worker", timeout)
            self._nursery.listen()
        return code


def start(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    out: int,
    handles: Sequence[int] = (),
    name: str = "hocket",
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start a process that calls `main(arguments, handles, parent)` of a module.

    The process has its own session, and exits when `main` returns. On Linux the process is a fork of the fork server,
    which has loaded torch. On other systems a process that has loaded torch cannot be forked safely. There a new Python
    interpreter is started, which loads torch itself.

    Arguments:
        module: name of the module.
        arguments: strings that `main` gets.
        environment: environment variables of the process.
        out: file descriptor for standard output and standard error.
        handles: further file descriptors for the process. `main` gets their numbers in the process. Its last argument,
            `parent`, is the process id of the parent, so that the process can end when the parent has ended.
        name: name of the process, for people.
    """
    if sys.platform == "linux":
        return _nursery_of(environment).start(module, arguments, out, handles, name)
    return subprocess.Popen(
        [sys.executable, "-m", _MAIN, module, str(os.getpid()), ",".join(map(str, handles)), *arguments],
        env={**environment, PATH: os.pathsep.join(_paths())},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        pass_fds=handles,
        start_new_session=True,
    )


class _Nursery:
    """A fork server, seen from the process that started it; thread-safe."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._asked, self._lock = 0, threading.RLock()
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MAIN, str(far.fileno())],
                env={**environment, PATH: os.pathsep.join(_paths())},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(far.fileno(),),
                start_new_session=True,
            )

    def start(
        self, module: str, arguments: Sequence[str], out: int, handles: Sequence[int], name: str
    ) -> ForkedProcess:
        """Ask the fork server to fork a process that calls `main` of a module.

        Arguments:
            module: name of the module.
            arguments: strings that `main` gets.
            out: file descriptor for standard output and standard error.
            handles: further file descriptors for the process.
            name: name of the process, for people.
        """
        with self._lock:
            self._asked += 1
            wanted = {"number": self._asked, "module": module, "arguments": list(arguments), "name": name}
            where = {"folder": os.getcwd(), "paths": _paths()}
            with suppress(BrokenPipeError):  # the server has ended; `poll` reports the process as ended
                socket.send_fds(self._socket, [json.dumps(wanted | where).encode()], [out, *handles])
            return ForkedProcess(self, self._asked)

    def pid_of(self, number: int) -> int | None:
        """Return the process id; None before the process has started."""
        self._hear()
        return self._pids.get(number)

    def code_of(self, number: int) -> int | None:
        """Return the exit code of a process, or of the fork server if that ended first.

        None while both run.
        """
        lives = self.lives
        self._hear()
        return self._codes.get(number, None if lives else self._process.returncode)

    def kill(self, number: int) -> None:
        """Kill one process; if it has not started, kill the fork server."""
        with self._lock:
            if self.code_of(number) is None and self.pid_of(number) is None:
                self.end()
            elif number not in self._codes:
                with suppress(BrokenPipeError):
                    self._socket.send(json.dumps({"kill": number}).encode())

    def listen(self) -> None:
        """Wait at most a second for a message or for the fork server's end."""
        select.select([self._socket], [], [], _LOOK_S)

    @property
    def lives(self) -> bool:
        """True if the fork server runs."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """True if all processes of the fork server have ended."""
        self._hear()
        return len(self._codes) == self._asked

    def end(self) -> None:
        """Kill the fork server, which ends its processes as well."""
        self._process.kill()
        self._process.wait()
        self._hear()
        self.forget()

    def forget(self) -> None:
        """Close the socket; the server ends when all copies of the socket are closed."""
        with self._lock:
            self._process.returncode = self._process.returncode or 0  # a forked child cannot wait for the server
            self._socket.close()

    def _hear(self) -> None:
        """Receive the pending messages of the fork server, without waiting."""
        with self._lock, suppress(OSError):  # no more messages, or the socket is closed
            while block := self._socket.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                said = json.loads(block)
                if "pid" in said:
                    self._pids[said["number"]] = said["pid"]
                else:
                    self._codes[said["number"]] = said["code"]


_kept: list[tuple[Any, _Nursery]] = []
_lock = threading.Lock()


def _nursery_of(environment: Mapping[str, str]) -> _Nursery:
    """Return a fork server with the same inherited state; start one if there is none.

    Other idle servers are ended.
    """
    wanted = _inherited(environment)
    with _lock:
        for known, nursery in tuple(_kept):
            if not nursery.lives or (known != wanted and nursery.idle):
                _kept.remove((known, nursery))
                nursery.end()
        found = next((nursery for known, nursery in _kept if known == wanted), None)
        if found is None:
            found = _Nursery(environment)
            _kept.append((wanted, found))
        return found


def _inherited(environment: Mapping[str, str]) -> Any:
    """Return the state that a process inherits from the fork server.

    A request passes everything else.
    """
    umask = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")]
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    return sys.executable, dict(environment), umask, limits, cores, nice


def _paths() -> list[str]:
    """Return the import paths of this process, with the folder of the running package."""
    return [*filter(None, sys.path), str(Path(hocket.__file__).parent.parent)]


def _end_all() -> None:
    while _kept:
        _kept.pop()[1].end()


def _forget_all() -> None:
    while _kept:
        _kept.pop()[1].forget()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)

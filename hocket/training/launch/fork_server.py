"""Fork server: a process that has loaded torch and forks local workers.

Workers then start quickly and share the loaded libraries.

Most of what a worker did before its first step was to load torch, a few seconds of a core each. A nursery does it once for all workers of
a run, and stays for the next run of the same process, unless what a process gets from the one that starts it has changed since.

Rules of this file: it is the side of the process that wants workers: no torch. The other side is fork_server_main.py. Requests and
answers are messages of a Unix socket, one JSON document each; with a request go open files.
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
    """A process that a nursery started, to be used like one of `subprocess`."""

    def __init__(self, nursery: "_Nursery", number: int) -> None:
        self._nursery, self._number = nursery, number

    @property
    def pid(self) -> int | None:
        """Its process id, once it has begun."""
        return self._nursery.pid_of(self._number)

    def poll(self) -> int | None:
        """Its exit code once it has ended; negative: by which signal."""
        return self._nursery.code_of(self._number)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._nursery.kill(self._number)

    def wait(self, timeout: float = inf) -> int:
        """Block until it has ended, for so many seconds at most; its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not.
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
    """Start a process in its own session that calls a module's `main(arguments, handles, parent)` and exits.

    Before that it ends with the process `parent` if `main` sees to it. On Linux it is a fork of a nursery. Other systems do not fork safely what has loaded
    torch: there it is a process of its own.

    Arguments:
        out: open file for what it prints; handles: others that it gets. name: of the process, for people.
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
    """A nursery as the process that started it sees it; its threads share it."""

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
        """Ask for a process; see `start`."""
        with self._lock:
            self._asked += 1
            wanted = {"number": self._asked, "module": module, "arguments": list(arguments), "name": name}
            where = {"folder": os.getcwd(), "paths": _paths()}
            with suppress(BrokenPipeError):  # it has ended, and this one with it
                socket.send_fds(self._socket, [json.dumps(wanted | where).encode()], [out, *handles])
            return ForkedProcess(self, self._asked)

    def pid_of(self, number: int) -> int | None:
        """Process number of a process that has begun."""
        self._hear()
        return self._pids.get(number)

    def code_of(self, number: int) -> int | None:
        """Exit code of a process, or of the fork server if that ended first."""
        lives = self.lives
        self._hear()
        return self._codes.get(number, None if lives else self._process.returncode)

    def kill(self, number: int) -> None:
        """End one process; if it has not begun, the nursery."""
        with self._lock:
            if self.code_of(number) is None and self.pid_of(number) is None:
                self.end()
            elif number not in self._codes:
                with suppress(BrokenPipeError):
                    self._socket.send(json.dumps({"kill": number}).encode())

    def listen(self) -> None:
        """Block until it says something, or has ended, or a while."""
        select.select([self._socket], [], [], _LOOK_S)

    @property
    def lives(self) -> bool:
        """True if it can start more processes."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """True if all its processes have ended."""
        self._hear()
        return len(self._codes) == self._asked

    def end(self) -> None:
        """End it, and what it has started."""
        self._process.kill()
        self._process.wait()
        self._hear()
        self.forget()

    def forget(self) -> None:
        """Let go of it: it ends when nobody holds the socket."""
        with self._lock:
            self._process.returncode = self._process.returncode or 0  # in a fork, where it cannot be waited for
            self._socket.close()

    def _hear(self) -> None:
        """Take what it has said since."""
        with self._lock, suppress(OSError):  # nothing more for now, or for ever
            while block := self._socket.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT):
                said = json.loads(block)
                if "pid" in said:
                    self._pids[said["number"]] = said["pid"]
                else:
                    self._codes[said["number"]] = said["code"]


_kept: list[tuple[Any, _Nursery]] = []
_lock = threading.Lock()


def _nursery_of(environment: Mapping[str, str]) -> _Nursery:
    """Fork server with the same environment, new if there is none.

    Other idle servers end.
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
    """Inherited state of a process, except for the contents of a request."""
    umask = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask")]
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    cores, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    return sys.executable, dict(environment), umask, limits, cores, nice


def _paths() -> list[str]:
    """Import paths of this process.

    They include the running package if it is not installed.
    """
    return [*filter(None, sys.path), str(Path(hocket.__file__).parent.parent)]


def _end_all() -> None:
    while _kept:
        _kept.pop()[1].end()


def _forget_all() -> None:
    while _kept:
        _kept.pop()[1].forget()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)

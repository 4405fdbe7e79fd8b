"""Main program of the fork server (fork_server.py).

Usage: `python -m hocket.training.launch.fork_server_main HANDLE`. With a module, a parent, handles and arguments in
place of HANDLE, it runs one process without a fork server.

The fork server imports the modules that every worker imports, and nothing else: no model, no device, no thread, no
code of the user. While no request waits, it imports the modules that some workers import. If the process that started
it ends, the socket closes and the fork server ends. Linux then ends its workers (PR_SET_PDEATHSIG).
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from hocket.training.launch.fork_server import MAX_MESSAGE_BYTES, PATH
from hocket.util.schema import build_validator

# Creating an optimizer imports torch._dynamo; reading a plan imports the last two.
_LOADED = (
    "hocket.training.worker.worker",
    "hocket.training.launch.worker_main",
    "torch._dynamo",
    "pydantic.dataclasses",
    "ruamel.yaml.main",
)
# Dataclasses that every worker reads from files.
_READ = (("hocket.planning.plan", "Plan"), ("hocket.training.launch.worker_spec", "WorkerSpec"))
# Jobs with `from hocket import Job` import the first, runs with checkpoints the second.
_LATER = ("hocket.api", "hocket.runtime.checkpoint.manager")
_MAX_HANDLES = 8
_NAME_BYTES = 15  # Linux's limit of a process name
_PR_SET_NAME = 15


def main(handle: int) -> None:
    """Import modules, then start requested processes until the socket closes.

    Arguments:
        handle: file descriptor of the socket to the process that sends requests.
    """
    # Python 3.12 and later warn if a process with threads forks. Here these are threads of a numerical library that
    # supports forks.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    for name in _LOADED:
        importlib.import_module(name)
    for name, kind in _READ:
        build_validator(getattr(importlib.import_module(name), kind))
    _share()
    later = list(_LATER)
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    with socket.socket(fileno=handle) as asker:
        while True:
            ready, _, _ = select.select([asker, woken], [], [], 0 if later else None)
            if not ready:  # nobody waits
                with suppress(ImportError):  # a worker that needs the module reports the error
                    importlib.import_module(later.pop(0))
                _share()
            if woken in ready:
                woken.recv(MAX_MESSAGE_BYTES)
                _reap(running, asker)
            if asker in ready:
                message, handles, _, _ = socket.recv_fds(asker, MAX_MESSAGE_BYTES, _MAX_HANDLES)
                if not message:
                    signal.set_wakeup_fd(-1)  # workers may end after the socket is closed and before this process ends
                    return
                wanted = json.loads(message)
                if "kill" in wanted:
                    for pid in [pid for pid, number in running.items() if number == wanted["kill"]]:
                        os.kill(pid, signal.SIGKILL)
                    continue
                parent, pid = os.getpid(), os.fork()
                if pid == 0:
                    for end in (asker, woken, wake):
                        os.close(end.detach())
                    _become(wanted, handles, parent)
                running[pid] = wanted["number"]
                for taken in handles:
                    os.close(taken)
                _say(asker, {"number": wanted["number"], "pid": pid})


def _share() -> None:
    """Keep all objects out of garbage collections, so that a collection in a fork does not copy shared pages."""
    gc.collect()
    gc.freeze()


def _reap(running: dict[int, int], asker: socket.socket) -> None:
    """Report every process that has ended, and remove it from `running`.

    Arguments:
        running: number of the request, by process id.
    """
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _say(asker, {"number": running.pop(ended[0]), "code": os.waitstatus_to_exitcode(ended[1])})


def _say(asker: socket.socket, said: dict[str, int]) -> None:
    with suppress(BrokenPipeError):  # the peer has closed the socket; the main loop notices
        asker.send(json.dumps(said).encode())


def _become(wanted: dict[str, Any], handles: list[int], parent: int) -> NoReturn:
    """Turn this fork into the requested process, run the process, and exit.

    Arguments:
        wanted: the request.
        handles: file descriptors: one for the output, then the descriptors for `main`.
        parent: process id of the fork server.
    """
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out, *own = handles
        for stream in (sys.stdout, sys.stderr):
            os.dup2(out, stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.close(out)
        for handle in own:
            os.set_inheritable(handle, False)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, wanted["name"].encode()[:_NAME_BYTES], 0, 0, 0)
        if "numpy.random" in sys.modules:  # unlike Python's `random`, it is not reseeded in a fork
            sys.modules["numpy.random"].seed()
        os.chdir(wanted["folder"])
        sys.path[:] = [wanted["folder"], *wanted["paths"]]
        os.environ[PATH] = os.pathsep.join(wanted["paths"])
        importlib.invalidate_caches()
        _do(wanted["module"], wanted["arguments"], own, parent)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: it would wait for torch's threads that wait for a peer, and other threads crash when the
        # interpreter ends.
        os._exit(code)


def _do(module: str, arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    sys.argv = [module, *arguments]
    importlib.import_module(module).main(arguments, handles, parent)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(int(sys.argv[1]))
    else:
        _, _module, _parent, _handles, *_arguments = sys.argv
        _do(_module, _arguments, [int(handle) for handle in _handles.split(",") if handle], int(_parent))

"""`python -m hocket.training.launch.fork_server_main HANDLE`: the process that has loaded torch and forks what it is asked for (fork_server.py).
With a module, a parent, handles and arguments: one process, where there is no nursery.

Rules of this file: a nursery loads what every worker loads and does nothing with it: no model, no device, no thread, nothing of the
user's. When the process that started it ends it sees the end of the socket and ends, and its workers with it, by the kernel's word.
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

# torch._dynamo is loaded by whoever makes an optimizer; the others by whoever reads a plan.
_LOADED = (
    "hocket.training.worker.worker",
    "hocket.training.launch.worker_main",
    "torch._dynamo",
    "pydantic.dataclasses",
    "ruamel.yaml.main",
)
_MAX_HANDLES = 8
_NAME_BYTES = 15  # so much of a process's name Linux keeps
_PR_SET_NAME = 15


def main(handle: int) -> None:
    """Load, then start what is asked for until the other end of the socket closes."""
    # Python 3.12 and later warn of threads: those of a numerical library, which sees to them when it is forked.
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    for name in _LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # nobody copies pages only because rubbish is looked for
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    with socket.socket(fileno=handle) as asker:
        while True:
            ready, _, _ = select.select([asker, woken], [], [])
            if woken in ready:
                woken.recv(MAX_MESSAGE_BYTES)
                _reap(running, asker)
            if asker in ready:
                message, handles, _, _ = socket.recv_fds(asker, MAX_MESSAGE_BYTES, _MAX_HANDLES)
                if not message:
                    signal.set_wakeup_fd(-1)  # the socket goes before this process does, and workers may end in between
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


def _reap(running: dict[int, int], asker: socket.socket) -> None:
    """Tell of every process that has ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _say(asker, {"number": running.pop(ended[0]), "code": os.waitstatus_to_exitcode(ended[1])})


def _say(asker: socket.socket, said: dict[str, int]) -> None:
    with suppress(BrokenPipeError):  # it is gone, which the next look shows
        asker.send(json.dumps(said).encode())


def _become(wanted: dict[str, Any], handles: list[int], parent: int) -> NoReturn:
    """Be the process that was asked for."""
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
        if "numpy.random" in sys.modules:  # it does not draw anew in a fork, as Python's own `random` does
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
        # Not sys.exit: threads of torch that wait for a peer would keep the process, and others do not survive an interpreter's end.
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

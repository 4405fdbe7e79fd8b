"""`python -m hocket.run.worker_main ORDERS.json`: one local worker, started by launch.py and not outliving it."""

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, WorkerLost
from hocket.run.failure import describe
from hocket.run.orders import Orders
from hocket.run.progress import Progress, State

_BEAT_S = 0.5
_PR_SET_PDEATHSIG = 1


def main(path: str) -> None:
    """Do what the orders say and leave the process, with the error's exit code if there is one."""
    orders = Orders.read(path)
    _die_with(orders.parent)
    # The watcher decides when to stop; a Ctrl-C meant for it shall not reach the worker as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if orders.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {orders.core})
    progress = Progress.open(Path(orders.folder, f"progress-{orders.rank}"))
    report = PipeReport(orders.report_to)
    threading.Thread(target=_beat, args=(progress, orders.control_from), daemon=True).start()
    code = 0
    try:
        _work(orders, progress, report)
        progress.state = State.FINISHED
    except BaseException as error:
        code = error.exit_code if isinstance(error, HocketError) else WorkerLost.exit_code
        report.send(describe(error, time.monotonic(), progress.place, orders.options.debug))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of torch that wait for a dead peer would keep the process.
    os._exit(code)


def _work(orders: Orders, progress: Progress, report: "PipeReport") -> None:
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from hocket.plan.plan import Plan
    from hocket.profile.job import load_job
    from hocket.run.work import Seat, work

    torch.set_num_threads(orders.options.threads)
    plan = Plan.read(Path(orders.folder, "plan.yaml"))
    job = load_job(orders.job)
    store = FileStore(str(Path(orders.folder, "meeting")), orders.workers)
    seat = Seat(orders.rank, orders.workers, orders.rank, store)
    work(job, plan, orders.options, seat, progress, report.send)


class PipeReport:
    """Reports to the watcher, a line each; from any thread. Blocks when the watcher is far behind."""

    def __init__(self, handle: int) -> None:
        self._handle, self._lock = handle, threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Send one report."""
        line = to_line(event)
        with self._lock, suppress(BrokenPipeError):  # the watcher is gone, and so shall this process be
            while line:
                line = line[os.write(self._handle, line) :]


def to_line(event: dict[str, Any]) -> bytes:
    """A report as one line of JSON; numbers that JSON does not know become null."""
    plain = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in event.items()}
    return json.dumps(plain, allow_nan=False).encode() + b"\n"


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel was told
        os._exit(1)


def _beat(progress: Progress, control: int) -> None:
    """Show that this process is alive; end it when the other end of the pipe closes."""
    while not select.select([control], [], [], _BEAT_S)[0]:
        progress.beats += 1
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])

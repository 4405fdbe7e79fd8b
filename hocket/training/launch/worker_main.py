"""One local worker, started by local.py and not outliving it.

When the watcher dies without a word, the first worker removes the run's folder and ends, as soon as it sees the end of a
pipe; the kernel kills the others, which a thread that holds the interpreter could keep from seeing it.
"""

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, WorkerLost
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState
from hocket.training.launch.cpu_affinity import stay_on
from hocket.training.launch.failures import describe
from hocket.training.launch.worker_spec import WorkerSpec, plan_file
from hocket.training.worker.monitor.collector import plain
from hocket.util.malloc import keep_freed_memory

_BEAT_S = 0.5
_PR_SET_PDEATHSIG = 1
_TRIES = 10


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """Follow the worker's orders and leave the process.

    The exit code is the error's, if there is an error.

    Arguments:
        arguments: the file of its orders. handles: open files, for reports and one that ends with the watcher. parent: id of the process that this one ends with.
    """
    orders, (report_to, control_from) = WorkerSpec.read(arguments[0]), handles
    _die_with(parent, orders)
    # The watcher decides when to stop; a Ctrl-C meant for it shall not reach the worker as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stay_on(orders.cores or None)
    progress = Heartbeat.open(Path(orders.folder, f"progress-{orders.rank}"))
    report = PipeReport(report_to)
    threading.Thread(target=_beat, args=(progress, control_from, orders), daemon=True).start()
    code = 0
    try:
        _work(orders, progress, report)
        progress.state = WorkerState.FINISHED
    except BaseException as error:
        code = error.exit_code if isinstance(error, HocketError) else WorkerLost.exit_code
        report.send(describe(error, time.monotonic(), progress.place, orders.options.debug))
    if _closed(control_from, 0):  # this worker may have lost its peers before its heart saw the pipe's end
        _leave_nothing(orders)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of torch that wait for a dead peer would keep the process.
    os._exit(code)


def _work(orders: WorkerSpec, progress: Heartbeat, report: "PipeReport") -> None:
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from hocket.planning.plan import Plan
    from hocket.training.worker.prepared import RankInfo
    from hocket.training.worker.worker import work

    torch.set_num_threads(orders.options.threads)
    keep_freed_memory()
    job = orders.job.make()
    store = FileStore(str(Path(orders.folder, "meeting")), orders.workers)
    seat = RankInfo(orders.rank, orders.workers, orders.rank, store)
    if orders.turns is not None:
        from hocket.training.calibrate.turns_worker import take_turns

        plans = [Plan.read(Path(orders.folder, plan_file(k))) for k in range(len(orders.turns.traces))]
        take_turns(job, plans, orders.turns, orders.options, seat, progress, report.send)
        return
    work(job, Plan.read(Path(orders.folder, plan_file(0))), orders.options, seat, progress, report.send)


class PipeReport:
    """Reports to the watcher, one a line, from any thread.

    Blocks when the watcher is far behind.
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._lock = handle, threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Send one report."""
        line = to_line(event)
        with self._lock, suppress(BrokenPipeError):  # the watcher is gone, and so shall this process be
            while line:
                line = line[os.write(self._handle, line) :]


def to_line(event: dict[str, Any]) -> bytes:
    """A report as one line of JSON."""
    return json.dumps(plain(event), allow_nan=False).encode() + b"\n"


def _die_with(parent: int, orders: WorkerSpec) -> None:
    """Have the kernel say when this process's parent ends, where the kernel can."""
    if sys.platform == "linux":
        # The first worker has to tidy up, for which it must run and not be stopped.
        number = signal.SIGCONT if orders.rank == 0 else signal.SIGKILL
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the kernel was told
        _leave_nothing(orders)
        os._exit(1)


def _closed(pipe: int, wait_s: float) -> bool:
    """True if the other end of an empty pipe closes within `wait_s` seconds."""
    return bool(select.select([pipe], [], [], wait_s)[0])


def _beat(progress: Heartbeat, control_from: int, orders: WorkerSpec) -> None:
    """Show that this process is alive; end it when the other end of the pipe closes."""
    while not _closed(control_from, _BEAT_S):
        progress.beats += 1
    _leave_nothing(orders)
    os._exit(1)


def _leave_nothing(orders: WorkerSpec) -> None:
    """Remove the folder of a run without watcher.

    Other workers may do the same, or still write there.
    """
    for _ in range(_TRIES):
        shutil.rmtree(orders.folder, ignore_errors=True)
        if not Path(orders.folder).exists():
            return

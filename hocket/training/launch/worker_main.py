"""One local worker; local.py starts it, and it ends with the watcher.

If the watcher dies, the first worker notices the end of a pipe, removes the run's folder and exits. Linux kills the
other workers. They could not rely on the pipe, because a thread that holds the interpreter lock may delay them.
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
    """Run a worker by its specification, and exit with the code of its error, or 0.

    Arguments:
        arguments: path of the worker's specification.
        handles: file descriptors of the pipe for reports, and of the pipe that closes when the watcher ends.
        parent: id of this process's parent; this process ends with it.
    """
    orders, (report_to, control_from) = WorkerSpec.read(arguments[0]), handles
    _die_with(parent, orders)
    # The watcher decides when to stop, so the worker ignores Ctrl-C.
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
    if _closed(
        control_from, 0
    ):  # this worker may have lost its peers before its heartbeat thread noticed the pipe's end
        _leave_nothing(orders)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: it would wait for torch's threads that wait for a dead peer.
    os._exit(code)


def _work(orders: WorkerSpec, progress: Heartbeat, report: "PipeReport") -> None:
    import torch
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from hocket.planning.plan import Plan
    from hocket.training.worker.prepared import RankInfo
    from hocket.training.worker.telemetry import Telemetry
    from hocket.training.worker.worker import work

    torch.set_num_threads(orders.options.threads)
    keep_freed_memory()
    job = orders.job.make()
    store = FileStore(str(Path(orders.folder, "meeting")), orders.workers)
    rank_info = RankInfo(orders.rank, orders.workers, orders.rank, store, orders.folder)
    telemetry = Telemetry(progress, report.send)
    if orders.turns is not None:
        from hocket.training.calibrate.turns_worker import take_turns

        plans = [Plan.read(Path(orders.folder, plan_file(k))) for k in range(len(orders.turns.traces))]
        take_turns(job, plans, orders.turns, orders.options, rank_info, telemetry)
        return
    work(job, Plan.read(Path(orders.folder, plan_file(0))), orders.options, rank_info, telemetry)


class PipeReport:
    """Sends reports to the watcher, one per line; thread-safe.

    `send` blocks while the pipe is full.
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._lock = handle, threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        """Send one report; do nothing if the watcher has ended."""
        line = to_line(event)
        with self._lock, suppress(BrokenPipeError):  # the watcher has ended, and this process will end too
            while line:
                line = line[os.write(self._handle, line) :]


def to_line(event: dict[str, Any]) -> bytes:
    """Write a report as one line of JSON."""
    return json.dumps(plain(event), allow_nan=False).encode() + b"\n"


def _die_with(parent: int, orders: WorkerSpec) -> None:
    """On Linux, ask for a signal to this process when its parent ends.

    If the parent has ended already, remove the run's folder and exit.
    """
    if sys.platform == "linux":
        # The first worker has to remove the folder, so it must run: SIGCONT resumes it if it is stopped.
        number = signal.SIGCONT if orders.rank == 0 else signal.SIGKILL
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # the parent had ended before the call
        _leave_nothing(orders)
        os._exit(1)


def _closed(pipe: int, wait_s: float) -> bool:
    """True if the other end of an empty pipe closes within `wait_s` seconds."""
    return bool(select.select([pipe], [], [], wait_s)[0])


def _beat(progress: Heartbeat, control_from: int, orders: WorkerSpec) -> None:
    """Count heartbeats; end the process when the watcher closes its end of a pipe.

    Arguments:
        control_from: file descriptor of that pipe.
    """
    while not _closed(control_from, _BEAT_S):
        progress.beats += 1
    _leave_nothing(orders)
    os._exit(1)


def _leave_nothing(orders: WorkerSpec) -> None:
    """Remove the folder of a run that has lost its watcher.

    It tries several times, because other workers may still write there, or remove it too.
    """
    for _ in range(_TRIES):
        shutil.rmtree(orders.folder, ignore_errors=True)
        if not Path(orders.folder).exists():
            return

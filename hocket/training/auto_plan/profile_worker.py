"""Process that profiles a job; profile_job.py starts it.

The process that trains loads neither torch nor the model, so that their memory is free again when the workers start.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, InputError
from hocket.profiling.profile import ModelProfile
from hocket.training.auto_plan.kept_files import KeptFiles, key_of
from hocket.training.auto_plan.profile_request import ProfileRequest, machine, sizes_to_measure, versions
from hocket.training.auto_plan.spare_processes import SpareProcesses
from hocket.training.launch.failures import describe
from hocket.training.launch.worker_main import PipeReport

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str], handles: Sequence[int], parent: int) -> None:
    """Profile a job by a request, report over a pipe, and exit with the code of the error, or 0.

    Arguments:
        arguments: path of the request.
        handles: file descriptor of the pipe for reports.
        parent: id of this process's parent; this process ends with it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent had ended before the call
        os._exit(1)
    report = PipeReport(handles[0])
    try:
        request = ProfileRequest.read(arguments[0])
        spare = SpareProcesses(request.neighbours, close=handles)
        report.send(profiled(request, report, spare))
    except BaseException as error:
        report.send(describe(error, time.monotonic(), "while the job was profiled"))
        os._exit(error.exit_code if isinstance(error, HocketError) else 1)


def profiled(request: ProfileRequest, report: PipeReport, spare: SpareProcesses) -> dict[str, Any]:
    """Find the kept profile of a job, or measure and keep one.

    Arguments:
        spare: forks for the neighbours of the request.

    Returns:
        The last report: the profile's path, whether it was measured, and the names of damaged kept files.
    """
    from hocket.profiling.measure.measure import measure
    from hocket.profiling.measure.request import MeasureRequest
    from hocket.training.auto_plan.describe_job import describe_job

    job = request.job.make()
    sizes = sizes_to_measure(job.batch_size, request.workers)
    measured_as = {"sizes": sizes, "threads": request.threads, "neighbours": request.neighbours}
    key = key_of({"job": describe_job(job), **measured_as, **machine(), **versions()})
    kept = KeptFiles(Path(request.folder or request.written), Path(request.written))
    path = kept.find("profile", key, ".json")
    if path is not None and not request.again and readable(path):
        return {"event": "profile", "path": str(path), "measured": False, "damaged": kept.damaged}

    def progress(done: int, total: int, what: str) -> None:
        report.send({"event": "progress", "done": done, "total": total, "what": what})

    settings = MeasureRequest(
        budget_s=request.budget_s,
        rounds=request.rounds,
        threads=request.threads,
        neighbours=request.neighbours,
        progress=progress,
        start=spare.start,
    )
    path = kept.keep("profile", key, measure(job, sizes, settings).to_json(), ".json")
    return {"event": "profile", "path": str(path), "measured": True, "damaged": kept.damaged}


def readable(path: Path) -> bool:
    """True if this version of Hocket can read a kept profile."""
    try:
        ModelProfile.read(path)
    except InputError:
        return False
    return True

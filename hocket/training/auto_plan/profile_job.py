"""Profile a job in a process of its own, which is forked from the fork server of the workers.

This file does not import torch. The process that trains stays small, and torch is loaded only once.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from hocket.errors import WorkerLost
from hocket.training.auto_plan.profile_request import ProfileRequest
from hocket.training.launch import fork_server
from hocket.training.launch.environment import worker_environment
from hocket.training.launch.failures import understand
from hocket.util.documents import parse_json
from hocket.util.files import write_atomic

# Modules that this process needs next: it imports them while the fork server imports torch.
_NEXT = ("hocket.planning.plan", "hocket.planning.load", "hocket.training.launch.local")

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class FoundProfile:
    """Profile of a job, kept or measured.

    Attributes:
        path: file of the profile.
        measured: True if it was measured now.
        damaged: names of damaged kept files.
    """

    path: Path
    measured: bool
    damaged: tuple[str, ...]


def profile_job(request: ProfileRequest, progress: Progress | None = None) -> FoundProfile:
    """Find the kept profile of a job, or measure one.

    Arguments:
        progress: called with (done, total, what) during a measurement.

    Raises:
        HocketError: the error of the measurement, or of the job's file.
        WorkerLost: the process ended without an answer.
    """
    with tempfile.TemporaryDirectory(prefix="hocket-profile-") as name:
        path = Path(name, "request.json")
        write_atomic(path, json.dumps(asdict(request)))
        for event in _reports(path, request.threads):
            if event["event"] == "error":
                raise understand(0, event, "the process that profiles").error
            if event["event"] == "profile":
                return FoundProfile(Path(event["path"]), event["measured"], tuple(event["damaged"]))
            if progress is not None:
                progress(event["done"], event["total"], event["what"])
    raise WorkerLost("profiling the job: the process ended without an answer; the system may be out of memory")


def _reports(request: Path, threads: int) -> Iterator[dict[str, Any]]:
    """Start the process, and yield its reports until it ends; it never outlives the iteration."""
    reports, report_to = os.pipe()
    with os.fdopen(reports, "rb") as stream:
        try:
            # The job's own output is shown on standard error, as in training.
            process = fork_server.start(
                "hocket.training.auto_plan.profile_worker",
                [str(request)],
                worker_environment(threads),
                out=2,
                handles=(report_to,),
                name="hocket-profile",
            )
        finally:
            os.close(report_to)
        try:
            for name in _NEXT:
                import_module(name)
            for line in stream:
                yield parse_json(line, "profiling process")
        finally:
            process.kill()
            process.wait()

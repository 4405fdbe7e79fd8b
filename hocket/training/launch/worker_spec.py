"""Worker specification: everything that a local worker process needs to know when it starts.

It names the job, the worker's rank, its cores and the options. The launcher writes it as a JSON file into the run's
folder, to which only this user has access.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.planning.plan import Plan
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.job.likeness import Likeness, check_likeness, likeness
from hocket.profiling.job.origin import NAMES
from hocket.training.worker.options import Options
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as


@dataclass(frozen=True)
class JobSpec:
    """The job, as a specification from which each worker creates it.

    Attributes:
        path: path of the job's file.
        names: names that the job may have in the file (profiling/job/origin.py).
        likeness: fingerprint of the given job; None if it was given as a file.
    """

    path: str
    names: tuple[str, ...] = NAMES
    likeness: Likeness | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @classmethod
    def of(cls, job: Job | Path) -> "JobSpec":
        """Describe a job for worker processes.

        Raises:
            InputError: another process cannot create the job.
        """
        if not isinstance(job, Job):
            return cls(str(job.absolute()))
        origin = job.origin
        return cls(str(origin.path), origin.names, likeness(job))

    def make(self) -> Job:
        """Create the job in this process, from its file.

        Raises:
            InputError: the file does not define the job, or defines another one.
        """
        made = load_job(self.path, self.names)
        if self.likeness is not None:
            check_likeness(made, self.likeness)
        return made


@dataclass(frozen=True)
class TurnsSpec:
    """Settings of several plans that the same workers train in turns.

    Attributes:
        steps: steps of one turn.
        traces: file for each plan's measured trace; empty for no trace.
        own_batch: True if each plan's batch size replaces the job's.
        benchmark_size: samples of the microbatch that is run between turns to measure the machine's pace; 0 for no
            measurement.
        benchmark_s: profiled time of the forward and backward of this microbatch, in seconds.
    """

    steps: int
    traces: tuple[str, ...]
    own_batch: bool = False
    benchmark_size: int = 0
    benchmark_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def plan_file(number: int) -> str:
    """Return the name of a plan's file in the run's folder; plans are counted from 0."""
    return f"plan-{number}.yaml"


def plan_text(plan: Plan) -> str:
    """Return the contents of a plan's file in the run's folder.

    It is JSON, which workers read much faster than other YAML. JSON has no infinite numbers; a plan with one is written
    as a plan file.
    """
    try:
        return json.dumps(plan.to_data(), allow_nan=False)
    except ValueError:
        return plan.to_yaml()


@dataclass(frozen=True)
class WorkerSpec:
    """Specification of one worker.

    Attributes:
        folder: the run's private folder, with the plan, the progress pages and the rendezvous file.
        cores: cores to which the worker is pinned; empty if it is not pinned.
        turns: settings for several plans that are trained in turns; None for one plan.
    """

    job: JobSpec
    folder: str
    rank: int
    workers: int
    options: Options
    cores: tuple[int, ...] = ()
    turns: TurnsSpec | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @classmethod
    def read(cls, path: str | Path) -> "WorkerSpec":
        """Read a specification file (JSON); unknown keys are refused.

        Raises:
            InputError: there is no such file, or its text is no valid specification.
        """
        return read_as(cls, parse_json(read_bytes(path), str(path)), str(path))

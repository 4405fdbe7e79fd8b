"""Worker specification: instructions for a local worker when it starts.

It is a JSON file in the run's private folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.profiling.job.job import Job, load_job
from hocket.profiling.job.likeness import Likeness, check_likeness, likeness
from hocket.profiling.job.origin import NAMES
from hocket.training.worker.options import Options
from hocket.util.documents import parse_json
from hocket.util.files import read_bytes
from hocket.util.schema import read_as


@dataclass(frozen=True)
class JobSpec:
    """The job that every worker makes for itself.

    Attributes:
        path: of its file; names: what to take from it (see Origin).
        likeness: of the job that was given; None where it was given as a file.
    """

    path: str
    names: tuple[str, ...] = NAMES
    likeness: Likeness | None = None

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @classmethod
    def of(cls, job: Job | Path) -> "JobSpec":
        """Description of a job for a worker process.

        Raises:
            InputError: no other process can make it again.
        """
        if not isinstance(job, Job):
            return cls(str(job.absolute()))
        origin = job.origin
        return cls(str(origin.path), origin.names, likeness(job))

    def make(self) -> Job:
        """The job.

        Raises:
            InputError: the file does not give it, or gives another one.
        """
        made = load_job(self.path, self.names)
        if self.likeness is not None:
            check_likeness(made, self.likeness)
        return made


@dataclass(frozen=True)
class TurnsSpec:
    """Settings of several plans that the same workers train in turns.

    Attributes:
        steps: of one turn; traces: where each plan's measured trace is written ("": nowhere).
        own_batch: whether each plan's batch size takes the place of the job's.
        kernel_size: samples of the microbatch that is trained between turns to measure the machine's pace; 0: none is.
        kernel_s: seconds of its forward and backward, as profiled.
    """

    steps: int
    traces: tuple[str, ...]
    own_batch: bool = False
    kernel_size: int = 0
    kernel_s: float = 0.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def plan_file(number: int) -> str:
    """The file of a run's plan in its folder; several are counted from 0."""
    return f"plan-{number}.yaml"


@dataclass(frozen=True)
class WorkerSpec:
    """Orders for one worker.

    Attributes:
        folder: the run's private folder, with the plan, the progress pages and the meeting file.
        cores: to stay on; none: wherever the system puts it.
        turns: if the folder has several plans, which are trained in turns.
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
        """Read orders strictly."""
        return read_as(cls, parse_json(read_bytes(path), str(path)), str(path))

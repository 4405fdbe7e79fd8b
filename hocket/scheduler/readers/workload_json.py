"""Workloads in JSON: Hocket's format (see workload.py), and plain job lists.

A plain list is the output of other generators. Its jobs have id, arrival_s, job_type, scale_factor, total_steps, and
an SLO as a multiple of duration_v100_s.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers._rows import json_bytes
from hocket.scheduler.simulation.workload import MOST_JOBS, Workload, check_ids, in_order, inside, parse_data
from hocket.util.documents import parse_json
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines


@dataclass(frozen=True)
class _Listed:
    id: int | str
    arrival_s: float
    job_type: str
    scale_factor: int
    total_steps: float
    duration_v100_s: float | None = None
    SLO: float | None = None
    priority_weight: float = 1.0

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def job(self) -> Job:
        if self.SLO is not None and self.duration_v100_s is None:
            raise InputError("duration_v100_s", "nothing", "a duration, because SLO is a multiple of it")
        slo_s = None if self.SLO is None or self.duration_v100_s is None else self.SLO * self.duration_v100_s
        return Job(
            str(self.id),
            self.job_type,
            self.total_steps,
            self.scale_factor,
            self.arrival_s,
            self.priority_weight,
            slo_s,
        )


def read(path: str | Path, table: ThroughputTable) -> Workload:
    """Read the jobs of a file.

    Arguments:
        table: throughput table that defines the job types.

    Raises:
        InputError: invalid JSON, or an invalid or unknown value, with the file, the job and the field.
    """
    text = json_bytes(path, 1 + MOST_JOBS)
    data = parse_json(text, str(path))
    with with_lines(text, str(path)):
        return _workload(data, path, table)


def _workload(data: Any, path: str | Path, table: ThroughputTable) -> Workload:
    if isinstance(data, list):
        if len(data) > MOST_JOBS:
            raise InputError(str(path), f"{len(data)} jobs", f"at most {MOST_JOBS}")
        jobs = []
        for k, row in enumerate(data):
            listed = read_as(_Listed, row, f"{path}: {k}")
            with inside(f"{path}: {k}"):
                jobs.append(listed.job())
        check_ids((job.id for job in jobs), lambda k: f"{path}: {k}: id")
        found = in_order(jobs, Path(path).name)
    else:
        found = parse_data(data, str(path))
        jobs = list(found.jobs)
    prefix = "" if isinstance(data, list) else "jobs."
    for k, job in enumerate(jobs):
        table.find(job.job_type, job.scale_factor, f"{path}: {prefix}{k}")
    return found

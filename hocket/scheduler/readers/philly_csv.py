"""Philly-style traces in CSV: timestamp, duration (seconds) and num_gpus.

A timestamp is such as 2017-10-09 07:01:55, in UTC, or has an offset such as -08:00. The traces have no models: job
types are drawn uniformly from the table, and steps are those of the duration on the reference type. Jobs that never
ran, with duration 0, are omitted.
Source: the trace of "Analysis of large-scale multi-tenant GPU clusters" (Jeon et al. 2019), in the columns of
Pollux's simulator; steps from durations as in section 5.7.1.
"""

from datetime import UTC, datetime
from pathlib import Path
from random import Random

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers._rows import MOST_BYTES, FileRow
from hocket.scheduler.readers._rows import table as rows_of
from hocket.scheduler.simulation.workload import Workload, in_order
from hocket.util.files import read_text

REQUIRED = ("timestamp", "duration", "num_gpus")


def read(path: str | Path, table: ThroughputTable, seed: int = 0, reference: str = "v100") -> Workload:
    """Read the jobs of a file, named by line; the earliest arrives at 0.

    A job's scale factor is the largest in the table that is at most its number of GPUs. Its type is drawn among the
    types with this scale factor.

    Arguments:
        table: throughput table that defines the job types.
        seed: seed of the drawn job types.
        reference: worker type on which a job takes its duration.

    Raises:
        InputError: an invalid row, with the file, the line and the field.
    """
    return parse(read_text(path, MOST_BYTES), path, table, seed, reference)


def parse(content: str, path: str | Path, table: ThroughputTable, seed: int = 0, reference: str = "v100") -> Workload:
    """Parse the content of a file: its jobs, named by line; the earliest arrives at 0.

    A job's scale factor is the largest in the table that is at most its number of GPUs. Its type is drawn among the
    types with this scale factor.

    Arguments:
        content: text of the CSV file.
        path: path of the file, for error messages.
        table: throughput table that defines the job types.
        seed: seed of the drawn job types.
        reference: worker type on which a job takes its duration.

    Raises:
        InputError: an invalid row, with the file, the line and the field.
    """
    rng = Random(seed)
    column = table.column.get((reference, True))
    if column is None:
        raise InputError("reference", repr(reference), f"one of {', '.join(table.types)}")
    able: dict[int, list[str]] = {}
    for k, (job_type, scale) in enumerate(table.kinds):
        if table.alone[k, column] > 0:
            able.setdefault(scale, []).append(job_type)
    found = []
    for row in rows_of(content, path, REQUIRED):
        at, duration_s, gpus = _time(row), row.number("duration"), row.whole("num_gpus", 1)
        if duration_s == 0:
            continue
        scale = max((s for s in able if s <= gpus), default=min(able))
        job_type = rng.choice(able[scale])
        steps = duration_s * table.steps_per_s(job_type, scale, reference, str(path))
        found.append((at, row, job_type, steps, scale))
    first = min((at for at, *_ in found), default=None)
    jobs = []
    for at, row, job_type, steps, scale in found:
        assert first is not None
        with row.inside():
            jobs.append(Job(str(row.line), job_type, steps, scale, (at - first).total_seconds()))
    return in_order(jobs, Path(path).name)


def _time(row: FileRow) -> datetime:
    text = row.text("timestamp")
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # the offset leads out of the years 1 to 9999
        place = row.place("timestamp")
        raise InputError(place, repr(text[:40]), "a time such as 2017-10-09 07:01:55") from None

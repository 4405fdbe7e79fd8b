"""Gavel's traces: one job per line, ten tab-separated fields.

Jobs are named by number, from 0. The SLO is a multiple of the job's duration on the reference type, or -1 for none.
Source: the traces of stanford-futuredata/gavel.
"""

from pathlib import Path

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers._rows import tabbed
from hocket.scheduler.simulation.workload import Workload, in_order

FIELDS = (
    "job_type", "command", "directory", "steps_flag", "needs_data_directory", "steps", "scale_factor", "weight", "slo",
    "arrived_s",
)  # fmt: skip


def read(path: str | Path, table: ThroughputTable, reference: str = "v100") -> Workload:
    """Read the jobs of a trace.

    Arguments:
        table: throughput table that defines the job types.
        reference: worker type of the durations in SLOs.

    Raises:
        InputError: an invalid row, with the file, the line and the field.
    """
    jobs = []
    for number, row in enumerate(tabbed(path, FIELDS)):
        job_type, scale = row.text("job_type"), row.whole("scale_factor", 1)
        table.find(job_type, scale, f"{path}, line {row.line}")
        steps = row.number("steps", above=True)
        factor = row.number("slo", least=-1.0)
        if factor != -1.0 and factor <= 0:
            raise InputError(row.place("slo"), f"{factor:g}", "a number > 0, or -1 for none")
        slo_s = None
        if factor > 0:
            slo_s = factor * steps / table.steps_per_s(job_type, scale, reference, f"{path}, line {row.line}")
        arrived_s, weight = row.number("arrived_s"), row.number("weight", above=True)
        with row.inside():
            jobs.append(Job(str(number), job_type, steps, scale, arrived_s, weight, slo_s))
    return in_order(jobs, Path(path).name)

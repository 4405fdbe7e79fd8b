"""Sia's and Pollux's workloads in CSV: name, time, application, num_replicas.

Time is in seconds. The files contain neither job lengths nor throughputs on Gavel's workers. Therefore each
application maps to a job type of the table and to a size, both configurable. Default sizes are the logarithmic
midpoints of the papers' classes of GPU hours (small up to 1, medium up to 10, large up to 100, extra large above);
default job types are models of the same task.
Source: Pollux (OSDI '21) section 5.1, Sia (SOSP '23) section 4.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import InputError, nearest
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers._rows import MOST_BYTES
from hocket.scheduler.readers._rows import table as rows_of
from hocket.scheduler.simulation.workload import Workload, check_ids, in_order
from hocket.util.files import read_text

REQUIRED = ("name", "time", "application", "num_replicas")


@dataclass(frozen=True)
class Application:
    """Job type of an application, and its work in worker-hours.

    Hours are of one worker of the reference type.
    """

    job_type: str
    gpu_hours: float


APPLICATIONS: Mapping[str, Application] = {
    "cifar10": Application("ResNet-18 (batch size 128)", 0.3),
    "ncf": Application("Recommendation (batch size 2048)", 0.3),
    "bert": Application("Transformer (batch size 64)", 3.0),
    "deepspeech2": Application("LM (batch size 20)", 3.0),
    "yolov3": Application("CycleGAN", 30.0),
    "imagenet": Application("ResNet-50 (batch size 64)", 300.0),
}


def read(
    path: str | Path,
    table: ThroughputTable,
    applications: Mapping[str, Application] = APPLICATIONS,
    reference: str = "v100",
) -> Workload:
    """Read the jobs of a file.

    A job's scale factor is the largest of its job type that is at most its number of replicas.

    Arguments:
        table: throughput table that defines the job types.
        applications: job type and worker-hours of each application, by name.
        reference: name of the worker type for which worker-hours are given.

    Raises:
        InputError: an invalid row or an unknown application, with the file, the line and the field.
    """
    return parse(read_text(path, MOST_BYTES), path, table, applications, reference)


def parse(
    content: str,
    path: str | Path,
    table: ThroughputTable,
    applications: Mapping[str, Application] = APPLICATIONS,
    reference: str = "v100",
) -> Workload:
    """Parse the content of a workload file.

    A job's scale factor is the largest of its job type that is at most its number of replicas.

    Arguments:
        content: text of the CSV file.
        path: path of the file, for error messages. Its name becomes the name of the workload.
        table: throughput table that defines the job types.
        applications: job type and worker-hours of each application, by name.
        reference: name of the worker type for which worker-hours are given.

    Raises:
        InputError: an invalid row or an unknown application, with the file, the line and the field.
    """
    jobs, places = [], []
    for row in rows_of(content, path, REQUIRED):
        name = row.text("application")
        if name not in applications:
            known = f"one of {', '.join(sorted(applications))}"
            raise InputError(row.place("application"), repr(name[:40]), known, nearest(name, applications))
        stands = applications[name]
        replicas = row.whole("num_replicas", 1)
        known_scales = table.scale_factors(stands.job_type) or (1,)
        scale = max((s for s in known_scales if s <= replicas), default=known_scales[0])
        place = f"{path}, line {row.line}"
        steps = table.steps_per_s(stands.job_type, scale, reference, place) * stands.gpu_hours * 3600 / scale
        job_id, arrived_s = row.text("name"), row.number("time")
        with row.inside():
            jobs.append(Job(job_id, stands.job_type, steps, scale, arrived_s))
        places.append(row.place("name"))
    check_ids((job.id for job in jobs), lambda k: places[k])
    return in_order(jobs, Path(path).name)

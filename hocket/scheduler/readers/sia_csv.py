"""Sia's and Pollux's workloads: a CSV with name, time (seconds), application and num_replicas.

They say neither how long a job is nor what it does on Gavel's workers: each application stands for a job type of the table and
for a size, which are arguments. The sizes by default are the middles, on a logarithmic scale, of the papers' classes of GPU
hours (small to 1, medium to 10, large to 100, extra large above); the job types, models of the same task.
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
    """What an application stands for: a job type, and hours of work of one worker of the reference type."""

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
    """The jobs of a file.

    A job asks for as many workers as the largest scale factor of its job type that is not above its replicas.

    Raises:
        InputError: a wrong row or an unknown application, with file, line and field.
    """
    return parse(read_text(path, MOST_BYTES), path, table, applications, reference)


def parse(
    content: str,
    path: str | Path,
    table: ThroughputTable,
    applications: Mapping[str, Application] = APPLICATIONS,
    reference: str = "v100",
) -> Workload:
    """The jobs of a file's content, otherwise as `read`."""
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

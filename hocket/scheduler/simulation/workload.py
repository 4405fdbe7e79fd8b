"""Workload: the jobs of a simulation.

as_text(workload) and parse(text, place) are inverses. Other formats are in readers/.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Entity
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.util.documents import parse_json, seems
from hocket.util.schema import read_as
from hocket.util.source_lines import with_lines

FORMAT = "hocket-workload-1"
MOST_JOBS = 1_000_000
_KEYS = ("format", "origin", "entities", "jobs")


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival.

    Attributes:
        jobs: jobs with unique names, sorted by arrival.
        origin: source of the jobs, such as a file or a generator with its seed.
        entities: owners of jobs, for hierarchical policies; unique names.
    """

    jobs: tuple[Job, ...]
    origin: str = ""
    entities: tuple[Entity, ...] = ()

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        check_ids((job.id for job in self.jobs), lambda k: f"jobs.{k}.id")
        check_ids(
            (entity.name for entity in self.entities), lambda k: f"entities.{k}.name", "entity of this name", "names"
        )
        before_s = 0.0
        for k, job in enumerate(self.jobs):
            if job.arrived_s < before_s:
                found = f"{job.arrived_s:g}, after a job that arrived at {before_s:g}"
                raise InputError(f"jobs.{k}.arrived_s", found, "jobs in order of arrival")
            before_s = job.arrived_s

    def rows(self, table: ThroughputTable) -> np.ndarray:
        """Row index in a table of each job's kind; shape (jobs,).

        Raises:
            InputError: the table does not have the kind of a job.
        """
        found = [table.find(job.job_type, job.scale_factor, f"job {job.id}") for job in self.jobs]
        return np.array(found, dtype=np.int64)

    def part(self, count: int) -> "Workload":
        """Workload of the first `count` jobs."""
        return replace(self, jobs=self.jobs[:count])


def check_ids(
    ids: Iterable[str], place_of: Callable[[int], str], what: str = "job of this id", which: str = "ids"
) -> None:
    """Refuse two jobs with the same id.

    Arguments:
        place_of: function from an index to the location of its id.
        what: noun for the owner of the id, for the message.
        which: plural noun for the ids, for the message.

    Raises:
        InputError: at the second occurrence.
    """
    seen: set[str] = set()
    for k, name in enumerate(ids):
        if name in seen:
            raise InputError(place_of(k), f"{name!r}, a second {what}", f"unique {which}")
        seen.add(name)


def in_order(jobs: Sequence[Job], origin: str = "") -> Workload:
    """Workload from jobs in any order; simultaneous arrivals keep their order."""
    return Workload(tuple(sorted(jobs, key=lambda job: job.arrived_s)), origin)


def as_text(workload: Workload) -> str:
    """JSON text with one job per line; default values are omitted."""
    usual = {f.name: f.default for f in fields(Job)}
    rows = [{k: v for k, v in asdict(job).items() if v != usual[k]} for job in workload.jobs]
    lines = ",\n".join(json.dumps(row, separators=(", ", ": ")) for row in rows)
    entities = f'"entities": {json.dumps([asdict(own) for own in workload.entities])}, ' if workload.entities else ""
    head = f'{{"format": "{FORMAT}", "origin": {json.dumps(workload.origin)}, {entities}"jobs": ['
    return f"{head}\n{lines}\n]}}\n" if rows else f"{head}]}}\n"


def parse(text: str | bytes, place: str) -> Workload:
    """Parse the text of `as_text`.

    Arguments:
        place: name of the text, such as a file name, for error messages.

    Raises:
        InputError: not a valid workload; the message names `place`, the job and the field.
    """
    with with_lines(text, place):
        return parse_data(parse_json(text, place), place)


def parse_data(data: Any, place: str) -> Workload:
    """Workload from parsed JSON.

    Raises:
        InputError: not a valid workload; the message names `place`, the job and the field.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        snapshot = isinstance(data, dict) and "worker_types" in data
        step = (
            "Use `hocket cluster solve` for a snapshot."
            if snapshot
            else "See docs/reference/scheduler-files.md for the format."
        )
        raise InputError(place, seems(data), f"a workload, of format: {FORMAT}", step)
    jobs = data.get("jobs")
    if not isinstance(jobs, list):
        raise InputError(f"{place}: jobs", type(jobs).__name__, "a list of jobs")
    if len(jobs) > MOST_JOBS:
        raise InputError(f"{place}: jobs", f"{len(jobs)}", f"at most {MOST_JOBS}")
    entities = data.get("entities", [])
    if not isinstance(entities, list):
        raise InputError(f"{place}: entities", type(entities).__name__, "a list of entities")
    unknown = next((key for key in data if key not in _KEYS), None)
    if unknown is not None:
        raise InputError(place, f"unknown key {unknown!r}", f"one of {', '.join(_KEYS)}")
    if not isinstance(data.get("origin", ""), str):
        raise InputError(f"{place}: origin", type(data["origin"]).__name__, "a text")
    found = tuple(read_as(Job, row, f"{place}: jobs.{k}") for k, row in enumerate(jobs))
    teams = tuple(read_as(Entity, row, f"{place}: entities.{k}") for k, row in enumerate(entities))
    with inside(place):
        return Workload(found, data.get("origin", ""), teams)


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Context manager that prefixes the place of errors, such as with a file name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error.place}", error.found, error.expected, error.next_step) from None

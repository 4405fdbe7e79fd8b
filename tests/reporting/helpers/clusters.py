"""Runs small enough to work out by hand, that the tests of cluster reports draw."""

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.simulation.metrics import ClusterRun, JobRecord, Span

TYPES = (WorkerType("fast", 2, 2, 3.0), WorkerType("slow", 2, 1, 1.0))


def record(
    job: Job, started_s: float | None, finished_s: float | None, worker_s: tuple[float, float], refused: str = ""
) -> JobRecord:
    """Return the record of a job, at the prices of the worker types.

    The job runs 10 steps per second on a fast worker and 5 on a slow worker.
    """
    cost = sum(s / 3600 * t.price_usd_per_hour for s, t in zip(worker_s, TYPES, strict=True))
    return JobRecord(job, (10.0, 5.0), started_s, finished_s, worker_s, cost, 0, refused)


def span(job: int, kind: int, began_s: float, ended_s: float) -> Span:
    """A lease of one worker at its type's price."""
    return Span((job,), kind, 1, began_s, ended_s, (ended_s - began_s) / 3600 * TYPES[kind].price_usd_per_hour)


def pair(entities: tuple[str, str] = ("red", "blue")) -> ClusterRun:
    """Return a run of two jobs on two workers, and one refused job.

    Job a holds a fast worker from 0 s to 60 s. Job b arrives at 20 s and holds a slow worker from 40 s to 100 s. Job c
    asks for too many workers.
    """
    a, b = Job("a", "m", 600.0, entity=entities[0]), Job("b", "m", 300.0, 1, 20.0, entity=entities[1])
    records = (
        record(a, 0.0, 60.0, (60.0, 0.0)),
        record(b, 40.0, 100.0, (0.0, 60.0)),
        record(Job("c", "m", 1.0, 9, 30.0), None, None, (0.0, 0.0), "asks for 9 workers"),
    )
    spans = span(0, 0, 0.0, 60.0), span(1, 1, 40.0, 100.0)
    return ClusterRun(TYPES, records, spans, 100.0, 10, 3, (200.0, 200.0), ("something odd",))


def slower() -> ClusterRun:
    """Return a run of the same jobs, one after the other on the slow worker."""
    a, b = Job("a", "m", 600.0, entity="red"), Job("b", "m", 300.0, 1, 20.0, entity="blue")
    records = (record(a, 0.0, 120.0, (0.0, 120.0)), record(b, 120.0, 180.0, (0.0, 60.0)))
    spans = span(0, 1, 0.0, 120.0), span(1, 1, 120.0, 180.0)
    return ClusterRun(TYPES, records, spans, 180.0, 18, 3, (360.0, 360.0))


def empty() -> ClusterRun:
    """No jobs."""
    return ClusterRun(TYPES, (), (), 0.0, 0, 0, (0.0, 0.0))


def stuck() -> ClusterRun:
    """A job that began, and was never finished."""
    records = (record(Job("a", "m", 1e9), 10.0, None, (30.0, 0.0)),)
    return ClusterRun(TYPES, records, (span(0, 0, 10.0, 40.0),), 100.0, 10, 1, (200.0, 200.0))


def crowd(count: int, length_s: float = 50.0) -> ClusterRun:
    """Return a run of `count` jobs, one every 10 s, each on its own worker.

    The jobs belong to three entities in turn.
    """
    types = (WorkerType("fast", 9),)
    records, spans = [], []
    for k in range(count):
        began_s, ended_s = 10.0 * k, 10.0 * k + length_s + k % 7
        job = Job(str(k), "m", 100.0, 1, began_s, entity=f"team {k % 3}")
        records.append(JobRecord(job, (1.0,), began_s, ended_s, (ended_s - began_s,), 0.0, 0))
        spans.append(Span((k,), 0, 1, began_s, ended_s))
    end_s = max((s.ended_s for s in spans), default=0.0)
    return ClusterRun(types, tuple(records), tuple(spans), end_s, count, count, (9 * end_s,))

"""Metrics of a cluster run, from the record of each job.

    JCT         seconds from a job's arrival to its last step
    rho         JCT over the JCT with one n-th of every worker type, n the number of jobs present at each moment
    queueing    seconds from a job's arrival to its first start
    makespan    seconds from the first arrival to the last step of all jobs

Source: Narayanan's dissertation, sections 5.4.2 (finish-time fairness) and 5.7.3; Jain's index: Jain, Chiu and Hawe
1984.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hocket.scheduler.model.job import Job
from hocket.scheduler.model.worker_types import WorkerType


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Times, held workers, cost and preemptions of one job in a run.

    Attributes:
        throughputs: steps per second alone, by worker type, on as few servers as possible.
        started_s, finished_s: first start and last step; None if it did not happen.
        worker_s: worker-seconds held, by type; each job of a pair counts half.
        cost_usd: cost of these worker-seconds, at the prices of each moment.
        preemptions: number of times the job left its workers before completion.
        refused: reason why the job could not run, if any.
    """

    job: Job
    throughputs: tuple[float, ...]
    started_s: float | None
    finished_s: float | None
    worker_s: tuple[float, ...]
    cost_usd: float
    preemptions: int
    refused: str = ""


class Span(NamedTuple):
    """Ended lease.

    The fields are the record indices of its jobs, the index of the worker type, the number of workers, the start and
    end in seconds, and the cost in dollars.
    """

    jobs: tuple[int, ...]
    type: int
    workers: int
    began_s: float
    ended_s: float
    cost_usd: float = 0.0


@dataclass(frozen=True, eq=False)
class ClusterRun:
    """Result of a simulation or of a service run.

    Attributes:
        records: outcomes in order of arrival; jobs that arrived after the end are omitted.
        spans: leases, in the order in which they ended.
        ended_s: end of the run.
        rounds, allocations: number of rounds, and of calls of the policy.
        capacity_s: available worker-seconds, by type.
        notes: unusual occurrences.
        prices: price changes as (time, type, new dollars per hour of one worker); prices at time 0 are in `types`.
    """

    types: tuple[WorkerType, ...]
    records: tuple[JobRecord, ...]
    spans: tuple[Span, ...]
    ended_s: float
    rounds: int
    allocations: int
    capacity_s: tuple[float, ...]
    notes: tuple[str, ...] = ()
    prices: tuple[tuple[float, int, float], ...] = ()


@dataclass(frozen=True)
class ClusterSummary:
    """Metrics of a cluster run.

    The fields from `jobs` to `with_slo` cover the jobs that the caller of `summary` selects. The other fields cover
    the whole run.

    Attributes:
        jobs, finished, refused: number of selected jobs; of these, finished jobs and jobs that could not run.
        avg_jct_s, makespan_s, avg_rho, max_rho: metrics of finished jobs; None if no job finished.
        jct_percentiles_s: JCT of finished jobs, by percentile: p50, p90, p95, p99; None if no job finished.
        avg_queueing_s: mean queueing time of started jobs; None if no job started.
        slo_violations, with_slo: number of jobs that missed their SLO or are late, and of jobs with an SLO.
        utilization: worker-seconds held by leases, as a fraction of the available ones.
        utilization_by_type: the same fraction, by name of the worker type.
        rounds: number of scheduling rounds.
        allocations: number of calls of the policy.
        notes: unusual occurrences.
    """

    jobs: int
    finished: int
    refused: int
    avg_jct_s: float | None
    jct_percentiles_s: dict[str, float | None]
    makespan_s: float | None
    avg_rho: float | None
    max_rho: float | None
    avg_queueing_s: float | None
    preemptions: int
    slo_violations: int
    with_slo: int
    utilization: float
    utilization_by_type: dict[str, float]
    cost_usd: float
    rounds: int
    allocations: int
    notes: tuple[str, ...] = field(default=())


def summary(run: ClusterRun, first: int = 0, last: int | None = None) -> ClusterSummary:
    """Compute all metrics of a run.

    Arguments:
        first, last: range of record indices for job metrics, `last` excluded; None for the end. The steady state in
            section 5.7.1 of Narayanan's dissertation, for example, is jobs 4000 to 5000.
    """
    chosen = run.records[first:last]
    jct, rho = jct_s(chosen), rhos(run, first, last)
    used = worker_seconds(run)
    waits = queueing_s(chosen)
    capacity = np.array(run.capacity_s)
    return ClusterSummary(
        len(chosen),
        len(jct),
        sum(1 for r in chosen if r.refused),
        _mean(jct),
        {f"p{q}": float(np.percentile(jct, q)) if len(jct) else None for q in (50, 90, 95, 99)},
        makespan_s(chosen) if len(jct) else None,
        _mean(rho),
        float(rho.max()) if len(rho) else None,
        _mean(waits),
        sum(r.preemptions for r in chosen),
        sum(1 for r in chosen if violates(r, run.ended_s)),
        sum(1 for r in chosen if r.job.slo_s is not None),
        float(used.sum() / capacity.sum()) if capacity.sum() else 0.0,
        {t.name: float(u / c) if c else 0.0 for t, u, c in zip(run.types, used, capacity, strict=True)},
        float(sum(r.cost_usd for r in run.records)),
        run.rounds,
        run.allocations,
        run.notes,
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def jct_s(records: Sequence[JobRecord]) -> np.ndarray:
    """JCTs of the finished jobs, in seconds."""
    return np.array([r.finished_s - r.job.arrived_s for r in records if r.finished_s is not None])


def queueing_s(records: Sequence[JobRecord]) -> np.ndarray:
    """Queueing times of the started jobs, in seconds."""
    return np.array([r.started_s - r.job.arrived_s for r in records if r.started_s is not None])


def makespan_s(records: Sequence[JobRecord]) -> float:
    """Seconds from first arrival to last completion; 0 if no job completed."""
    ends = [r.finished_s for r in records if r.finished_s is not None]
    return max(ends) - min(r.job.arrived_s for r in records) if ends else 0.0


def cdf(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted values, and the fraction of values at or below each."""
    rising = np.sort(values)
    return rising, np.arange(1, len(rising) + 1) / max(1, len(rising))


def violates(record: JobRecord, now_s: float) -> bool:
    """True if a job missed its SLO, or is unfinished and already late.

    Arguments:
        now_s: current time, for unfinished jobs.
    """
    if record.job.slo_s is None:
        return False
    ended_s = now_s if record.finished_s is None else record.finished_s
    return ended_s > record.job.arrived_s + record.job.slo_s


def worker_seconds(run: ClusterRun) -> np.ndarray:
    """Worker-seconds held by leases, by worker type; shape (types,)."""
    found = np.zeros(len(run.types))
    for span in run.spans:
        found[span.type] += (span.ended_s - span.began_s) * span.workers
    return found


def rhos(run: ClusterRun, first: int = 0, last: int | None = None) -> np.ndarray:
    """Finish-time fairness of each finished job; below 1 is better than isolated.

    The isolated share of a job of s workers, among n jobs, is N / (n s) of its time on each type of N workers, capped
    at all of its time. If the run ends before a job would have completed alone, the number of jobs stays constant
    after the end.
    """
    times, counts = population(run)
    workers = np.array([t.workers for t in run.types], dtype=float)
    by_scale: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    found = []
    for record in run.records[first:last]:
        scale = record.job.scale_factor
        speed = float(np.dot(record.throughputs, np.where(workers >= scale, workers, 0.0)))
        if record.finished_s is None or speed <= 0:
            continue
        if scale not in by_scale:
            share = 1 / np.maximum(counts * scale, workers.sum())
            by_scale[scale] = share, np.concatenate([[0.0], np.cumsum(np.diff(times) * share[:-1])])
        arrived_s = record.job.arrived_s
        alone_s = _reach(times, *by_scale[scale], arrived_s, record.job.steps / speed) - arrived_s
        found.append((record.finished_s - arrived_s) / alone_s)
    return np.array(found)


def population(run: ClusterRun) -> tuple[np.ndarray, np.ndarray]:
    """Times at which the number of present jobs changes, and the number from then on.

    Refused jobs are not counted. The number is at least 1.
    """
    there = [r for r in run.records if not r.refused]
    came = np.array([r.job.arrived_s for r in there])
    left = np.array([r.finished_s for r in there if r.finished_s is not None])
    times = np.unique(np.concatenate([came, left, [0.0]]))
    counts = np.searchsorted(np.sort(came), times, "right") - np.searchsorted(np.sort(left), times, "right")
    return times, np.maximum(counts, 1)


def _reach(times: np.ndarray, rate: np.ndarray, total: np.ndarray, start_s: float, amount: float) -> float:
    """Time at which an amount has accumulated since a start.

    Arguments:
        times: times at which the rate changes.
        rate: rate from each of these times on.
        total: accumulated amount at each of these times.
        start_s: start of the accumulation.
        amount: amount to accumulate.
    """
    at = int(np.searchsorted(times, start_s, "right")) - 1
    goal = total[at] + (start_s - times[at]) * rate[at] + amount
    at = int(np.searchsorted(total, goal, "right")) - 1
    return float(times[at] + (goal - total[at]) / rate[at])


def held(run: ClusterRun, edges_s: np.ndarray) -> np.ndarray:
    """Worker-seconds that each job held between consecutive edges.

    Each job of a pair counts half. For figures such as 5.12 and 5.13 of Narayanan's dissertation.

    Arguments:
        edges_s: ascending times, in seconds.

    Returns:
        Shape (edges - 1, records, types).
    """
    found = np.zeros((len(edges_s) - 1, len(run.records), len(run.types)))
    for sharing in (1, 2):
        spans = [span for span in run.spans if len(span.jobs) == sharing]
        if spans and len(edges_s) > 1:
            _add_held(found, spans, edges_s)
    return found


def _add_held(found: np.ndarray, spans: Sequence[Span], edges_s: np.ndarray) -> None:
    """Add the worker-seconds of leases with equally many jobs.

    All leases are cut at the edges in one vectorized step.

    Arguments:
        found: result of `held`, which is updated.
        spans: the leases.
    """
    began_s, ended_s = np.array([s.began_s for s in spans]), np.array([s.ended_s for s in spans])
    low = np.clip(np.searchsorted(edges_s, began_s, "right") - 1, 0, None)
    high = np.minimum(len(edges_s) - 1, np.searchsorted(edges_s, ended_s, "left"))
    pieces = np.maximum(0, high - low)
    lease = np.repeat(np.arange(len(spans)), pieces)
    bins = np.arange(len(lease)) - np.repeat(np.cumsum(pieces) - pieces, pieces) + low[lease]
    time_s = np.minimum(ended_s[lease], edges_s[bins + 1]) - np.maximum(began_s[lease], edges_s[bins])
    jobs = np.array([s.jobs for s in spans])
    amount = np.maximum(0.0, time_s) * (np.array([s.workers for s in spans]) / jobs.shape[1])[lease]
    kinds = np.array([s.type for s in spans])[lease]
    for column in jobs.T:
        np.add.at(found, (bins, column[lease], kinds), amount)


def fairness(run: ClusterRun, edges_s: np.ndarray) -> np.ndarray:
    """Jain's index of attained service over weight, between consecutive edges.

    Attained service is worker-seconds held. Only jobs present in the whole interval count. The index is 1 if all had
    the same service, 1 / n if one of n jobs had everything, and 1 with fewer than two jobs.

    Arguments:
        edges_s: ascending times, in seconds.

    Returns:
        Shape (edges - 1,).
    """
    service = held(run, edges_s).sum(axis=2) / np.array([r.job.weight for r in run.records])
    came = np.array([r.job.arrived_s for r in run.records])
    left = np.array([run.ended_s if r.finished_s is None else r.finished_s for r in run.records])
    runs = np.array([not r.refused for r in run.records], dtype=bool)
    found = np.ones(len(edges_s) - 1)
    for b in range(len(found)):
        own = service[b, runs & (came <= edges_s[b]) & (left >= edges_s[b + 1])]
        if len(own) > 1 and own.any():
            found[b] = own.sum() ** 2 / (len(own) * (own**2).sum())
    return found

"""Trace generator: continuous and static traces of Gavel's simulations.

Job types are drawn uniformly from the table. A job takes 10^x minutes on one worker of the reference type (or on as
many as its scale factor). x is uniform in [1.5, 3] with probability 80 % and in [3, 4] with 20 %; steps follow from
throughputs. With `multiple`, 70 % of the jobs need one worker, 25 % need 2 to 4, and 5 % need 8. Arrivals are a
Poisson process. Draws follow the order of the authors' generators, so a seed gives the same trace as theirs. The
dissertation does not divide the 25 %; as in the authors' generators, 10 % of all jobs need 2 workers and 15 % need 4.
Source: Narayanan's dissertation, section 5.7.1; SLOs and priorities from section 5.7.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log
from random import Random

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.simulation.workload import MOST_JOBS, Workload

_SLOS = ((0.33, 1.2), (0.67, 2.0), (1.0, 10.0))  # upper limit of the draw; multiple of the duration
_HIGH_PRIORITY = 5.0
_SCALES = (1, 2, 4, 8)  # numbers of workers drawn by _scale
DAYS_S = tuple(86400.0 * days for days in (0.5, 1.0, 2.0, 4.0, 8.0))


@dataclass(frozen=True)
class Draws:
    """Distributions of the drawn jobs.

    Attributes:
        multiple: True to include multi-worker jobs.
        priorities: True to give a fifth of the jobs five times the weight.
        slos: True to give each job an SLO of 1.2, 2 or 10 times its duration.
        job_types: job types to draw from; empty for all of the table.
        durations_s: durations to draw from uniformly, for jobs with one worker; empty for the distribution of section
            5.7.1.
        reference: worker type on which a job takes its duration.
    """

    multiple: bool = False
    priorities: bool = False
    slos: bool = False
    job_types: Sequence[str] = ()
    durations_s: Sequence[float] = ()
    reference: str = "v100"


# Workload of the cost policies: ResNet-50 has the most throughput per dollar on a V100, A3C on a K80.
COST = Draws(slos=True, job_types=("ResNet-50 (batch size 64)", "A3C"), durations_s=DAYS_S)


def continuous(table: ThroughputTable, count: int, per_hour: float, seed: int, draws: Draws | None = None) -> Workload:
    """Jobs that arrive as a Poisson process, the first at time 0.

    Arguments:
        count: number of jobs.
        per_hour: average number of jobs per hour.

    Raises:
        InputError: a rate <= 0, a count out of range, an unknown job type, or a table without the drawn kinds.
    """
    if not (isfinite(per_hour) and per_hour > 0):
        raise InputError("per_hour", str(per_hour), "a number > 0")
    return _jobs(table, count, 1 / (3600 / per_hour), seed, draws or Draws(), f"continuous, {per_hour:g} jobs an hour")


def static(table: ThroughputTable, count: int, seed: int, draws: Draws | None = None) -> Workload:
    """Jobs that all arrive at time 0.

    Arguments:
        count: number of jobs.

    Raises:
        InputError: a count out of range, an unknown job type, or a table without the drawn kinds.
    """
    return _jobs(table, count, None, seed, draws or Draws(), "static")


def _jobs(table: ThroughputTable, count: int, per_s: float | None, seed: int, draws: Draws, origin: str) -> Workload:
    if not 0 <= count <= MOST_JOBS:
        raise InputError("count", str(count), f"a number of jobs, 0 to {MOST_JOBS}")
    job_types = draws.job_types or table.job_types
    _check(table, job_types, draws)
    rng, arrivals, slos = Random(seed + 2), Random(seed + 3), Random(seed + 6)
    jobs, now_s = [], 0.0
    for number in range(count):
        scale = _scale(rng.uniform(0, 1)) if not draws.durations_s else 1
        duration_s = _duration(rng) if not draws.durations_s else rng.choice(draws.durations_s)
        scale = scale if draws.multiple else 1
        job_type = rng.choice(job_types)
        while (job_type, scale) not in table.row:
            job_type = rng.choice(job_types)
        weight = _HIGH_PRIORITY if draws.priorities and rng.uniform(0, 1) <= 0.2 else 1.0
        steps = duration_s * table.steps_per_s(job_type, scale, draws.reference, f"job {number}")
        slo_s = duration_s * _slo(slos.uniform(0, 1)) if draws.slos else None
        jobs.append(Job(str(number), job_type, steps, scale, now_s, weight, slo_s))
        if per_s is not None:
            now_s += -log(1.0 - arrivals.random()) / per_s
    shape = "several workers" if draws.multiple else "one worker"
    return Workload(tuple(jobs), f"{origin}, {shape}, seed {seed}")


def _check(table: ThroughputTable, job_types: Sequence[str], draws: Draws) -> None:
    """Reject a table without throughputs for a draw, which would be repeated forever."""
    for job_type in job_types:
        scales = table.scale_factors(job_type) if (job_type, 1) not in table.row else ()
        if scales:
            found = f"{job_type} on {' and '.join(map(str, scales))} workers only"
            raise InputError("throughputs", found, "each job type on one worker, too")
        table.steps_per_s(job_type, 1, draws.reference, "draws")
    for scale in _SCALES if draws.multiple and not draws.durations_s else ():
        if not any((job_type, scale) in table.row for job_type in job_types):
            expected = f"a job type for each drawn size: {', '.join(map(str, _SCALES))} workers"
            raise InputError("throughputs", f"a table without any job type that runs on {scale} workers", expected)


def _scale(draw: float) -> int:
    return 1 if draw < 0.7 else 2 if draw <= 0.8 else 4 if draw < 0.95 else 8


def _duration(rng: Random) -> float:
    exponent = rng.uniform(3, 4) if rng.random() >= 0.8 else rng.uniform(1.5, 3)
    return float(60 * 10**exponent)


def _slo(draw: float) -> float:
    return next(factor for most, factor in _SLOS if draw < most or most == 1.0)

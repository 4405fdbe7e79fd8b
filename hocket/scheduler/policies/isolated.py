"""Isolated: each job gets one n-th of every worker type, regardless of speed.

Heterogeneity-aware policies are compared with this baseline, and finish-time fairness uses it as the reference. A job
never gets more time than exists: if its share of all workers, by scale factor, exceeds what one job can use, all its
fractions shrink proportionally.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.policies.max_min_fairness import equal_share
from hocket.scheduler.solver.lp.rejected import refusal, refusals
from hocket.scheduler.solver.lp.session import Session

__all__ = ["PAPER", "allocate", "isolated_times", "least_share"]

_SMALL = 512  # maximum number of jobs with cached entries
PAPER = "Dissertation sections 5.4.1 and 5.4.4; Dominant Resource Fairness (Ghodsi et al. 2011)"
SHARES, ENTITIES = False, False


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """Allocation with equal shares of every type.

    The objective is the minimum normalized throughput of the jobs that can run, as in max-min fairness.
    """
    found = _plain(snapshot)
    if found is not None:
        return found
    times = isolated_times(snapshot)
    job, column = np.nonzero(times)
    found = Allocation(job, np.full(len(job), ALONE), column, times[job, column], 0.0, refused=refusals(snapshot))
    told = _reasons(times, len(snapshot.jobs) - len(found.refused))
    for j, why in found.refused.items():
        told[j] = refusal(why)
    return replace(found, objective=least_share(snapshot, found), reasons=tuple(told))


def _plain(snapshot: Snapshot) -> Allocation | None:
    """Closed-form allocation; None if it does not apply.

    It applies if each type has one column and enough workers for every job. With W workers and n jobs, a job's
    normalized throughput is the smaller of W / n and its scale factor, divided by its weight, for any throughputs.
    """
    jobs, steps = snapshot.jobs, snapshot.throughputs
    each = [own.workers for own in snapshot.types]
    if not jobs or not snapshot.all_fit or [own.type for own in snapshot.columns] != list(range(len(each))):
        return None
    n, total = len(jobs), sum(each)
    everywhere = snapshot.everywhere
    # Usually all jobs run on some type, which is faster to test than all columns.
    if not everywhere and np.count_nonzero(steps[:, -1]) < n and not steps.any(axis=1).all():
        return None
    scales, due = snapshot.scale_factors, [active.job.weight for active in jobs]
    smallest = min(scales)
    alike = scales.count(smallest) == n
    fraction = np.empty((n, len(each)))
    if alike:
        fraction[:] = [workers / max(n * smallest, total) for workers in each]
    else:
        scale = np.array(scales, dtype=float)
        np.divide(np.array(each, dtype=float), np.maximum(n * scale, total)[:, None], out=fraction)
    if alike or total / n <= smallest:  # all jobs have the same share
        least = min(total / n, smallest) / max(due)
    else:
        least = float(np.minimum.reduce(np.minimum(total / n, scale) / due))
    told = Reasons(n, lambda: _reasons(np.where(steps > 0, fraction, 0.0), n))
    job, alone, column = _grid(n, len(each)) if n <= _SMALL else _made(n, len(each))
    if everywhere:
        return Allocation(job, alone, column, fraction.reshape(-1), least, 0.0, told)
    runs = steps.reshape(-1).nonzero()[0]
    entries = job[runs], alone[: len(runs)], column[runs], fraction.reshape(-1)[runs]
    return Allocation(*entries, least, 0.0, told)


def _made(jobs: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Job, ALONE and column index of an entry for each job on each column."""
    job, column = np.divmod(np.arange(jobs * columns), columns)
    found = job, np.full(len(job), ALONE), column
    for part in found:
        part.setflags(write=False)
    return found


_grid = lru_cache(maxsize=64)(_made)


def _reasons(times: np.ndarray, among: int) -> list[Reason]:
    """Reason for each job, from its times on columns.

    Arguments:
        times: fractions of time; shape (jobs, columns).
        among: number of jobs that share the workers.
    """
    part = Reason(f"it has its share, 1/{among}, of every type", "more workers, or fewer jobs")
    busy = Reason("it runs all the time", "a policy that gives it more of the workers it is fastest on")
    return [busy if always else part for always in (times.sum(axis=1) >= 1 - 1e-9).tolist()]


def isolated_times(snapshot: Snapshot) -> np.ndarray:
    """Fraction of time of each job on each column, with one n-th of every type.

    On a type with two columns, a job uses the faster one. Jobs that cannot run do not count in n.

    Returns:
        Shape (jobs, columns); 0 where the job cannot run.
    """
    refused = np.isin(np.arange(len(snapshot.jobs)), list(refusals(snapshot)))
    jobs, columns = snapshot.throughputs.shape
    workers = snapshot.workers[snapshot.type_of]
    time = workers / max((~refused).sum(), 1) / snapshot.scale[:, None]
    steps = snapshot.throughputs
    better = np.ones((jobs, columns), dtype=bool)
    for c in range(columns):
        for other in np.flatnonzero(snapshot.type_of == snapshot.type_of[c]).tolist():
            if other != c:
                better[:, c] &= (steps[:, c] > steps[:, other]) | ((steps[:, c] == steps[:, other]) & (c < other))
    time = np.where(better, time, 0.0)
    time /= np.maximum(time.sum(axis=1, keepdims=True), 1.0)
    runs = (steps > 0) & (snapshot.scale[:, None] <= workers) & ~refused[:, None]
    return np.where(runs, time, 0.0)


def least_share(snapshot: Snapshot, found: Allocation) -> float:
    """Minimum normalized throughput of the jobs that can run; 0 without such jobs."""
    due = equal_share(snapshot) * snapshot.weights / snapshot.scale
    counts = due > 0
    counts[list(found.refused)] = False
    shares = found.throughput(snapshot)[counts] / due[counts]
    return float(shares.min()) if len(shares) else 0.0

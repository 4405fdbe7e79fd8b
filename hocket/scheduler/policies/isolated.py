"""Isolated: every job has its n-th of every type of worker to itself, whether it is good at it or not.

What heterogeneity-aware policies are measured against, and what finish-time fairness compares a job's fate with. A job is never
given more time than there is: where its n-th part of all workers, by its scale factor, is more than one job can use, all its
parts shrink alike.
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

_SMALL = 512  # jobs: up to here entries are made once for each number of them
PAPER = "Dissertation sections 5.4.1 and 5.4.4; Dominant Resource Fairness (Ghodsi et al. 2011)"


def allocate(snapshot: Snapshot, session: Session | None = None) -> Allocation:
    """The allocation; its objective is the least normalised throughput of any job that can run, as for max-min fairness."""
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
    """The allocation where each type has one column, with room for every job: in closed form; None where not.

    What a job does in its part of all workers W is W / n of what is due, by its weight: whatever its throughputs are.
    """
    jobs, steps = snapshot.jobs, snapshot.throughputs
    each = [own.workers for own in snapshot.types]
    if not jobs or not snapshot.all_fit or [own.type for own in snapshot.columns] != list(range(len(each))):
        return None
    n, total = len(jobs), sum(each)
    everywhere = snapshot.everywhere
    # Mostly there is a type that all run on, and that is quicker to see than that each of them runs somewhere.
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
    if alike or total / n <= smallest:  # all have as much
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
    """Entries of every job, alone, on every column."""
    job, column = np.divmod(np.arange(jobs * columns), columns)
    found = job, np.full(len(job), ALONE), column
    for part in found:
        part.setflags(write=False)
    return found


_grid = lru_cache(maxsize=64)(_made)


def _reasons(times: np.ndarray, among: int) -> list[Reason]:
    """Of all jobs, by their times on columns; among how many workers are divided."""
    part = Reason(f"it has its part, one of {among}, of every type", "more workers, or fewer jobs")
    busy = Reason("it runs all the time", "a policy that gives it more of the workers it is fastest on")
    return [busy if always else part for always in (times.sum(axis=1) >= 1 - 1e-9).tolist()]


def isolated_times(snapshot: Snapshot) -> np.ndarray:
    """Time of each job on each column with its n-th of every type; shape (jobs, columns); 0 where it does not run.

    On a type with two columns it stands in the one where it is faster. Jobs that can run nowhere do not count among the n.
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
    """The least normalised throughput of any job that can run; 0 without such."""
    due = equal_share(snapshot) * snapshot.weights / snapshot.scale
    counts = due > 0
    counts[list(found.refused)] = False
    shares = found.throughput(snapshot)[counts] / due[counts]
    return float(shares.min()) if len(shares) else 0.0

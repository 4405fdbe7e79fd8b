"""AlloX: minimum average completion time, by matching jobs to queue positions.

The last job on a worker delays only itself, the last but one delays two jobs, and so on. A job of t seconds at
position p from the end adds p t to the sum of completion times. Workers of a type are interchangeable, so the
capacity of a position is the number of workers of the type. Only the first job of each queue runs now, all the time.
As in the AlloX paper, jobs use one worker each; other jobs are refused. As in the policy that Gavel's authors
published, running jobs stay, and only the oldest fraction `alpha` of the waiting jobs is considered, but at least as
many jobs as there are free workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hocket.scheduler.model.allocation import Allocation, Reason, Reasons
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.rejected import refusals
from hocket.scheduler.solver.lp.session import Session
from hocket.scheduler.solver.queueing.assignment import Queues
from hocket.scheduler.solver.queueing.priority_queue import all_the_time

__all__ = ["PAPER", "allocate", "remember"]

PAPER = "AlloX (Le, Sun, Chowdhury and Liu 2020); baseline of dissertation section 5.7"
SHARES, ENTITIES = False, False


def allocate(
    snapshot: Snapshot,
    session: Session | None = None,
    alpha: float = 1.0,
    placed: Mapping[str, int] | None = None,
) -> Allocation:
    """Allocation with the minimum mean completion time.

    The objective is the mean time from arrival to completion of the considered jobs, in seconds.

    Arguments:
        alpha: fraction of the waiting jobs to consider, oldest first.
        placed: column index of each running job, by id; these jobs stay.
    """
    refused, scales = refusals(snapshot), snapshot.scale_factors
    if scales.count(1) < len(scales):
        for j, scale in enumerate(scales):
            if scale > 1:
                refused.setdefault(j, "it needs more than one worker, and AlloX supports single-worker jobs only")
    free, runs = _taken(snapshot, refused, placed or {})
    every = range(len(scales))
    waiting = [j for j in every if j not in refused and j not in runs] if refused or runs else every
    looked_at = _oldest(snapshot, waiting, free, alpha)
    starts, mean_s, gap, able = _assigned(snapshot, looked_at, free)
    runs.update(starts)
    first = sorted(runs)
    told = Reasons(len(every), lambda: _reasons(snapshot, runs, set(looked_at), set(able), refused))
    _, alone, always = all_the_time(len(first))
    column = np.array([runs[j] for j in first], dtype=np.int64)
    return Allocation(np.array(first, dtype=np.int64), alone, column, always, mean_s, gap, told, refused)


def remember(snapshot: Snapshot, found: Allocation, before: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of the next `allocate`: the columns of running jobs."""
    names = [snapshot.jobs[j].job.id for j in found.first.tolist()]
    return {"placed": dict(zip(names, found.column.tolist(), strict=True))}


def _taken(snapshot: Snapshot, refused: dict[int, str], placed: Mapping[str, int]) -> tuple[list[int], dict[int, int]]:
    """Free workers of each type, and columns of the jobs that stay, by job index.

    If workers were lost, the latest arrivals wait again. A job measured to make no progress on its column also waits
    again.

    Arguments:
        refused: reason by job index, for jobs that cannot run.
        placed: column index of each running job, by id.
    """
    free = [own.workers for own in snapshot.types]
    stay: dict[int, int] = {}
    if placed:
        for j, active in enumerate(snapshot.jobs):
            own = -1 if j in refused else placed.get(active.job.id, -1)
            if own >= 0 and free[snapshot.columns[own].type] > 0 and snapshot.throughputs[j, own] > 0:
                stay[j] = own
                free[snapshot.columns[own].type] -= 1
    return free, stay


def _oldest(snapshot: Snapshot, waiting: Sequence[int], free: list[int], alpha: float) -> list[int]:
    if not any(free):
        return []
    order = sorted(waiting, key=[active.elapsed_s for active in snapshot.jobs].__getitem__, reverse=True)
    return order[: max(sum(free), int(alpha * len(order)))]


def _assigned(snapshot: Snapshot, jobs: list[int], free: list[int]) -> tuple[dict[int, int], float, float, list[int]]:
    """Assign waiting jobs to queue positions.

    Arguments:
        jobs: indices of the waiting jobs to consider.
        free: number of free workers of each type.

    Returns:
        Columns of the jobs that start now, by job index; mean completion time in seconds; relative gap; indices of
            all jobs with a position in a queue.
    """
    ways: list[list[int]] = [[] for _ in free]  # columns of each type
    for c, way in enumerate(snapshot.columns):
        ways[way.type].append(c)
    types = [k for k, workers in enumerate(free) if workers and ways[k]]
    if not jobs or not types:
        return {}, 0.0, 0.0, []
    columns, active = [ways[k] for k in types], [snapshot.jobs[j] for j in jobs]
    work = np.array([own.remaining_steps for own in active])
    with np.errstate(divide="ignore"):
        time_s = work[:, None] / snapshot.throughputs.take(jobs, axis=0)
    on = None  # the column of each type where each job is fastest
    if columns == [[c] for c in range(len(snapshot.columns))]:
        needs_s = time_s
    else:
        on = np.stack([np.array(own)[time_s[:, own].argmin(axis=1)] for own in columns], axis=1)
        needs_s = np.take_along_axis(time_s, on, axis=1)
    if not needs_s.max() < np.inf:  # some jobs cannot run on all types; some may run on none
        least = needs_s.min(axis=1).tolist()
        able = [j for j, time in zip(jobs, least, strict=True) if time < np.inf]
        if len(able) < len(jobs):
            return _assigned(snapshot, able, free)
    queues = Queues(needs_s, [free[k] for k in types])
    starts = {jobs[k]: columns[own][0] if on is None else int(on[k, own]) for k, own in queues.first()}
    elapsed_s = sum([own.elapsed_s for own in active])
    gap = max(0.0, queues.sum_s - queues.bound_s) / queues.sum_s
    return starts, (queues.sum_s + elapsed_s) / len(jobs), gap, jobs


def _reasons(
    snapshot: Snapshot, runs: Mapping[int, int], looked_at: set[int], able: set[int], refused: dict[int, str]
) -> tuple[Reason, ...]:
    told = []
    for j in range(len(snapshot.jobs)):
        if j in refused:
            told.append(Reason(refused[j], "another policy, or other workers"))
        elif j in runs:
            name = snapshot.column_name(runs[j])
            told.append(
                Reason(f"it stays on {name} until it is finished", "faster workers that are free when it starts")
            )
        elif j in able:
            told.append(Reason("it follows shorter jobs on its worker", "more workers, or less work left"))
        elif j in looked_at:
            told.append(Reason("no worker that it can run on is free", "more workers of a type that it runs on"))
        else:
            told.append(Reason("older jobs are considered first", "more workers, or a larger alpha"))
    return tuple(told)

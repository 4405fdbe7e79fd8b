"""AlloX: the least average time to completion, by an assignment of jobs to places in the queues of workers.

The last job on a worker delays nobody but itself, the last but one two jobs, and so on: a job of t seconds in the p-th place
from the end adds p t to the sum of all completion times. Workers of a type are alike, so a place has as much room as the type
has workers. Only who is first on a worker runs now, all the time. As in the paper jobs are of one worker each; others are
refused. As in the public policy only the older part `alpha` of waiting jobs is looked at, or as many as workers are free, and jobs
that run already stay.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason, Reasons
from hocket.cluster.policies._assign import assign
from hocket.cluster.policies._refusals import refusals
from hocket.cluster.session import Session
from hocket.cluster.snapshot import Snapshot

__all__ = ["PAPER", "allocate", "remember"]

PAPER = "AlloX (Le, Sun, Chowdhury and Liu 2020); baseline of dissertation section 5.7"


def allocate(
    snapshot: Snapshot,
    session: Session | None = None,
    alpha: float = 1.0,
    placed: Mapping[str, int] | None = None,
) -> Allocation:
    """The allocation; its objective is the mean time from arrival to completion of the jobs that were looked at, in seconds.

    Arguments:
        alpha: part of the waiting jobs to look at, the oldest first.
        placed: columns of jobs that run and stay, by id.
    """
    refused = refusals(snapshot)
    for j in np.flatnonzero(snapshot.scale > 1).tolist():
        refused.setdefault(j, "it asks for more than one worker, and AlloX places jobs of one")
    free, column = _taken(snapshot, refused, placed or {})
    looked_at = _oldest(snapshot, [j for j in range(len(column)) if j not in refused and column[j] < 0], free, alpha)
    best, mean_s, gap, later = _assigned(snapshot, looked_at, free)
    column[best >= 0] = best[best >= 0]
    jobs = np.flatnonzero(column >= 0)
    reasons = Reasons(len(column), lambda: _reasons(snapshot, column, looked_at, later, refused))
    return Allocation(jobs, np.full(len(jobs), ALONE), column[jobs], np.ones(len(jobs)), mean_s, gap, reasons, refused)


def remember(snapshot: Snapshot, found: Allocation, before: Mapping[str, Any]) -> dict[str, Any]:
    """What the next call is to be told besides its snapshot: where jobs run, as they stay there."""
    names = [snapshot.jobs[j].job.id for j in found.first.tolist()]
    return {"placed": dict(zip(names, found.column.tolist(), strict=True))}


def _taken(snapshot: Snapshot, refused: dict[int, str], placed: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Workers of each type that are free, and the column of each job that stays, -1 for others.

    Where workers went away, those that came last wait again.
    """
    free = snapshot.workers.astype(np.int64)
    column = np.full(len(snapshot.jobs), -1, dtype=np.int64)
    for j, active in enumerate(snapshot.jobs):
        own = -1 if j in refused else placed.get(active.job.id, -1)
        if own >= 0 and free[snapshot.type_of[own]] > 0:
            column[j] = own
            free[snapshot.type_of[own]] -= 1
    return free, column


def _oldest(snapshot: Snapshot, waiting: list[int], free: np.ndarray, alpha: float) -> np.ndarray:
    order = np.array(sorted(waiting, key=lambda j: -snapshot.jobs[j].elapsed_s), dtype=np.int64)
    return order[: max(int(free.sum()), int(alpha * len(order)))] if free.any() else order[:0]


def _assigned(snapshot: Snapshot, jobs: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Columns of jobs that start now, -1 for others; the mean completion time, its gap; which jobs are to follow others."""
    starts = np.full(len(snapshot.jobs), -1, dtype=np.int64)
    follows = np.zeros(len(snapshot.jobs), dtype=bool)
    if not len(jobs):
        return starts, 0.0, 0.0, follows
    steps = snapshot.throughputs[jobs]
    needs_s = np.full((len(jobs), len(free)), np.inf)
    on = np.zeros(needs_s.shape, dtype=np.int64)
    for c, own in enumerate(snapshot.columns):
        with np.errstate(divide="ignore"):
            time_s = snapshot.remaining_steps[jobs] / steps[:, c]
        better = time_s < needs_s[:, own.type]
        needs_s[better, own.type] = time_s[better]
        on[better, own.type] = c
    needs_s[:, free == 0] = np.inf
    able = np.isfinite(needs_s).any(axis=1)
    jobs, needs_s, on = jobs[able], needs_s[able], on[able]
    if not len(jobs):
        return starts, 0.0, 0.0, follows
    types = np.flatnonzero(free)
    place, bound, places = _placed(needs_s[:, types], free[types])
    kind = types[place % len(types)]
    rank = place // len(types)
    total_s = float((needs_s[np.arange(len(jobs)), kind] * (rank + 1)).sum())
    # First on its worker: of those of a place, as many as workers have no job before them, the oldest first.
    for k in types.tolist():
        behind = 0
        for p in range(places - 1, -1, -1):
            here = np.flatnonzero((kind == k) & (rank == p))
            now = here[: max(len(here) - behind, 0)]
            starts[jobs[now]] = on[now, k]
            behind = max(behind, len(here))
    follows[jobs] = starts[jobs] < 0
    elapsed_s = float(snapshot.elapsed_s[jobs].sum())
    return starts, (total_s + elapsed_s) / len(jobs), max(0.0, total_s - bound) / total_s, follows


def _placed(needs_s: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, float, int]:
    """The place of each job, places of the last ones of all types first; a bound of the sum; how many places were needed.

    With too few places to choose from the last of them are full, or none is left; then there are to be twice as many.
    """
    jobs, kinds = needs_s.shape
    places = min(jobs, int(np.ceil(jobs / free.sum())) + 2)
    while True:
        cost = (np.arange(1, places + 1)[None, :, None] * needs_s[:, None, :]).reshape(jobs, places * kinds)
        try:
            place, bound = assign(cost, np.tile(free, places))
        except ValueError:
            last = True
        else:
            last = bool((place // kinds == places - 1).any())
        if not last or places == jobs:
            return place, bound, places
        places = min(jobs, 2 * places)


def _reasons(
    snapshot: Snapshot, column: np.ndarray, looked_at: np.ndarray, later: np.ndarray, refused: dict[int, str]
) -> tuple[Reason, ...]:
    seen = np.zeros(len(column), dtype=bool)
    seen[looked_at] = True
    told = []
    for j in range(len(column)):
        if j in refused:
            told.append(Reason(refused[j], "another policy, or other workers"))
        elif column[j] >= 0:
            told.append(Reason(f"it is always on {snapshot.column_name(column[j])}, until it is finished"))
        elif later[j]:
            told.append(Reason("it follows shorter jobs on its worker", "more workers, or less work left"))
        elif seen[j]:
            told.append(Reason("no worker is free that it runs on", "more workers of a type that it runs on"))
        else:
            told.append(Reason("older jobs are looked at first", "more workers, or a larger alpha"))
    return tuple(told)

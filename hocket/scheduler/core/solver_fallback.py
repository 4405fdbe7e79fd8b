"""Fallback after a solver failure: the last allocation, for the jobs that are there now."""

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason
from hocket.scheduler.model.snapshot import Snapshot


def carried_over(snapshot: Snapshot, before: Snapshot, last: Allocation, trouble: str) -> Allocation:
    """Last allocation for the current jobs, after a solver failure.

    Departed jobs and their pairs are removed, new jobs get nothing, and a note gives the error. Fractions shrink where
    a type has too few workers.

    Arguments:
        before, last: last snapshot and its allocation.
        trouble: error of the solver.
    """
    now = {active.job.id: j for j, active in enumerate(snapshot.jobs)}
    ids = [active.job.id for active in before.jobs]
    index = np.array([now.get(name, -1) for name in ids] + [ALONE])  # the last entry is for ALONE
    first, second = index[last.first], index[last.second]
    stays = (first >= 0) & ((last.second == ALONE) | (second >= 0))
    first, second, column, fraction = first[stays], second[stays], last.column[stays], last.fraction[stays]
    pairs = second != ALONE
    low, high = np.where(pairs, np.minimum(first, second), first), np.where(pairs, np.maximum(first, second), second)
    kind = snapshot.type_of[column]
    used = np.bincount(kind, snapshot.scale[first] * fraction, len(snapshot.types))
    there = np.minimum(1.0, snapshot.workers / np.maximum(used, snapshot.workers + (used == 0)))
    known = set(ids)
    held = Reason("the solver failed: it keeps its previous share", "the next solution")
    new = Reason("the solver failed, and it arrived after the last solution", "the next solution")
    reasons = tuple(held if active.job.id in known else new for active in snapshot.jobs)
    refused = {now[ids[j]]: why for j, why in last.refused.items() if ids[j] in now}
    entries = low, high, column, fraction * there[kind]
    note = f"the last allocation, because the solver failed: {trouble}"
    return Allocation(*entries, last.objective, last.gap, reasons, refused, note)

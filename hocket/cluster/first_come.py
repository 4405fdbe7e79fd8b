"""FirstCome: jobs in the order in which they came, each where it started until it is finished; the baseline of FIFO.

A job takes its place on the first type of workers that has enough of them free, in the order of the types; the first for which
there is none makes all behind it wait. It is blind to speeds, so the order of types is all that it knows: the public simulator's
baseline takes V100s first as well. It remembers who is where, so each run needs one of its own.
Source: the baseline FIFO of section 5.7.3.
"""

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation, Reason
from hocket.cluster.policies._shares import Shares
from hocket.cluster.snapshot import Snapshot

_RUNS = Reason("it runs all the time", "nothing: it stays on the type where it started")


class FirstCome:
    """The policy, with its memory."""

    def __init__(self) -> None:
        self._column: dict[str, int] = {}

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """The allocation; its objective is the number of jobs that run."""
        free = snapshot.workers.copy()
        before, self._column = self._column, {}
        refused = Shares(snapshot).refused
        for j, active in enumerate(snapshot.jobs):
            column = before.get(active.job.id)
            kind = -1 if column is None else snapshot.columns[column].type
            if column is not None and free[kind] >= snapshot.scale[j]:
                self._column[active.job.id] = column
                free[kind] -= snapshot.scale[j]
        for j, active in enumerate(snapshot.jobs):
            if j in refused or active.job.id in self._column:
                continue
            column = self._first(snapshot, j, free)
            if column is None:
                break
            self._column[active.job.id] = column
            free[snapshot.columns[column].type] -= snapshot.scale[j]
        placed = [(j, self._column[a.job.id]) for j, a in enumerate(snapshot.jobs) if a.job.id in self._column]
        jobs = np.array([j for j, _ in placed], dtype=np.int64)
        columns = np.array([c for _, c in placed], dtype=np.int64)
        waits = Reason("jobs that came before it have the workers", "more workers, of any type that it runs on")
        reasons = tuple(
            Reason(refused[j], "other workers, or a smaller scale factor")
            if j in refused
            else (_RUNS if active.job.id in self._column else waits)
            for j, active in enumerate(snapshot.jobs)
        )
        none = np.full(len(jobs), ALONE)
        return Allocation(jobs, none, columns, np.ones(len(jobs)), float(len(jobs)), 0.0, reasons, refused)

    def _first(self, snapshot: Snapshot, j: int, free: np.ndarray) -> int | None:
        for k, column in enumerate(snapshot.columns):
            able = snapshot.throughputs[j, k] > 0 and column.consolidated
            if able and free[column.type] >= snapshot.scale[j]:
                return k
        return None

"""FIFO baseline: in order of arrival, each job stays where it started.

A job starts on the first worker type, in the order of types, with enough free workers. The first job that does not
fit blocks all later jobs. The policy ignores throughputs; the order of types is its only preference. It remembers
placements, so each run needs its own object. A job measured to make no progress on its type is placed elsewhere.
Source: baseline FIFO in Narayanan's dissertation, section 5.7.3.
"""

import random

import numpy as np

from hocket.scheduler.model.allocation import ALONE, Allocation, Reason
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables

_RUNS = Reason("it runs all the time", "nothing: a job stays on the type where it started")


class FirstCome:
    """FIFO policy with the placements that it remembers."""

    def __init__(self, overbook: bool = False, seed: int = 0) -> None:
        """
        Arguments:
            overbook: True to behave as the public implementation. A job goes to the listed type with the last name,
                even if the type has too few free workers. When a type becomes full, a type drawn from `seed` leaves
                the list, not necessarily the full one. A waiting job takes the place of a finished job before later
                arrivals are counted. More jobs are placed than fit; they take turns, and smaller jobs may pass them.
            seed: seed of the draws.
        """
        self._column: dict[str, int] = {}
        self._overbook, self._chance = overbook, random.Random(seed)
        self._came: dict[str, int] = {}

    def __call__(self, snapshot: Snapshot) -> Allocation:
        """Allocation for a snapshot; its objective is the number of placed jobs."""
        refused = AllocationVariables(snapshot).refused
        if self._overbook:
            self._place_overbooked(snapshot, refused)
        else:
            self._place(snapshot, refused)
        placed = [(j, self._column[a.job.id]) for j, a in enumerate(snapshot.jobs) if a.job.id in self._column]
        jobs = np.array([j for j, _ in placed], dtype=np.int64)
        columns = np.array([c for _, c in placed], dtype=np.int64)
        waits = Reason("earlier jobs hold the workers", "more workers of any type that it runs on")
        reasons = tuple(
            Reason(refused[j], "other workers, or a smaller scale factor")
            if j in refused
            else (_RUNS if active.job.id in self._column else waits)
            for j, active in enumerate(snapshot.jobs)
        )
        none = np.full(len(jobs), ALONE)
        return Allocation(jobs, none, columns, np.ones(len(jobs)), float(len(jobs)), 0.0, reasons, refused)

    def _place(self, snapshot: Snapshot, refused: dict[int, str]) -> None:
        free = snapshot.workers.copy()
        before, self._column = self._column, {}
        for j, active in enumerate(snapshot.jobs):
            column = before.get(active.job.id)
            kind = -1 if column is None else snapshot.columns[column].type
            if column is not None and free[kind] >= snapshot.scale[j] and snapshot.throughputs[j, column] > 0:
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

    def _first(self, snapshot: Snapshot, j: int, free: np.ndarray) -> int | None:
        for k, column in enumerate(snapshot.columns):
            able = snapshot.throughputs[j, k] > 0 and column.consolidated
            if able and free[column.type] >= snapshot.scale[j]:
                return k
        return None

    def _place_overbooked(self, snapshot: Snapshot, refused: dict[int, str]) -> None:
        at = {active.job.id: j for j, active in enumerate(snapshot.jobs)}
        ids, steps, scale = list(at), snapshot.throughputs, snapshot.scale
        for name in ids:
            self._came.setdefault(name, len(self._came))
        kinds = {c.type: k for k, c in enumerate(snapshot.columns) if c.consolidated}
        free = {k: snapshot.workers[kind] for kind, k in kinds.items()}
        self._column = {name: k for name, k in self._column.items() if name not in at or steps[at[name], k] > 0}
        queue = [j for j, name in enumerate(ids) if j not in refused and name not in self._column]
        for name in sorted(self._column, key=self._came.__getitem__):
            column = self._column[name]
            if name in at:
                free[column] -= scale[at[name]]
                continue
            if queue and scale[queue[0]] <= free[column] and steps[queue[0], column] > 0:
                j = queue.pop(0)
                self._column[ids[j]] = column
                free[column] -= scale[j]
            del self._column[name]
        listed = sorted((k for k in free if free[k] > 0), key=lambda k: snapshot.types[snapshot.columns[k].type].name)
        for j in queue:
            fits = [i for i, k in enumerate(listed) if free[k] >= scale[j]]
            if not fits:
                break
            drawn, column = fits[self._chance.randrange(len(fits))], listed[-1]
            if steps[j, column] > 0:
                self._column[ids[j]] = column
                free[column] -= scale[j]
                if free[column] == 0:
                    listed.pop(drawn)

"""Table of unfinished jobs, stored as arrays.

Rules of this file: a job keeps its slot (its row in every array) until it leaves. A slot is reused only after
`recycle`, so slots stay valid during a round. Jobs are kept in order of arrival. A change with invalid values raises
InputError and changes nothing.
"""

from collections.abc import Sequence
from math import isfinite

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.job import Job
from hocket.scheduler.model.snapshot import Active

__all__ = ["BY_SLOT", "JobTable", "check_measured"]

_ARRAYS = (
    "throughputs", "owed_s", "need", "came", "sharing", "arrived_s", "remaining_steps", "isolated_s", "busy_s", "_rate", "_counted",
)  # fmt: skip
BY_SLOT = ("jobs", "alone", *_ARRAYS)  # attributes with one row per slot


class JobTable:
    """Unfinished jobs, by id and by slot; a slot is a row of every array.

    Attributes:
        slot: slot of each job, by id, in order of arrival.
        jobs: job, by slot; None in unused slots.
        alone: one-element tuple of the job's id, as in a lease, by slot.
        throughputs: steps per second alone; shape (slots, columns).
        owed_s: seconds that the allocation granted a job and rounds did not deliver; shape (slots, columns).
        need: number of workers of each job.
        came: number of jobs that arrived earlier.
        sharing: space-sharing class, see Pairs; -1 for jobs that never share their workers.
        arrived_s, remaining_steps: as reported.
        isolated_s: see Active; up to the last `count_isolated`.
        busy_s: reported seconds of the current round that the job was running; 0 without a report.
        attempts: number of consecutive failures, by id; jobs without a failure are missing.
    """

    def __init__(self, columns: int, classes: int | None = None) -> None:
        """
        Arguments:
            columns: number of columns.
            classes: number of space-sharing classes; None without space sharing.
        """
        self._classes = classes
        self.slot: dict[str, int] = {}
        self.jobs: list[Job | None] = []
        self.alone: list[tuple[str, ...]] = []
        self.throughputs = np.zeros((0, columns))
        self.owed_s = np.zeros((0, columns))
        self.need = np.zeros(0, dtype=np.int64)
        self.came = np.zeros(0, dtype=np.int64)
        self.sharing = np.zeros(0, dtype=np.int64)
        self.arrived_s = np.zeros(0)
        self.remaining_steps = np.zeros(0)
        self.isolated_s = np.zeros(0)
        self.busy_s = np.zeros(0)
        self.attempts: dict[str, int] = {}
        self._rate = np.zeros(0)  # steps per second on one n-th of the cluster, since the last count
        self._counted = np.zeros(0)  # remaining steps at the last count
        self._free: list[int] = []
        self._left: list[int] = []
        self._count = 0
        self._slots: np.ndarray | None = None

    def add(self, job: Job, throughputs: tuple[float, ...], sharing: int) -> int:
        """Add a job and return its slot.

        Arguments:
            throughputs: steps per second of the job alone, by column.
            sharing: space-sharing class, or -1.

        Raises:
            InputError: a second job with this name, a missing or negative throughput, or an unknown class.
        """
        place, columns, classes = f"job {job.id}", self.throughputs.shape[1], self._classes
        if job.id in self.slot:
            raise InputError(place, "a second job with this name", "a unique name")
        if len(throughputs) != columns:
            raise InputError(f"{place}: throughputs", f"{len(throughputs)}", f"{columns}, one for each column")
        if not all(isfinite(steps) and steps >= 0 for steps in throughputs):
            raise InputError(f"{place}: throughputs", str(throughputs), "steps per second, >= 0")
        if classes is not None and sharing >= classes:
            raise InputError(f"{place}: sharing", str(sharing), f"a class < {classes}, or -1 for no sharing")
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.slot[job.id], self.jobs[slot], self.alone[slot] = slot, job, (job.id,)
        self._slots = None
        self.throughputs[slot] = throughputs
        self.owed_s[slot] = 0.0
        self.need[slot], self.came[slot], self.sharing[slot] = job.scale_factor, self._count, sharing
        self.arrived_s[slot], self.remaining_steps[slot], self.isolated_s[slot] = job.arrived_s, job.steps, 0.0
        self._rate[slot], self._counted[slot] = 0.0, job.steps
        self._count += 1
        return slot

    def find(self, name: str) -> int:
        """Return the slot of a job.

        Raises:
            InputError: no unfinished job has this name.
        """
        return self._find((name,))[0]

    def _find(self, names: Sequence[str]) -> list[int]:
        try:
            return list(map(self.slot.__getitem__, names))
        except KeyError as unknown:
            place = f"job {unknown.args[0]}"
            raise InputError(place, "no job with this name", "a job that arrived and is not finished") from None

    def progress(self, names: Sequence[str], remaining_steps: Sequence[float], busy_s: Sequence[float]) -> None:
        """Record the progress of jobs; a completed step resets the failure count.

        Arguments:
            remaining_steps: steps left, by job.
            busy_s: seconds of the current round that each job was running; empty if unknown.

        Raises:
            InputError: a job is unknown or without remaining steps; it is reported as finished instead.
        """
        jobs = len(names)
        if len(remaining_steps) != jobs or not (
            isfinite(sum(remaining_steps)) and min(remaining_steps, default=1.0) > 0
        ):
            raise InputError("progress: remaining_steps", str(remaining_steps)[:80], "a number > 0 for each job")
        if busy_s and (len(busy_s) != jobs or not (isfinite(sum(busy_s)) and min(busy_s) >= 0)):
            raise InputError("progress: busy_s", str(busy_s)[:80], "a number >= 0 for each job, or an empty list")
        slots = np.array(self._find(names), dtype=np.int64)
        if self.attempts:
            for name, steps, before in zip(names, remaining_steps, self.remaining_steps[slots], strict=True):
                if steps < before:
                    self.attempts.pop(name, None)
        self.remaining_steps[slots] = remaining_steps
        self.busy_s[:] = 0.0
        if busy_s:
            self.busy_s[slots] = busy_s

    def measured(self, name: str, column: int, steps_per_s: float) -> None:
        """Record the measured throughput of a job alone.

        Raises:
            InputError: unknown job or column, or an invalid throughput.
        """
        slot = self.find(name)
        check_measured(f"job {name}: throughput", column, steps_per_s, self.throughputs.shape[1])
        self.throughputs[slot, column] = steps_per_s

    def remove(self, name: str) -> int:
        """Remove a job and return its former slot."""
        slot = self.slot.pop(name)
        self._slots = None
        self.attempts.pop(name, None)
        self._left.append(slot)
        return slot

    def recycle(self) -> None:
        """Make the slots of removed jobs available again."""
        for slot in self._left:
            self.jobs[slot] = None
        self._free += sorted(self._left, reverse=True)
        self._left.clear()

    def count_isolated(self, workers: np.ndarray, counts: np.ndarray) -> None:
        """Update `isolated_s` for the steps since the last update.

        Adds the time these steps would have needed on one n-th of the workers, as in policies/isolated.py: n counts
        the jobs that can run, and a job's share of a type with too few workers for it is lost.

        Arguments:
            workers: number of workers by column.
            counts: mask of the columns to run on, one for each type.
        """
        slots = self.slots()
        done, rate = self._counted[slots] - self.remaining_steps[slots], self._rate[slots]
        self.isolated_s[slots] += np.divide(done, rate, out=np.zeros(len(slots)), where=rate > 0)
        need, steps = self.need[slots, None], self.throughputs[slots]
        able = (steps > 0) & (need <= workers)
        share = np.where(counts, workers, 0) / (max(1, int(able.any(axis=1).sum())) * need)
        share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
        self._rate[slots] = (np.where(able, share, 0.0) * steps).sum(axis=1)
        self._counted[slots] = self.remaining_steps[slots]

    def isolated(self) -> tuple[np.ndarray, ...]:
        """Copies of the arrays that `count_isolated` changes, for `set_isolated`."""
        return self.isolated_s.copy(), self._rate.copy(), self._counted.copy()

    def set_isolated(self, before: tuple[np.ndarray, ...]) -> None:
        """Undo `count_isolated`: restore the arrays that `isolated` returned before it."""
        self.isolated_s, self._rate, self._counted = before

    def slots(self) -> np.ndarray:
        """Slots of all current jobs, in order of arrival; read-only."""
        if self._slots is None:
            self._slots = np.fromiter(self.slot.values(), dtype=np.int64, count=len(self.slot))
        return self._slots

    def active(self, now_s: float) -> tuple[Active, ...]:
        """Unfinished jobs for a snapshot, in order of arrival."""
        slots = self.slots()
        remaining = self.remaining_steps[slots].tolist()
        elapsed = np.maximum(0.0, now_s - self.arrived_s[slots]).tolist()
        isolated = self.isolated_s[slots].tolist()
        jobs = [self.jobs[slot] for slot in slots.tolist()]
        return tuple(map(Active, jobs, remaining, elapsed, isolated))  # type: ignore[arg-type]  # used slots hold jobs

    def _grow(self) -> None:
        old = len(self.jobs)
        more = max(16, old)
        self.jobs += [None] * more
        self.alone += [()] * more
        for name in _ARRAYS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)]))
        self._free += range(old + more - 1, old - 1, -1)


def check_measured(place: str, column: int, value: float, columns: int) -> None:
    """Check that the column exists and the measurement is finite and >= 0.

    Arguments:
        place: name of the measurement, for the error message.
        columns: number of columns.
    """
    if not 0 <= column < columns:
        raise InputError(f"{place}: column", str(column), f"an index < {columns}")
    if not (isfinite(value) and value >= 0):
        raise InputError(place, str(value), "a number >= 0")

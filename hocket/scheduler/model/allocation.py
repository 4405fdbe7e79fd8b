"""Allocation: fraction of time for each job or pair of jobs on each column.

A column is a placement: a worker type, with the workers of a job consolidated or spread (worker_types.py). Policies
return an Allocation.
Source: the matrix X in Narayanan's dissertation, section 5.3.1, with rows for pairs in space sharing (equations 5.1
to 5.3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, overload

import numpy as np

from hocket.scheduler.model.lazy_property import once
from hocket.scheduler.model.snapshot import Snapshot

ALONE = -1  # stands for the second job where a job does not share its workers


@dataclass(frozen=True)
class Reason:
    """Explanation of a job's allocation.

    Attributes:
        binding: binding constraint, such as "v100 is full".
        change: change that would give the job more.
    """

    binding: str
    change: str = ""


class Reasons(Sequence[Reason]):
    """Reasons of all jobs, computed when one of them is first read."""

    __slots__ = ("_jobs", "_known", "_told")

    def __init__(self, jobs: int, told: Callable[[], Sequence[Reason]]) -> None:
        """
        Arguments:
            jobs: number of jobs.
            told: function that computes the reasons; called at most once.
        """
        self._jobs, self._told = jobs, told
        self._known: Sequence[Reason] | None = None

    def __len__(self) -> int:
        return self._jobs

    @overload
    def __getitem__(self, at: int) -> Reason: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Reason]: ...

    def __getitem__(self, at: int | slice) -> Reason | Sequence[Reason]:
        if self._known is None:
            self._known = self._told()
        return self._known[at]


@dataclass(eq=False)
class Allocation:
    """Fractions of time, as a list of entries.

    In entry e, job first[e] runs on column[e] for fraction[e] of the time. It shares its workers with job second[e],
    or runs alone if second[e] is ALONE.

    An allocation is immutable. The fields are Final, which only a type checker enforces, because a frozen dataclass
    costs one microsecond more to create: a tenth of the time of a small solve.

    Attributes:
        first, second: job indices in the snapshot, by entry; first < second in a pair.
        column: column index in the snapshot, by entry.
        fraction: fraction of the time, by entry.
        objective: value of the policy's objective; see the docstring of the policy's `allocate`.
        gap: verified relative duality gap; 0 for policies without a solver.
        reasons: explanation for each job, in snapshot order; may be empty.
        refused: reason by job index, for jobs that get nothing because they cannot run.
        note: remark for the operator, such as a solver failure or given-up deadlines; empty for none.
        holds_s: seconds after which the allocation expires, even without events.
        fill: True if jobs may also use the workers that the allocation leaves free.
        grouped: groups of identical jobs in the policy's linear program (AllocationVariables), and the values of its
            variables; None if the policy does not keep them.
    """

    first: Final[np.ndarray]
    second: Final[np.ndarray]
    column: Final[np.ndarray]
    fraction: Final[np.ndarray]
    objective: Final[float]
    gap: Final[float] = 0.0
    reasons: Final[Sequence[Reason]] = ()
    refused: Final[dict[int, str]] = field(default_factory=dict)
    note: Final[str] = ""
    holds_s: Final[float] = inf
    fill: Final[bool] = True
    grouped: Final[tuple[Any, np.ndarray] | None] = field(default=None, repr=False)

    @once
    def pairs(self) -> np.ndarray:
        """Mask of the entries with two jobs."""
        return self.second != ALONE

    def dense(self, snapshot: Snapshot) -> np.ndarray:
        """Fraction of time of each job on each column; shape (jobs, columns).

        Time alone and time in pairs are added.
        """
        found = np.zeros(snapshot.throughputs.shape)
        np.add.at(found, (self.first, self.column), self.fraction)
        both = self.pairs
        np.add.at(found, (self.second[both], self.column[both]), self.fraction[both])
        return found

    def throughput(self, snapshot: Snapshot) -> np.ndarray:
        """Effective throughput of each job, in steps per second."""
        found = np.zeros(len(snapshot.jobs))
        alone, both = ~self.pairs, self.pairs
        steps = snapshot.throughputs
        np.add.at(found, self.first[alone], steps[self.first[alone], self.column[alone]] * self.fraction[alone])
        if both.any():
            assert snapshot.pairs is not None
            a, b, c, x = self.first[both], self.second[both], self.column[both], self.fraction[both]
            classes, kept = snapshot.pairs.classes, snapshot.pairs.kept
            np.add.at(found, a, steps[a, c] * kept[classes[a], classes[b], c] * x)
            np.add.at(found, b, steps[b, c] * kept[classes[b], classes[a], c] * x)
        return found

    def used(self, snapshot: Snapshot) -> np.ndarray:
        """Average number of workers in use, by type; shape (types,)."""
        found = np.zeros(len(snapshot.types))
        np.add.at(found, snapshot.type_of[self.column], snapshot.scale[self.first] * self.fraction)
        return found

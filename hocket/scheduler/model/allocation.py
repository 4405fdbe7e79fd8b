"""Allocation: a policy's answer, the fraction of time that each job, or pair of jobs, is to spend on each column.

Source: section 5.3.1: X, with rows for pairs where jobs share workers (equations 5.1 to 5.3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, overload

import numpy as np

from hocket.scheduler.model.lazy_property import once
from hocket.scheduler.model.snapshot import Snapshot

ALONE = -1


@dataclass(frozen=True)
class Reason:
    """Why a job got what it got.

    Attributes:
        binding: what holds it back, such as "v100 is full".
        change: what would give it more.
    """

    binding: str
    change: str = ""


class Reasons(Sequence[Reason]):
    """Reasons of so many jobs, which are put into words when the first of them is read."""

    __slots__ = ("_jobs", "_known", "_told")

    def __init__(self, jobs: int, told: Callable[[], Sequence[Reason]]) -> None:
        """
        Arguments:
            jobs: how many. told: what to call for them, once at most.
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
    """Fractions of time; entry e says that job first[e], beside second[e] or ALONE, is on column[e] for fraction[e].

    Nothing of it changes once made. Its fields are Final, which a type checker looks at, as a frozen dataclass takes a microsecond
    more to make: a tenth of a small answer.

    Attributes:
        first, second: indices of jobs in the snapshot; first < second in a pair.
        objective: of the policy, in its own terms; see its docstring.
        gap: relative duality gap that was verified; 0 where the answer needs no solver.
        reasons: by job.
        refused: jobs that get nothing because they cannot run, with the reason; by index.
        note: what went wrong with the solver, if the allocation is not its answer.
        holds_s: after so long it is out of date, even if nothing happens.
        fill: workers that it leaves free may be given to jobs that run there.
        grouped: the policy's groups of alike jobs (Shares), and times of their variables; None where nobody kept them.
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
        """Which entries are of two jobs."""
        return self.second != ALONE

    def dense(self, snapshot: Snapshot) -> np.ndarray:
        """Time of each job on each column, alone or not; shape (jobs, columns)."""
        found = np.zeros(snapshot.throughputs.shape)
        np.add.at(found, (self.first, self.column), self.fraction)
        both = self.pairs
        np.add.at(found, (self.second[both], self.column[both]), self.fraction[both])
        return found

    def throughput(self, snapshot: Snapshot) -> np.ndarray:
        """Effective throughput of each job, steps a second."""
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
        """Workers of each type that are in use on average; shape (types,)."""
        found = np.zeros(len(snapshot.types))
        np.add.at(found, snapshot.type_of[self.column], snapshot.scale[self.first] * self.fraction)
        return found

"""Snapshot: what a policy is told, at one moment.

Rules of this file: figures of all jobs are arrays in the order of `jobs`, so that a policy is arithmetic on arrays; nothing
here changes once made. What the quickest policies read of each job is there from the beginning, as all jobs are looked at then
anyway; the rest is made when it is asked for. Throughputs are those of a whole job on all its workers.
Source: sections 5.3.1 and 5.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.job import LEAST_WEIGHT, MOST_WEIGHT, Job
from hocket.scheduler.model.lazy_property import once
from hocket.scheduler.model.worker_types import Placement, WorkerType


@dataclass(frozen=True, slots=True)
class Active:
    """A job that is not finished.

    Attributes:
        remaining_steps: still to be trained.
        elapsed_s: since it came.
        isolated_s: that it would have been at work by now, had it always had one n-th of the cluster (t_isolated of finish-time
            fairness); None where nobody kept count: then it is `elapsed_s`.
    """

    job: Job
    remaining_steps: float
    elapsed_s: float = 0.0
    isolated_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.remaining_steps < inf:
            raise InputError(f"job {self.job.id}: remaining_steps", str(self.remaining_steps), "a number > 0")
        if not 0 <= self.elapsed_s < inf:
            raise InputError(f"job {self.job.id}: elapsed_s", str(self.elapsed_s), "a number >= 0")


@dataclass(frozen=True)
class Entity:
    """A team, or whoever jobs belong to: its weight among the others, and how it shares among its jobs."""

    name: str
    weight: float = 1.0
    policy: str = "fairness"

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            expected = f"a number > 0, from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
            raise InputError(f"entity {self.name}: weight", str(self.weight), expected)
        if self.policy not in ("fairness", "fifo"):
            raise InputError(f"entity {self.name}: policy", repr(self.policy), "fairness or fifo")


@dataclass(frozen=True, eq=False)
class Pairs:
    """What jobs keep of their throughput when two of them share workers.

    Attributes:
        classes: of each job; jobs of one class share alike.
        kept: what a job of the first class keeps beside one of the second, as a part of its throughput alone; shape
            (classes, classes, columns). 0 both ways where they cannot share, as with unlike scale factors.
    """

    classes: np.ndarray
    kept: np.ndarray


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Jobs, workers, and what jobs do on them.

    Attributes:
        types: of workers. columns: ways to run on them, each type's own.
        jobs: that are not finished, in the order in which they came.
        throughputs: steps a second of each job alone; shape (jobs, columns); 0 where it does not run.
        pairs: for space sharing; None to leave every job its workers alone.
        entities: for hierarchical policies.
        budget_usd: for policies that keep within one. spent_usd: of it, up to now.
        now_s: when this is.
        placed: columns of jobs that run, by id.
        changeover_s: that a job loses when it goes on other workers.
        round_s: until anything can change, at most, and what is lost at most of the work on workers that go away.
        scale_factors, arrived_s: by job; not to be written to.
        everywhere: there are throughputs, and every one is more than 0.
    """

    types: tuple[WorkerType, ...]
    columns: tuple[Placement, ...]
    jobs: tuple[Active, ...]
    throughputs: np.ndarray
    pairs: Pairs | None = None
    entities: tuple[Entity, ...] = ()
    budget_usd: float | None = None
    now_s: float = 0.0
    placed: Mapping[str, int] = field(default_factory=dict)
    changeover_s: float = 0.0
    round_s: float = 0.0
    spent_usd: float = 0.0
    scale_factors: list[int] = field(init=False, repr=False)
    arrived_s: list[float] = field(init=False, repr=False)
    everywhere: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps, jobs = self.throughputs, self.jobs
        if steps.shape != (len(jobs), len(self.columns)):
            found = f"an array of shape {steps.shape}"
            raise InputError("throughputs", found, f"{len(jobs)} jobs and {len(self.columns)} columns")
        least = steps.min() if steps.size else 0.0
        if not (least >= 0 and steps.max(initial=0.0) < inf):  # it is not so either where one is no number
            row, column = np.argwhere(~np.isfinite(steps) | (steps < 0))[0]
            place = f"job {jobs[row].job.id}: throughput on {self.column_name(column)}"
            raise InputError(place, str(steps[row, column]), "steps a second, >= 0")
        if len({active.job.id for active in jobs}) != len(jobs):
            ids = [active.job.id for active in jobs]
            twice = next(name for k, name in enumerate(ids) if name in ids[:k])
            raise InputError(f"job {twice}", "two of this name", "unique names")
        object.__setattr__(self, "scale_factors", [active.job.scale_factor for active in jobs])
        object.__setattr__(self, "arrived_s", [active.job.arrived_s for active in jobs])
        object.__setattr__(self, "everywhere", bool(least > 0))

    def column_name(self, column: int) -> str:
        """Such as "v100", or "v100 (spread)"."""
        own = self.columns[column]
        return self.types[own.type].name + ("" if own.consolidated else " (spread)")

    @once
    def workers(self) -> np.ndarray:
        """Of each type; shape (types,)."""
        return np.array([t.workers for t in self.types], dtype=float)

    @once
    def type_of(self) -> np.ndarray:
        """Each column's type; shape (columns,)."""
        return np.array([c.type for c in self.columns], dtype=np.int64)

    @once
    def prices(self) -> np.ndarray:
        """Dollars an hour of one worker, by column."""
        return np.array([t.price_usd_per_hour for t in self.types])[self.type_of]

    @once
    def scale(self) -> np.ndarray:
        """Scale factors, by job."""
        return np.array(self.scale_factors, dtype=float)

    @once
    def all_fit(self) -> bool:
        """Whether any type has workers enough for any job."""
        scales = self.scale_factors
        # Mostly all ask for one, and that is quicker to see than for how many they ask at most.
        most = 1 if scales.count(1) == len(scales) else max(scales)
        for own in self.types:
            if own.workers < most:
                return False
        return bool(self.types)

    @once
    def able(self) -> np.ndarray:
        """Throughputs, 0 where a job needs more workers than there are; not to be written to."""
        if self.all_fit:
            return self.throughputs
        return np.where(self.scale[:, None] <= self.workers[self.type_of], self.throughputs, 0.0)

    @once
    def all_run(self) -> bool:
        """Whether every job can run somewhere."""
        if self.everywhere and self.all_fit:
            return True
        able = self.able
        # Mostly all run on the last type, and that is quicker to see than that each of them runs somewhere.
        return (able.size > 0 and np.count_nonzero(able[:, -1]) == len(able)) or bool(able.any(axis=1).all())

    @once
    def weights(self) -> np.ndarray:
        """By job."""
        return np.array([active.job.weight for active in self.jobs])

    @once
    def remaining_steps(self) -> np.ndarray:
        """By job."""
        return np.array([active.remaining_steps for active in self.jobs])

    @once
    def elapsed_s(self) -> np.ndarray:
        """By job."""
        return np.array([active.elapsed_s for active in self.jobs])

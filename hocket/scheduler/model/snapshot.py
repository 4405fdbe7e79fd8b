"""Snapshot: input of a policy at one moment.

Rules of this file: values of all jobs are arrays in the order of `jobs`, so a policy is array arithmetic. A snapshot
is immutable. Per-job values used by the fastest policies are computed at creation, in the same pass as validation;
other values are computed on first access. Throughputs are of a whole job on all its workers.
Source: Narayanan's dissertation, sections 5.3.1 and 5.4.
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
    """Unfinished job.

    Attributes:
        remaining_steps: remaining training steps.
        elapsed_s: seconds since arrival.
        isolated_s: seconds that the steps done so far would have taken on one n-th of the cluster (t_isolated of
            finish-time fairness); None if not tracked, in which case `elapsed_s` is used.
    """

    job: Job
    remaining_steps: float
    elapsed_s: float = 0.0
    isolated_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.remaining_steps < inf:
            expected = "a finite number > 0; leave finished jobs out of the snapshot"
            raise InputError(f"job {self.job.id}: remaining_steps", str(self.remaining_steps), expected)
        if not 0 <= self.elapsed_s < inf:
            raise InputError(f"job {self.job.id}: elapsed_s", str(self.elapsed_s), "a finite number of seconds >= 0")


@dataclass(frozen=True)
class Entity:
    """Owner of jobs, such as a team, with its weight and the policy among its jobs.

    Attributes:
        name: unique name, which jobs give as `entity`.
        weight: share of the cluster, relative to other entities.
        policy: how the jobs of the entity share: "fairness" (equal shares by weight) or "fifo" (in order of arrival).
    """

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
    """Fraction of its throughput that each job keeps when two jobs share workers.

    Attributes:
        classes: space-sharing class of each job, as an index into `kept`; shape (jobs,).
        kept: kept[a, b, c] is the fraction of its stand-alone throughput that a job of class a keeps while it shares
            its workers with a job of class b on column c; shape (classes, classes, columns). It is 0 in both
            directions if the two cannot share workers, for example because their scale factors differ.
    """

    classes: np.ndarray
    kept: np.ndarray


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Jobs, workers and throughputs at one moment.

    Attributes:
        types: worker types.
        columns: placements, each a worker type with consolidated or spread workers; they index the columns of arrays.
        jobs: unfinished jobs, in order of arrival.
        throughputs: steps per second of each job alone; shape (jobs, columns); 0 where the job cannot run.
        pairs: fractions of throughput of jobs that share workers; None without space sharing.
        entities: owners of jobs, for hierarchical policies.
        budget_usd: budget in dollars, for policies that keep one; None for no budget.
        spent_usd: spent part of the budget.
        now_s: current time.
        placed: column index of each running job, by id.
        changeover_s: seconds that a job loses when it moves to other workers.
        round_s: length of a round: the maximum time until the next decision, and the maximum work lost when workers
            go away.
        scale_factors, arrived_s: values by job; read-only.
        everywhere: True if all throughputs are positive; False if there are none.
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
            raise InputError("throughputs", found, f"a shape of {len(jobs)} jobs and {len(self.columns)} columns")
        least = steps.min() if steps.size else 0.0
        if not (least >= 0 and steps.max(initial=0.0) < inf):  # also catches NaN
            row, column = np.argwhere(~np.isfinite(steps) | (steps < 0))[0]
            place = f"job {jobs[row].job.id}: throughput on {self.column_name(column)}"
            raise InputError(place, str(steps[row, column]), "steps per second, >= 0")
        if len({active.job.id for active in jobs}) != len(jobs):
            ids = [active.job.id for active in jobs]
            twice = next(name for k, name in enumerate(ids) if name in ids[:k])
            raise InputError(f"job {twice}", "two jobs with this name", "unique names")
        object.__setattr__(self, "scale_factors", [active.job.scale_factor for active in jobs])
        object.__setattr__(self, "arrived_s", [active.job.arrived_s for active in jobs])
        object.__setattr__(self, "everywhere", bool(least > 0))

    def column_name(self, column: int) -> str:
        """Name of a column, such as "v100" or "v100 (spread)"."""
        own = self.columns[column]
        return self.types[own.type].name + ("" if own.consolidated else " (spread)")

    @once
    def workers(self) -> np.ndarray:
        """Number of workers of each type; shape (types,)."""
        return np.array([t.workers for t in self.types], dtype=float)

    @once
    def type_of(self) -> np.ndarray:
        """Worker type index of each column; shape (columns,)."""
        return np.array([c.type for c in self.columns], dtype=np.int64)

    @once
    def prices(self) -> np.ndarray:
        """Price of one worker in dollars per hour, by column."""
        return np.array([t.price_usd_per_hour for t in self.types])[self.type_of]

    @once
    def scale(self) -> np.ndarray:
        """Scale factor (number of workers) of each job, as floats."""
        return np.array(self.scale_factors, dtype=float)

    @once
    def all_fit(self) -> bool:
        """True if every type has enough workers for any single job."""
        scales = self.scale_factors
        # Usually all jobs ask for one worker, which is faster to test than the maximum.
        most = 1 if scales.count(1) == len(scales) else max(scales)
        for own in self.types:
            if own.workers < most:
                return False
        return bool(self.types)

    @once
    def able(self) -> np.ndarray:
        """Throughputs, set to 0 where a type has too few workers for a job; read-only."""
        if self.all_fit:
            return self.throughputs
        return np.where(self.scale[:, None] <= self.workers[self.type_of], self.throughputs, 0.0)

    @once
    def all_run(self) -> bool:
        """True if every job can run on some column."""
        if self.everywhere and self.all_fit:
            return True
        able = self.able
        # Usually all jobs run on the last type, which is faster to test than all columns.
        return (able.size > 0 and np.count_nonzero(able[:, -1]) == len(able)) or bool(able.any(axis=1).all())

    @once
    def weights(self) -> np.ndarray:
        """Weights, by job."""
        return np.array([active.job.weight for active in self.jobs])

    @once
    def remaining_steps(self) -> np.ndarray:
        """Remaining steps, by job."""
        return np.array([active.remaining_steps for active in self.jobs])

    @once
    def elapsed_s(self) -> np.ndarray:
        """Seconds since arrival, by job."""
        return np.array([active.elapsed_s for active in self.jobs])

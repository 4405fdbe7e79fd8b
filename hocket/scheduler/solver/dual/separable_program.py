"""Separable program: jobs with one row each that share only workers.

The program may have a common level.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Common:
    """Separable program in arrays.

        minimize costs . y + weight * level
        subject to, for each job, does . y >= asked + slope * level and sum of y <= 1, and the workers of each type

    Attributes:
        does, costs: throughput and cost per unit of a job's time; shape (jobs, columns), infinite cost where it
            cannot run. With a level, only the level has a cost.
        asked, slope: demand at level 0, and change with the level, by job.
        size: workers used by all of a job's time.
        type_of: type of each column.
        workers: workers by type.
        weight: cost of the level; 0 without a level.
        level: lower and upper bound of the level.
    """

    does: np.ndarray
    costs: np.ndarray
    asked: np.ndarray
    slope: np.ndarray
    size: np.ndarray
    type_of: np.ndarray
    workers: np.ndarray
    weight: float = 0.0
    level: tuple[float, float] = (0.0, 0.0)

    def some(self, stride: int) -> "Common":
        """Program of every `stride`-th job."""
        own = slice(None, None, stride)
        jobs = self.does[own], self.costs[own], self.asked[own], self.slope[own], self.size[own]
        scale = len(jobs[0]) / len(self.does)
        return Common(*jobs, self.type_of, self.workers * scale, self.weight * scale, self.level)

    @cached_property
    def runs(self) -> np.ndarray:
        """Mask of the columns where each job can run."""
        return np.isfinite(self.costs)

    @cached_property
    def does_or_idles(self) -> np.ndarray:
        """Throughput with idling as the last option; shape (jobs, options)."""
        return np.hstack([self.does, np.zeros((len(self.does), 1))])

    @cached_property
    def type_or_none(self) -> np.ndarray:
        """Type of each option; idling has one past the last type."""
        return np.append(self.type_of, len(self.workers))

    def dear(self, prices: np.ndarray) -> np.ndarray:
        """Cost per unit of a job's time at given type prices; shape (jobs, options)."""
        paid = self.costs + self.size[:, None] * prices[self.type_of]
        return np.hstack([paid, np.zeros((len(paid), 1))])

    def load(self, jobs: np.ndarray, option: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Workers by type used by jobs with a fraction of time on one option each."""
        types = len(self.workers)
        return np.bincount(self.type_or_none[option], self.size[jobs] * part, types + 1)[:types]


@dataclass(frozen=True, eq=False)
class Stand:
    """Prices of types and a level."""

    prices: np.ndarray
    level: float


@dataclass(frozen=True, eq=False)
class Basic:
    """Basis of a solution, without the level.

    Masks of basic time fractions, demand rows, time rows and type rows.
    """

    parts: np.ndarray
    asks: np.ndarray
    time: np.ndarray
    types: np.ndarray


@dataclass(frozen=True, eq=False)
class Settled:
    """Solution of the program.

    Fractions of time with shape (jobs, columns), the level, the prices of types, of demands and of time, and the
    basis.
    """

    parts: np.ndarray
    level: float
    prices: np.ndarray
    rates: np.ndarray
    time: np.ndarray
    basic: Basic

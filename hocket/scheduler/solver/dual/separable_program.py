"""Separable linear program: jobs with one demand row each share only workers.

The program may have a level: one variable on which all demands depend.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Common:
    """Separable program in arrays. A job may stand for a group of identical jobs.

        minimize costs . y + weight * level
        subject to, for each job, does . y >= asked + slope * level and sum of y <= 1,
        and, for each worker type, workers in use <= workers

    y are the fractions of a job's time on each column.

    Attributes:
        does, costs: throughput and cost per unit of a job's time; shape (jobs, columns), infinite cost where it
            cannot run. With a level, only the level has a cost.
        asked, slope: demand at level 0, and change of the demand per unit of level, by job.
        size: workers that a job uses when it runs all the time.
        type_of: worker type of each column.
        workers: number of workers of each type.
        weight: cost of one unit of the level; 0 without a level.
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
        """Program of every `stride`-th job, with the same fraction of workers and weight."""
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
        """Throughput of each option: the columns, then idling; shape (jobs, options)."""
        return np.hstack([self.does, np.zeros((len(self.does), 1))])

    @cached_property
    def type_or_none(self) -> np.ndarray:
        """Worker type of each option; idling has the index past the last type."""
        return np.append(self.type_of, len(self.workers))

    def dear(self, prices: np.ndarray) -> np.ndarray:
        """Cost of each option at given worker prices, by type; shape (jobs, options)."""
        paid = self.costs + self.size[:, None] * prices[self.type_of]
        return np.hstack([paid, np.zeros((len(paid), 1))])

    def load(self, jobs: np.ndarray, option: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Number of workers in use, by type.

        Arguments:
            jobs: indices of the jobs that count.
            option, part: option of each of these jobs, and fraction of time on it.
        """
        types = len(self.workers)
        return np.bincount(self.type_or_none[option], self.size[jobs] * part, types + 1)[:types]


@dataclass(frozen=True, eq=False)
class Stand:
    """Worker prices (one dual for each worker type, no dollars) and a level: start or end of a search."""

    prices: np.ndarray
    level: float


@dataclass(frozen=True, eq=False)
class Basic:
    """Basis of a solution, without the level: masks of basic variables and rows.

    Attributes:
        parts: time fractions; shape (jobs, columns).
        asks, time: demand row and time row of each job.
        types: row of each worker type.
    """

    parts: np.ndarray
    asks: np.ndarray
    time: np.ndarray
    types: np.ndarray


@dataclass(frozen=True, eq=False)
class Settled:
    """Solution of the program.

    Attributes:
        parts: fractions of time; shape (jobs, columns).
        level: the level.
        prices: price of a worker of each type.
        rates: price of one more unit of throughput, by job.
        time: price of a job's time, by job.
        basic: the basis.
    """

    parts: np.ndarray
    level: float
    prices: np.ndarray
    rates: np.ndarray
    time: np.ndarray
    basic: Basic

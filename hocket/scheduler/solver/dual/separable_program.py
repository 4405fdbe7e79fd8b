"""Common: a program of many jobs that have only workers in common, a row of its own each, and perhaps a level."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class Common:
    """minimize costs . y + weight * level subject to does . y >= asked + slope * level, sum of y <= 1, by job, and all workers.

    Attributes:
        does, costs: of a unit of a job's time; shape (jobs, columns), infinite costs where it does not run. Where there is a level
            it alone costs something.
        asked, slope: by job. size: workers that all of a job's time takes.
        type_of: of each column. workers: by type.
        weight: of the level; 0 where there is none. level: its least and most.
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
        """Of every so manieth job."""
        own = slice(None, None, stride)
        jobs = self.does[own], self.costs[own], self.asked[own], self.slope[own], self.size[own]
        scale = len(jobs[0]) / len(self.does)
        return Common(*jobs, self.type_of, self.workers * scale, self.weight * scale, self.level)

    @cached_property
    def runs(self) -> np.ndarray:
        """Whether a job runs on a column."""
        return np.isfinite(self.costs)

    @cached_property
    def does_or_idles(self) -> np.ndarray:
        """What is done, with idling as the last option; shape (jobs, options)."""
        return np.hstack([self.does, np.zeros((len(self.does), 1))])

    @cached_property
    def type_or_none(self) -> np.ndarray:
        """Of options: a type behind the last one for idling."""
        return np.append(self.type_of, len(self.workers))

    def dear(self, prices: np.ndarray) -> np.ndarray:
        """What a unit of a job's time costs with workers at so much a type; shape (jobs, options)."""
        paid = self.costs + self.size[:, None] * prices[self.type_of]
        return np.hstack([paid, np.zeros((len(paid), 1))])

    def load(self, jobs: np.ndarray, option: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Workers by type that these jobs take, each for a part of its time on one option."""
        types = len(self.workers)
        return np.bincount(self.type_or_none[option], self.size[jobs] * part, types + 1)[:types]


@dataclass(frozen=True, eq=False)
class Stand:
    """Prices of types and a level."""

    prices: np.ndarray
    level: float


@dataclass(frozen=True, eq=False)
class Basic:
    """What is in the basis of an answer besides the level: parts of time, rows of what is asked, of time, of types."""

    parts: np.ndarray
    asks: np.ndarray
    time: np.ndarray
    types: np.ndarray


@dataclass(frozen=True, eq=False)
class Settled:
    """An answer: parts of time, shape (jobs, columns), the level, and prices of types, of what is asked, and of time."""

    parts: np.ndarray
    level: float
    prices: np.ndarray
    rates: np.ndarray
    time: np.ndarray
    basic: Basic

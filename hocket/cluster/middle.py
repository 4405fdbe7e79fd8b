"""The middle: of all allocations that a policy's objective calls as good, the one farthest from all limits.

An objective such as the largest finish-time fairness leaves open what those jobs get that do not hold it. Policies here give it
to whom it adds most; a solver that walks through the inside of what is allowed, as the public policies' does, ends at the
analytic centre, where the product of all that is left of every limit is largest:

    maximize   sum of log x  +  log(1 - time of a job)  +  log(workers of a type - used)  +  log(throughput of a job - asked)

found by Newton's method. Of a job's own limits the Hessian is a small block, and types couple the blocks by a matrix as small as
their number, so that a step takes time in proportion to the jobs.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 9.5.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hocket.cluster.allocation import ALONE, Allocation
from hocket.cluster.snapshot import Snapshot

__all__ = ["ROOM", "descend", "middle"]

_Left = TypeVar("_Left")  # what is left of limits

ROOM = 1e-3  # of what is asked: what bears the objective has an inside only then
_STEPS = 100
_DONE = 1e-3  # of the Newton decrement, squared; what is left after one more step is its square
_SHRINK, _ENOUGH = 0.5, 0.1  # of a step that leads outside, or gains less than this part of what its slope says
_LEAST = 1e-12  # of a step; a smaller one leads nowhere


def middle(allocation: Allocation, snapshot: Snapshot, asked: np.ndarray) -> Allocation:
    """The allocation in the middle; jobs are alone in it.

    Arguments:
        allocation: one that gives jobs what is asked.
        asked: steps a second that the objective asks for, by job; less, by a thousandth, will do.
    """
    steps, scale = snapshot.throughputs, snapshot.scale
    able = (steps > 0) & (scale[:, None] <= snapshot.workers[snapshot.type_of])
    able[list(allocation.refused)] = False
    jobs = np.flatnonzero(able.any(axis=1))
    if not len(jobs):
        return allocation
    found = np.zeros(steps.shape)
    alone = allocation.second == ALONE
    np.add.at(found, (allocation.first[alone], allocation.column[alone]), allocation.fraction[alone])
    used = np.zeros((len(snapshot.columns), len(snapshot.types)))
    used[np.arange(len(snapshot.columns)), snapshot.type_of] = 1.0
    inside = _Inside(steps[jobs] * able[jobs], able[jobs], scale[jobs], used, snapshot.workers.astype(float))
    times = inside.middle(found[jobs], asked[jobs])
    row, column = np.nonzero(times)
    first = jobs[row]
    return replace(
        allocation, first=first, second=np.full(len(first), ALONE), column=column, fraction=times[row, column]
    )


def descend(
    x: np.ndarray,
    left_of: Callable[[np.ndarray], _Left],
    value_of: Callable[[np.ndarray, _Left], float],
    step_of: Callable[[np.ndarray, _Left], tuple[np.ndarray, float]],
) -> np.ndarray:
    """Newton's method, from a point off every limit to where the value is least.

    Arguments:
        left_of: what a point leaves of the limits. value_of: of a point, infinite outside.
        step_of: from a point, and the square of its decrement.
    """
    left = left_of(x)
    value = value_of(x, left)
    for _ in range(_STEPS):
        step, decrement = step_of(x, left)
        size = 1.0
        while size > _LEAST:
            new = x + size * step
            new_left = left_of(new)
            new_value = value_of(new, new_left)
            if new_value <= value - _ENOUGH * size * decrement:
                break
            size *= _SHRINK
        else:
            return x
        x, left, value = new, new_left, new_value
        if decrement <= _DONE:
            return x
    return x


class _Inside:
    """What jobs may have, and the way to its middle; shapes (jobs, columns), but used (columns, types), workers (types,)."""

    def __init__(
        self, steps: np.ndarray, able: np.ndarray, scale: np.ndarray, used: np.ndarray, workers: np.ndarray
    ) -> None:
        self.fastest = steps.max(axis=1)
        self.steps = steps / np.maximum(self.fastest, 1e-300)[:, None]  # of each job's fastest
        self.able, self.scale, self.used = able, scale, used
        self.workers = np.maximum(workers, 1e-9)
        self.load = scale[:, None, None] * used * able[:, :, None]  # of types, by job and column
        self._flat = self.load.reshape(-1, used.shape[1])
        self._unable = (~able).astype(float)

    def middle(self, found: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """The middle, from an allocation at the edge."""
        x = self._start(found)
        throughput = (self.steps * x).sum(axis=1)
        self.asked = np.minimum(asked / self.fastest * (1 - ROOM), throughput * (1 - ROOM / 4))
        return descend(x, self._left, self._value, self._newton)

    def _start(self, found: np.ndarray) -> np.ndarray:
        """Close to what was found, and off every limit."""
        all_used = (self.scale[:, None] * self.able).sum(axis=0) @ self.used
        share = np.minimum(self.workers / np.maximum(all_used, 1e-300), 1.0) @ self.used.T
        even = self.able * share / (2 * self.able.shape[1])
        return (1 - ROOM / 2) * found * self.able + ROOM / 4 * even

    def _left(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each job's time, each type's workers, and what each job has above what is asked."""
        types = self.workers - (self.scale @ x) @ self.used
        return 1 - x.sum(axis=1), types, (self.steps * x).sum(axis=1) - self.asked

    def _value(self, x: np.ndarray, left: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
        x = x + self._unable  # whose logarithm is 0
        if x.min() <= 0 or min(float(part.min()) for part in left) <= 0:
            return float("inf")
        return -float(np.log(x).sum() + sum(np.log(part).sum() for part in left))

    def _newton(self, x: np.ndarray, left: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[np.ndarray, float]:
        """The step, and the square of its decrement."""
        time, types, more = left
        by_time, by_more = 1 / time[:, None], self.steps / more[:, None]
        slope = (by_time - 1 / (x + self._unable) - by_more + self.load @ (1 / types)) * self.able
        solved = self._blocks(x, by_time, by_more, np.concatenate([slope[:, :, None], self.load], axis=2))
        plain, coupled = solved[:, :, 0], solved[:, :, 1:]
        small = np.diag(types**2) + self._flat.T @ coupled.reshape(self._flat.shape)
        price = np.linalg.solve(small, self._flat.T @ plain.reshape(-1))
        step = coupled @ price - plain
        return step, float(-(slope * step).sum())

    def _blocks(self, x: np.ndarray, by_time: np.ndarray, by_more: np.ndarray, right: np.ndarray) -> np.ndarray:
        """What each job's block of the Hessian, a diagonal and two outer products, makes of right sides, solved by Woodbury's
        formula; shape as that of the right sides, (jobs, columns, any).

        Arguments:
            by_time, by_more: what the outer products are of; shapes (jobs, 1) and (jobs, columns).
        """
        diagonal = x * x * self.able  # inverted
        ones, steps = diagonal * by_time, diagonal * by_more
        both = np.stack([ones, steps], axis=1)
        a = 1 + (ones * by_time).sum(axis=1)
        b = (ones * by_more).sum(axis=1)
        c = 1 + (steps * by_more).sum(axis=1)
        inverse = np.stack([c, -b, -b, a], axis=1) / (a * c - b * b)[:, None]
        found: np.ndarray = diagonal[:, :, None] * right
        found -= both.transpose(0, 2, 1) @ (inverse.reshape(-1, 2, 2) @ (both @ right))
        return found

"""Edges: where each job stands by itself at some prices of workers.

At prices a job's columns, and idling, are points: what it does there, and what that costs. The cheapest way to do so much lies on
the lower edge of their convex hull, between two of them. So it is known at once for thousands of jobs, and how far prices would
have to move before a job changes to another edge.
Source: Lagrangian relaxation of what all jobs have in common; the hull by gift wrapping (Jarvis 1973).
"""

from dataclasses import dataclass

import numpy as np

_SAME = 1e-13  # of costs: points that cost alike


@dataclass(frozen=True, eq=False)
class Edges:
    """One edge a job, of two options: columns, and idling as the last; twice the same where it does more than it has to.

    Attributes:
        low, high: options. rate: what a unit more costs. time: what a unit of time is worth. begins, length: of the edge, in
            what is done.
    """

    low: np.ndarray
    high: np.ndarray
    rate: np.ndarray
    time: np.ndarray
    begins: np.ndarray
    length: np.ndarray

    def part(self, asked: np.ndarray) -> np.ndarray:
        """Of time on the higher option, where so much is asked; not in 0 to 1 where it lies beyond the edge."""
        single = self.low == self.high
        return np.where(single, 0.0, (asked - self.begins) / np.where(single, 1.0, self.length))


def edges(does: np.ndarray, costs: np.ndarray, asked: np.ndarray) -> Edges:
    """The edge of each job where what is asked is cheapest.

    Arguments:
        does, costs: of a unit of time; shape (jobs, options), the last of them idling; infinite costs where there is none.
        asked: of each job; what is beyond its best option counts as that.
    """
    every = np.arange(len(does))
    least = costs.min(axis=1)
    near = costs <= (least + _SAME * np.abs(least))[:, None]
    low = np.where(near, does, -1.0).argmax(axis=1)
    high, rate = low.copy(), np.zeros(len(does))
    asked = np.minimum(asked, does.max(axis=1))
    left = np.flatnonzero(does[every, low] < asked)
    while len(left):
        at = high[left]
        low[left] = at
        own = does[left]
        more = own - does[left, at][:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(more > 0, (costs[left] - costs[left, at][:, None]) / more, np.inf)
        high[left] = slope.argmin(axis=1)
        rate[left] = np.maximum(slope.min(axis=1), rate[left])
        left = left[does[left, high[left]] < asked[left]]
    begins = does[every, low]
    time = rate * begins - costs[every, low]
    return Edges(low, high, rate, time, begins, does[every, high] - begins)


def reach(found: Edges, does: np.ndarray, costs: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """By how much prices may move before each job changes to another edge; shape (jobs,).

    Arguments:
        moves: by how much costs of options change at most where prices move by 1; shape (jobs, options).
    """
    every = np.arange(len(does))
    single = found.low == found.high
    length = np.where(single, 1.0, found.length)
    along = np.where(single[:, None], 0.0, (does - found.begins[:, None]) / length[:, None])
    below, above = moves[every, found.low], moves[every, found.high]
    spare = costs - found.rate[:, None] * does + found.time[:, None]
    shift = moves + np.abs(1 - along) * below[:, None] + np.abs(along) * above[:, None]
    spare[every, found.low] = np.inf
    spare[every, found.high] = np.inf
    far = np.full(spare.shape, np.inf)
    np.divide(np.maximum(spare, 0.0), shift, out=far, where=np.isfinite(spare) & (shift > 0))
    turns = np.where(single, np.inf, found.rate * length / np.maximum(below + above, 1e-300))
    return np.minimum(far.min(axis=1), turns)

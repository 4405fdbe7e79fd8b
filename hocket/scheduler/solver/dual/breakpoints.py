"""Breakpoints: each job's cheapest mix of two options at given worker prices.

At given prices, each option of a job (a column, or idling) is a point (throughput, cost). The cheapest way to reach a
demand is a point on the lower boundary of their convex hull: a mix of the two options at the ends of a hull edge. The
edges are computed at once for thousands of jobs, together with the price change that would move a job to another edge.
Source: Lagrangian relaxation of the shared constraints; the hull by gift wrapping (Jarvis 1973).
"""

from dataclasses import dataclass

import numpy as np

_SAME = 1e-13  # relative tolerance of equal costs


@dataclass(frozen=True, eq=False)
class Edges:
    """Hull edge of each job, between two of its options; arrays by job.

    Options are the columns, followed by idling. Both options are equal if a job's cheapest option meets its demand.

    Attributes:
        low, high: the options with the lower and the higher throughput.
        rate: cost of one more unit of throughput (slope of the edge).
        time: price of one unit of the job's time.
        begins, length: throughput of option `low`, and from there to option `high`.
    """

    low: np.ndarray
    high: np.ndarray
    rate: np.ndarray
    time: np.ndarray
    begins: np.ndarray
    length: np.ndarray

    def part(self, asked: np.ndarray) -> np.ndarray:
        """Fraction of time on option `high` that meets a demand, by job.

        Below 0 or above 1 if the demand is beyond the edge; 0 if both options are equal.
        """
        single = self.low == self.high
        return np.where(single, 0.0, (asked - self.begins) / np.where(single, 1.0, self.length))


def edges(does: np.ndarray, costs: np.ndarray, asked: np.ndarray) -> Edges:
    """Hull edge with each job's cheapest mix of two options that meets its demand.

    Arguments:
        does, costs: throughput and cost per unit of time; shape (jobs, options). The last option is idling. A column
            where the job cannot run has an infinite cost.
        asked: demand of each job, in units of throughput. It is limited to the throughput of the job's fastest option.
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
    """Smallest price change that may move each job to another edge; shape (jobs,).

    Arguments:
        found: current edges.
        does, costs: throughput and cost per unit of time; shape (jobs, options). The last option is idling.
        moves: maximum change of each option's cost per unit of price change; shape (jobs, options).
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

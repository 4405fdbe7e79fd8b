"""The fastest path through a sequence of steps under limits, by Pareto fronts.

A path chooses a number of devices before the first step and after each step. Every step adds seconds and amounts
(GPU-seconds of the iteration, bytes of a device). The sum of each amount over the path has a limit.

The search keeps the Pareto front of (seconds, amounts) for every number of devices. It drops an entry if no
continuation can be within the limits, or as fast as a path that is already known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_HALVINGS = 30


@dataclass(frozen=True)
class ParetoStep:
    """Seconds and amounts that one step adds, by numbers of devices around it.

    Attributes:
        seconds: shape (counts before, counts after); infinite where the step is forbidden.
        amounts: limited quantities, such as GPU-seconds; shape (amounts, counts before, counts after).
    """

    seconds: np.ndarray
    amounts: np.ndarray


def fastest_within(steps: Sequence[ParetoStep], limits: np.ndarray) -> tuple[int, ...] | None:
    """Find the fastest path through the steps with sums of amounts within limits.

    Arguments:
        steps: costs of each step.
        limits: maximum sum of each amount over all steps.

    Returns:
        The number of devices before the first step and after each step, as indices into the possible numbers; None if
        no path is within the limits.
    """
    least_s = _least_rest([step.seconds for step in steps])
    least = [_least_rest([step.amounts[kind] for step in steps]) for kind in range(len(limits))]
    known_s = _known(steps, limits)
    n = steps[0].seconds.shape[0]
    width = 1 + len(limits)
    fronts = [np.zeros((1, width)) for _ in range(n)]
    trails: list[list[np.ndarray]] = []
    most = np.concatenate(([known_s], limits)) * (1 + 1e-9)
    for k, step in enumerate(steps):
        fresh, trail = [], []
        rest = np.stack([least_s[k + 1], *(one[k + 1] for one in least)])
        for g in range(n):
            found, back = [], []
            for h in range(n):
                if not len(fronts[h]) or not np.isfinite(step.seconds[h, g]):
                    continue
                sums = fronts[h] + np.array([step.seconds[h, g], *step.amounts[:, h, g]])
                kept = np.flatnonzero((sums + rest[:, g] <= most).all(axis=1))
                found.append(sums[kept])
                back.append(np.stack([np.full(len(kept), h), kept], axis=1))
            if not found:
                fresh.append(np.zeros((0, width)))
                trail.append(np.zeros((0, 2), dtype=np.int64))
                continue
            sums, ways = np.concatenate(found), np.concatenate(back)
            front = _front(sums)
            fresh.append(sums[front])
            trail.append(ways[front])
        fronts = fresh
        trails.append(trail)
    ends = [(front[:, 0].min(), g) for g, front in enumerate(fronts) if len(front)]
    if not ends:
        return None
    g = min(ends)[1]
    at = int(fronts[g][:, 0].argmin())
    counts = [g]
    for trail in reversed(trails):
        g, at = (int(value) for value in trail[g][at])
        counts.append(g)
    return tuple(reversed(counts))


def _least_rest(steps: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Least sum over the remaining steps, from each position between steps.

    Arguments:
        steps: seconds or one amount of each step; shape (counts before, counts after).

    Returns:
        One array of shape (counts,) before each step, and zeros after the last.
    """
    rest = [np.zeros(steps[-1].shape[1])]
    for step in reversed(steps):
        rest.append((step + rest[-1][None]).min(axis=1))
    return rest[::-1]


def _known(steps: Sequence[ParetoStep], limits: np.ndarray) -> float:
    """Upper bound of the seconds of the fastest path within the limits.

    Bisection lowers the price of amounts as far as the path of least cost stays within the limits. The bound is
    infinite if no path within the limits is found.
    """
    seconds, amounts = (np.stack([getattr(step, name) for step in steps]) for name in ("seconds", "amounts"))
    best, low, high = np.inf, 0.0, None
    price = 1e-3
    for _ in range(_HALVINGS):
        took_s, used = _priced(seconds, amounts, price / limits)
        if (used <= limits).all():
            best, high = min(best, took_s), price
        else:
            low = price
        price = price * 8 if high is None else (low + high) / 2
    return float(best)


def _priced(seconds: np.ndarray, amounts: np.ndarray, prices: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds and amounts of the path of least cost.

    The cost is the sum of seconds and priced amounts.

    Arguments:
        seconds: shape (steps, counts before, counts after).
        amounts: shape (steps, amounts, counts before, counts after).
        prices: price of each amount, in seconds.
    """
    steps, n, _ = seconds.shape
    costs = seconds.copy()
    for kind, price in enumerate(prices):
        costs += price * amounts[:, kind]
    cost, columns = np.zeros(n), np.arange(n)
    came = np.empty((steps, n), dtype=np.int64)
    for k in range(steps):
        whole = cost[:, None] + costs[k]
        came[k] = whole.argmin(axis=0)
        cost = whole[came[k], columns]
    row = [int(cost.argmin())]
    for k in reversed(range(steps)):
        row.append(int(came[k, row[-1]]))
    row.reverse()
    along = (np.arange(steps), row[:-1], row[1:])
    used: np.ndarray = amounts[along[0], :, along[1], along[2]].sum(axis=0)
    return float(seconds[along].sum()), used


def _front(sums: np.ndarray) -> np.ndarray:
    """Indices of the rows of an array that are on its Pareto front.

    Of equal rows only the first is included.
    """
    order = np.lexsort(sums.T[::-1])
    if sums.shape[1] == 2:
        amounts = sums[order, 1]
        before = np.concatenate(([np.inf], np.minimum.accumulate(amounts)[:-1]))
        return order[amounts < before]
    kept: list[int] = []
    for i in order:
        if not kept or not (sums[kept] <= sums[i]).all(axis=1).any():
            kept.append(int(i))
    return np.array(kept, dtype=np.int64)

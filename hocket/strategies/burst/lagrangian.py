"""Lagrangian costs: the numbers of devices of least cost, step by step.

Figures are arrays of shape (..., 1 + amounts, counts before, counts after): seconds first, then amounts such as
GPU-seconds. The cost is the sum of seconds and of each amount times its price; without prices it is the seconds. A
forbidden entry has infinite seconds. Amounts are always finite.
"""

from functools import lru_cache
from itertools import product

import numpy as np

AMOUNTS = 2  # GPU-seconds; bytes of all units, if one device held them all
_CELLS = 2_000_000  # maximum number of sums in memory at a time


def parts_of(cells: int) -> int:
    """Number of parts in which to compute `cells` sums, to limit memory."""
    return -(-cells // _CELLS)


class Prices:
    """Prices of amounts, in seconds; a second costs 1.

    Attributes:
        amounts: True if figures have amounts.
    """

    def __init__(self, of_amounts: tuple[float, float] | None) -> None:
        self.amounts = of_amounts is not None
        self._each = of_amounts or ()

    def cost(self, figures: np.ndarray) -> np.ndarray:
        """Cost of figures: their seconds and priced amounts."""
        cost: np.ndarray = figures[..., 0, :, :]
        for k, price in enumerate(self._each, 1):
            if price:
                cost = cost + price * figures[..., k, :, :]
        return cost

    def forward(self, cost: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least cost after a step for each count, and the count before it."""
        sums = cost[:, None] + self.cost(step)
        at = sums.argmin(axis=0)
        return np.take_along_axis(sums, at[None], axis=0)[0], at

    def least_sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Figures of two steps together, for each width.

        The result at (i, j) is first[i, k] + second[k, j] for the k of least cost.
        """
        widths, kinds, n = max(len(first), len(second)), first.shape[1], first.shape[-1]
        before, behind = self.cost(first)[..., None], self.cost(second)[:, None]
        if parts_of(widths * n**3) <= 1:
            at = (before + behind).argmin(axis=2)
        else:
            before, behind = (np.broadcast_to(one, (widths, *one.shape[1:])) for one in (before, behind))
            at = np.empty((widths, n, n), dtype=np.int64)
            for w, i in product(range(widths), range(n)):
                at[w, i] = (before[w, i] + behind[w, 0]).argmin(axis=0)
        width, kind, row, column = _grid(widths, kinds, n)
        at = at[:, None]
        sums: np.ndarray = first[width % len(first), kind, row, at] + second[width % len(second), kind, at, column]
        return sums


@lru_cache(maxsize=64)
def _grid(widths: int, kinds: int, n: int) -> tuple[np.ndarray, ...]:
    """Open index grid of figures: (widths, kinds, counts before, counts after)."""
    return tuple(np.ogrid[:widths, :kinds, :n, :n])


def back(came: list[np.ndarray], end: int) -> tuple[int, ...]:
    """Trace back the counts of least cost through `Prices.forward` steps.

    Arguments:
        came: second result of each `forward`, in order.
        end: the count after the last step.

    Returns:
        The count before the first step, and the count after each step.
    """
    found = [end]
    for at in reversed(came):
        found.append(int(at[found[-1]]))
    return tuple(reversed(found))

"""Lagrangian costs: the numbers of devices of least cost, step by step.

A count is a possible number of devices, given as an index. Figures are arrays of costs with the shape (..., 1 +
amounts, counts before, counts after), where before and after mean the units before and after a step. Seconds come
first, then amounts such as GPU-seconds. The cost is the sum of seconds and of each amount times its price; without
prices it is the seconds. A forbidden entry has infinite seconds. Amounts are always finite.
"""

from functools import lru_cache
from itertools import product

import numpy as np

AMOUNTS = 2  # GPU-seconds; bytes of a device that is in the set of every unit
_CELLS = 2_000_000  # maximum number of sums in memory at a time


def parts_of(cells: int) -> int:
    """Number of parts into which to divide the computation of `cells` sums.

    The division limits memory.
    """
    return -(-cells // _CELLS)


class Prices:
    """Prices (Lagrange multipliers) of amounts; a second costs 1.

    Arguments:
        of_amounts: price in seconds of a GPU-second and of a byte; None if figures have only seconds.

    Attributes:
        amounts: True if figures have amounts.
    """

    def __init__(self, of_amounts: tuple[float, float] | None) -> None:
        self.amounts = of_amounts is not None
        self._each = of_amounts or ()

    def cost(self, figures: np.ndarray) -> np.ndarray:
        """Seconds plus priced amounts; shape (..., counts before, counts after)."""
        cost: np.ndarray = figures[..., 0, :, :]
        for k, price in enumerate(self._each, 1):
            if price:
                cost = cost + price * figures[..., k, :, :]
        return cost

    def forward(self, cost: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Extend shortest paths by one step.

        Arguments:
            cost: least cost of a path to each count before the step; shape (counts,).
            step: figures of the step.

        Returns:
            Least cost of a path to each count after the step, and the count before the step on this path.
        """
        sums = cost[:, None] + self.cost(step)
        at = sums.argmin(axis=0)
        return np.take_along_axis(sums, at[None], axis=0)[0], at

    def least_sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Figures of two consecutive steps together.

        The result at (i, j) is first[i, k] + second[k, j] for the count k of least cost.

        Arguments:
            first: figures of the first step; shape (widths or 1, figures, counts, counts).
            second: figures of the second step, with the same shape.
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
        The count before the first step, and the count after each step, as indices.
    """
    found = [end]
    for at in reversed(came):
        found.append(int(at[found[-1]]))
    return tuple(reversed(found))

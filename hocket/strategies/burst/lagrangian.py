"""Prices of figures: which numbers of devices cost least, one step after the other.

Rules of this file: figures stand in arrays of shape (..., 1 + amounts, counts before, counts behind), seconds first; cost is their sum at
prices, seconds alone where amounts have none. What is not allowed takes infinite seconds; amounts are always finite.
"""

from functools import lru_cache
from itertools import product

import numpy as np

AMOUNTS = 2  # GPU-seconds; bytes that one device would hold of all units
_CELLS = 2_000_000  # of sums at once in memory


def parts_of(cells: int) -> int:
    """Number of parts to compute so many sums in, limited by memory."""
    return -(-cells // _CELLS)


class Prices:
    """Prices of a second and of each amount.

    Attributes:
        amounts: whether figures have them.
    """

    def __init__(self, of_amounts: tuple[float, float] | None) -> None:
        self.amounts = of_amounts is not None
        self._each = of_amounts or ()

    def cost(self, figures: np.ndarray) -> np.ndarray:
        """Cost of figures."""
        cost: np.ndarray = figures[..., 0, :, :]
        for k, price in enumerate(self._each, 1):
            if price:
                cost = cost + price * figures[..., k, :, :]
        return cost

    def forward(self, cost: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least cost behind a step, and where it comes from."""
        sums = cost[:, None] + self.cost(step)
        at = sums.argmin(axis=0)
        return np.take_along_axis(sums, at[None], axis=0)[0], at

    def least_sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Figures of first[i, k] + second[k, j] for the k of the least cost, for each width."""
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
    """Indices along each axis of figures by width."""
    return tuple(np.ogrid[:widths, :kinds, :n, :n])


def back(came: list[np.ndarray], end: int) -> tuple[int, ...]:
    """The counts along the way of `forward`s that ends here, the first one before the first step."""
    found = [end]
    for at in reversed(came):
        found.append(int(at[found[-1]]))
    return tuple(reversed(found))

"""The analytic centre: of all that limits allow, the point where the product of all that is left of them is largest.

    maximize   sum of weight * log(x)  +  sum of weight * log(most - A x)

Newton's method on the point and the prices of its limits together: at the centre a price times what is left of its limit is its
weight. From close to a limit that takes a few steps, where Newton's method on the point alone doubles what is left in each.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 11.7.
"""

from functools import cached_property, lru_cache

import numpy as np

__all__ = ["IndependentLimits", "LimitMatrix", "centre"]

_STEPS = 100
_DONE = 1e-3  # of the Newton decrement, squared; what is left after one more step is its square
_NEAR = 0.8  # of the way to the next limit, or to a price of nothing: no step goes further
_GUESS = (
    0.3  # of a limit, for each of those that it holds: what will be left of it, if that is more than there is at first
)


class LimitMatrix:
    """The limits' matrix A, (limits, variables); as a variable stands in a few limits only, by place in those of the variable.

    Sums over so few entries are quicker than products of matrices, and the same however many threads those would be given.
    """

    def __init__(self, rows: np.ndarray, values: np.ndarray, count: int) -> None:
        """
        Arguments:
            rows, values: limits of each variable, and what it is to them; shape (places, variables).
            count: of the limits.
        """
        self.count, self._rows, self._values = count, rows, values
        self._flat = rows.ravel()

    @staticmethod
    def of_entries(rows: np.ndarray, variables: np.ndarray, values: np.ndarray, count: int) -> "LimitMatrix":
        """From entries (row, variable, value) in any order; all variables have some."""
        order = np.argsort(variables, kind="stable")
        often = np.bincount(variables)
        place = np.arange(len(order)) - np.repeat(np.cumsum(often) - often, often)
        shape = int(often.max()), len(often)
        by_place, of_variable = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        by_place[place, variables[order]], of_variable[place, variables[order]] = rows[order], values[order]
        return LimitMatrix(by_place, of_variable, count)

    def of(self, x: np.ndarray) -> np.ndarray:
        """What variables use of each limit."""
        return np.bincount(self._flat, (self._values * x).ravel(), self.count)

    def back(self, prices: np.ndarray) -> np.ndarray:
        """What prices of limits are for each variable."""
        found: np.ndarray = np.add.reduce(self._values * prices[self._rows], axis=0)
        return found

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The x for which (1 / own) x + A' (1 / left) A x = -slope, with `own` and `left` diagonal matrices.

        As many equations as there are limits: a diagonal and outer products, by Woodbury's formula.
        """
        small = self.squared(own)
        small.reshape(-1)[:: self.count + 1] += left
        return own * (self.back(np.linalg.solve(small, self.of(own * slope))) - slope)

    def squared(self, diagonal: np.ndarray) -> np.ndarray:
        """The matrix, a diagonal one of variables, and the matrix transposed."""
        both, products = self._both
        half = np.bincount(both, (products * diagonal).ravel(), self.count**2).reshape(self.count, self.count)
        return half + half.T

    @cached_property
    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        """Of every two places of a variable: where that is in a matrix of limits, and half of what it is there."""
        one, two, half = _halves(len(self._rows))
        return (self._rows[one] * self.count + self._rows[two]).ravel(), self._values[one] * self._values[two] * half


@lru_cache(maxsize=16)
def _halves(places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every two places once, and of what a matrix has there one half: all of it, but on the diagonal."""
    one, two = np.triu_indices(places)
    return one, two, np.where(one == two, 0.5, 1.0)[:, None]


class IndependentLimits(LimitMatrix):
    """Limits of groups that have nothing but workers in common: their time, types of workers, what each does.

    Of a group's own limits a step's equations are a small block, a diagonal and two outer products; types couple the blocks by
    as many equations as there are types. So a step takes time in proportion to the variables.
    """

    def __init__(self, group: np.ndarray, kind: np.ndarray, scale: np.ndarray, does: np.ndarray, types: int) -> None:
        """
        Arguments:
            group, kind: of each variable, one group's together: whose it is, and of which of the types.
            scale: workers that it takes, by variable. does: of what is asked of the group.
        """
        groups, ones = int(group[-1]) + 1, np.ones(len(group))
        rows = np.array([group, groups + kind, groups + types + group])
        super().__init__(rows, np.array([ones, scale, -does]), 2 * groups + types)
        self._group, self._begins = group, group.searchsorted(np.arange(groups))
        self._groups, self._types = groups, types
        own = np.array([ones, does])  # in its group's block: to time, and to what is asked
        right = np.zeros((types + 1, 1, len(group)))
        right[kind, 0, np.arange(len(group))] = scale
        # What blocks are made of, and what they are solved for: types, and the slope, which every step writes anew.
        self._summed = np.concatenate([own, own[1:] * does, (right * own).reshape(-1, len(group))])
        self._own, self._right = self._summed[:2], self._summed[3::2]
        self._slope = np.zeros(types + 1)  # which has a price of -1 beside those of types
        self._slope[types] = 1.0

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """As of any limits."""
        groups, types, right = self._groups, self._types, self._right
        right[types] = slope
        np.multiply(slope, self._own[1], out=self._summed[-1])
        weighed = own * self._summed
        sums = np.add.reduceat(weighed, self._begins, axis=1)
        time, both, does = left[:groups] + sums[0], sums[1], left[groups + types :] + sums[2]
        asked = sums[3:].reshape(types + 1, 2, groups)
        solved = np.empty_like(asked)
        solved[:, 0] = does * asked[:, 0] - both * asked[:, 1]
        solved[:, 1] = time * asked[:, 1] - both * asked[:, 0]
        solved /= time * does - both * both
        by_right = solved.reshape(types + 1, 2 * groups)
        small = weighed[3::2] @ right.T - asked.reshape(by_right.shape) @ by_right.T
        small.reshape(-1)[: -types - 1 : types + 2] += left[groups : groups + types]
        small[types] = self._slope
        price = np.linalg.solve(small, -self._slope)
        of_time, of_asked = (price @ by_right).reshape(2, groups)[:, self._group]
        found: np.ndarray = own * (price @ right - of_time - self._own[1] * of_asked)
        return found


def centre(x: np.ndarray, most: np.ndarray, weights: np.ndarray, limits: LimitMatrix) -> np.ndarray:
    """The analytic centre.

    Arguments:
        x: a point off every limit. most: of each limit.
        weights: of the variables' own logarithms, then of those of what is left of limits.
    """
    own = len(x)
    left = np.concatenate([x, most - limits.of(x)])
    price = weights / np.maximum(left, _GUESS * weights)
    for _ in range(_STEPS):
        aim = weights / left
        slope = limits.back(aim[own:]) - aim[:own]
        ratio = left / price
        step = limits.step(ratio[:own], ratio[own:], slope)
        change = np.concatenate([step, -limits.of(step)])
        rise = aim - price - change / ratio
        size, decrement = _size(left, change), -float(slope @ step)
        left += size * change
        price += _size(price, rise) * rise
        if size == 1.0 and decrement <= _DONE:
            break
    return left[:own]


def _size(figures: np.ndarray, change: np.ndarray) -> float:
    """How much of a change figures > 0 may take, to be so afterwards."""
    least = float(np.minimum.reduce(change / figures))
    return 1.0 if least > -_NEAR else _NEAR / -least

"""Analytic center: the point with the largest product of all slacks.

    maximize   sum of weight * log(x)  +  sum of weight * log(most - A x)

Primal-dual Newton method on the point and the prices of its limits. At the center, a price times the slack of its
limit equals its weight. From a point close to a limit this takes a few steps, while the primal Newton method only
doubles the slack in each step.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 11.7.
"""

from functools import cached_property, lru_cache

import numpy as np

__all__ = ["IndependentLimits", "LimitMatrix", "centre"]

_STEPS = 100
_DONE = 1e-3  # squared Newton decrement; one more step squares the error
_NEAR = 0.8  # maximum part of the way to the next limit or to a zero price
_GUESS = 0.3  # expected slack per weight of a limit, if larger than the initial slack


class LimitMatrix:
    """Sparse matrix A of the limits, shape (limits, variables).

    A variable has few limits, so the entries are stored by position among the variable's limits. Sums over so few
    entries are faster than matrix products, and independent of the number of threads.
    """

    def __init__(self, rows: np.ndarray, values: np.ndarray, count: int) -> None:
        """
        Arguments:
            rows, values: limits of each variable and the coefficients; shape (positions, variables).
            count: number of limits.
        """
        self.count, self._rows, self._values = count, rows, values
        self._flat = rows.ravel()

    @staticmethod
    def of_entries(rows: np.ndarray, variables: np.ndarray, values: np.ndarray, count: int) -> "LimitMatrix":
        """Matrix from entries (row, variable, value) in any order.

        Every variable needs an entry.
        """
        order = np.argsort(variables, kind="stable")
        often = np.bincount(variables)
        place = np.arange(len(order)) - np.repeat(np.cumsum(often) - often, often)
        shape = int(often.max()), len(often)
        by_place, of_variable = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        by_place[place, variables[order]], of_variable[place, variables[order]] = rows[order], values[order]
        return LimitMatrix(by_place, of_variable, count)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Usage of each limit, A x."""
        return np.bincount(self._flat, (self._values * x).ravel(), self.count)

    def back(self, prices: np.ndarray) -> np.ndarray:
        """Price of each variable, A' times the limit prices."""
        found: np.ndarray = np.add.reduce(self._values * prices[self._rows], axis=0)
        return found

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Solve (1 / own) x + A' (1 / left) A x = -slope, with diagonal `own`, `left`.

        By Woodbury's formula the system has one equation per limit: a diagonal plus outer products.
        """
        small = self.squared(own)
        small.reshape(-1)[:: self.count + 1] += left
        return own * (self.back(np.linalg.solve(small, self.of(own * slope))) - slope)

    def squared(self, diagonal: np.ndarray) -> np.ndarray:
        """A D A' for a diagonal D of the variables."""
        both, products = self._both
        half = np.bincount(both, (products * diagonal).ravel(), self.count**2).reshape(self.count, self.count)
        return half + half.T

    @cached_property
    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        """For each two positions of a variable: flat matrix index, and half the product."""
        one, two, half = _halves(len(self._rows))
        return (self._rows[one] * self.count + self._rows[two]).ravel(), self._values[one] * self._values[two] * half


@lru_cache(maxsize=16)
def _halves(places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index pairs of positions, each once, with factor 1 or 1/2 on the diagonal."""
    one, two = np.triu_indices(places)
    return one, two, np.where(one == two, 0.5, 1.0)[:, None]


class IndependentLimits(LimitMatrix):
    """Limits of groups that share only workers.

    The limits are the groups' time, the worker types, and the groups' demands. The equations of a group's own limits
    form a small block, a diagonal plus two outer products. Types couple the blocks with one equation per type. A step
    therefore costs time linear in the number of variables.
    """

    def __init__(self, group: np.ndarray, kind: np.ndarray, scale: np.ndarray, does: np.ndarray, types: int) -> None:
        """
        Arguments:
            group, kind: group and type of each variable, sorted by group.
            scale: workers used, by variable.
            does: contribution to the group's demand, by variable.
            types: number of types.
        """
        groups, ones = int(group[-1]) + 1, np.ones(len(group))
        rows = np.array([group, groups + kind, groups + types + group])
        super().__init__(rows, np.array([ones, scale, -does]), 2 * groups + types)
        self._group, self._begins = group, group.searchsorted(np.arange(groups))
        self._groups, self._types = groups, types
        own = np.array([ones, does])  # in the group's block: coefficients of time and of the demand
        right = np.zeros((types + 1, 1, len(group)))
        right[kind, 0, np.arange(len(group))] = scale
        # Block coefficients and right sides: types, and the slope, which every step overwrites.
        self._summed = np.concatenate([own, own[1:] * does, (right * own).reshape(-1, len(group))])
        self._own, self._right = self._summed[:2], self._summed[3::2]
        self._slope = np.zeros(types + 1)  # the slope has price -1, next to the prices of types
        self._slope[types] = 1.0

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Solve the equations of `LimitMatrix.step`."""
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
    """Compute the analytic center.

    Arguments:
        x: a strictly feasible point.
        most: upper side of each limit.
        weights: weights of the logarithms, of variables first, then of slacks.
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
    """Largest step size that keeps positive values positive."""
    least = float(np.minimum.reduce(change / figures))
    return 1.0 if least > -_NEAR else _NEAR / -least

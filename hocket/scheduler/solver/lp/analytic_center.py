"""Analytic center of x >= 0, A x <= most: the largest product of slacks.

    maximize   sum of weight * log(x)  +  sum of weight * log(most - A x)

Primal-dual Newton method on x and on the prices (dual variables) of the constraints. At the center, the price of each
constraint times its slack equals its weight. From a point close to a constraint this takes a few steps, while the
primal Newton method only doubles the slack in each step. A "limit" in this file is a constraint.
Source: Boyd and Vandenberghe 2004, sections 8.5.3 and 11.7.
"""

from functools import cached_property, lru_cache

import numpy as np

__all__ = ["IndependentLimits", "LimitMatrix", "centre"]

_STEPS = 100
_DONE = 1e-3  # squared Newton decrement; one more step squares the error
_NEAR = 0.8  # maximum fraction of the distance to the next constraint, or to a price of 0
_GUESS = 0.3  # initial prices assume a slack of at least this times the weight of the constraint


class LimitMatrix:
    """Sparse constraint matrix A, shape (constraints, variables).

    Each variable is in few constraints. The nonzero entries are stored in dense arrays of shape (entries per variable,
    variables). Sums over so few entries are faster than matrix products, and do not depend on the number of threads.
    """

    def __init__(self, rows: np.ndarray, values: np.ndarray, count: int) -> None:
        """
        Arguments:
            rows, values: constraint index and coefficient of each entry of each variable; shape (entries per variable,
                variables). Unused places have the value 0.
            count: number of constraints.
        """
        self.count, self._rows, self._values = count, rows, values
        self._flat = rows.ravel()

    @staticmethod
    def of_entries(rows: np.ndarray, variables: np.ndarray, values: np.ndarray, count: int) -> "LimitMatrix":
        """Build the matrix from its entries, in any order.

        Arguments:
            rows, variables, values: constraint index, variable index and coefficient of each entry; at least one entry
                for each variable.
            count: number of constraints.
        """
        order = np.argsort(variables, kind="stable")
        often = np.bincount(variables)
        place = np.arange(len(order)) - np.repeat(np.cumsum(often) - often, often)
        shape = int(often.max()), len(often)
        by_place, of_variable = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        by_place[place, variables[order]], of_variable[place, variables[order]] = rows[order], values[order]
        return LimitMatrix(by_place, of_variable, count)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Left side of each constraint, A x."""
        return np.bincount(self._flat, (self._values * x).ravel(), self.count)

    def back(self, prices: np.ndarray) -> np.ndarray:
        """Transposed product A' prices, by variable, for the prices of the constraints."""
        found: np.ndarray = np.add.reduce(self._values * prices[self._rows], axis=0)
        return found

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Newton step: solve (diag(1 / own) + A' diag(1 / left) A) x = -slope for x.

        By Woodbury's formula this needs one equation per constraint.

        Arguments:
            own: value of each variable, divided by its price.
            left: slack of each constraint, divided by its price.
            slope: gradient, by variable.
        """
        small = self.squared(own)
        small.reshape(-1)[:: self.count + 1] += left
        return own * (self.back(np.linalg.solve(small, self.of(own * slope))) - slope)

    def squared(self, diagonal: np.ndarray) -> np.ndarray:
        """Matrix A diag(diagonal) A', shape (constraints, constraints)."""
        both, products = self._both
        half = np.bincount(both, (products * diagonal).ravel(), self.count**2).reshape(self.count, self.count)
        return half + half.T

    @cached_property
    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        """Flat index in A A' and coefficient product of each pair of a variable's entries.

        An entry with itself has half the product, because `squared` adds the transpose.
        """
        one, two, half = _halves(len(self._rows))
        return (self._rows[one] * self.count + self._rows[two]).ravel(), self._values[one] * self._values[two] * half


@lru_cache(maxsize=16)
def _halves(places: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index pairs i <= j < places, and the factor of each: 1/2 if i == j, else 1."""
    one, two = np.triu_indices(places)
    return one, two, np.where(one == two, 0.5, 1.0)[:, None]


class IndependentLimits(LimitMatrix):
    """Constraint matrix of job groups that share only workers.

    The constraints are, in this order: time of each group, workers of each type, demand of each group. In the Newton
    equations, the variables of a group form a block: a diagonal plus two outer products. Worker types couple the
    blocks with one equation per type. A step therefore costs time linear in the number of variables.
    """

    def __init__(self, group: np.ndarray, kind: np.ndarray, scale: np.ndarray, does: np.ndarray, types: int) -> None:
        """
        Arguments:
            group, kind: index of the group and of the worker type of each variable, sorted by group.
            scale: workers used per unit of time, by variable.
            does: contribution to the group's demand per unit of time, by variable.
            types: number of worker types.
        """
        groups, ones = int(group[-1]) + 1, np.ones(len(group))
        rows = np.array([group, groups + kind, groups + types + group])
        super().__init__(rows, np.array([ones, scale, -does]), 2 * groups + types)
        self._group, self._begins = group, group.searchsorted(np.arange(groups))
        self._groups, self._types = groups, types
        own = np.array([ones, does])  # in the group's block: coefficients of time and of the demand
        right = np.zeros((types + 1, 1, len(group)))
        right[kind, 0, np.arange(len(group))] = scale
        # Rows that each step sums by group: 1, does, does squared; then for each right side itself and times does. The
        # right sides are those of the types, and the slope, which every step overwrites.
        self._summed = np.concatenate([own, own[1:] * does, (right * own).reshape(-1, len(group))])
        self._own, self._right = self._summed[:2], self._summed[3::2]
        self._slope = np.zeros(types + 1)  # the slope has price -1, next to the prices of types
        self._slope[types] = 1.0

    def step(self, own: np.ndarray, left: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Newton step of `LimitMatrix.step`, block by block."""
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
        most: upper bound of each constraint.
        weights: weights of the logarithms: of each variable, then of each constraint's slack.
        limits: constraint matrix A.
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
    """Step size, at most 1, that keeps positive values positive.

    Arguments:
        figures: positive values.
        change: change of the values in a step of size 1.
    """
    least = float(np.minimum.reduce(change / figures))
    return 1.0 if least > -_NEAR else _NEAR / -least

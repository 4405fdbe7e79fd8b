"""Stragglers: expected lateness of the slowest of several replicas.

Replicas that meet in a collective wait for the slowest. If their seconds are independent and normal, with mean m and
standard deviation s, the slowest of r takes m + s E[r] on average. E[r] is the expected maximum of r standard normals:
0.564 for two (1 / sqrt pi), 0.846 for three, 1.77 for sixteen. It grows as sqrt(2 ln r). Seconds with different means
or deviations are combined in pairs, each time by the first two moments of the maximum of two normals.

Rules of this file: tables of the normal distribution only, computed once. The simulator looks them up
(simulation/engine/meetings.py).
Source: order statistics of the normal distribution (David and Nagaraja, Order Statistics, 2003); C. E. Clark, The
greatest of a finite set of random variables, Operations Research 9 (1961).
"""

from functools import lru_cache
from math import erf, exp, pi, sqrt

import numpy as np

_STEPS = 64
"""Entries of a table for each standard deviation."""
_REACH = 9.0  # standard deviations beyond which a normal density adds nothing to a 64-bit float
_AT_ONCE = 1024  # how many numbers of replicas are computed in one array operation


@lru_cache(maxsize=1)
def tails() -> tuple[np.ndarray, np.ndarray]:
    """Tables for the maximum of two normal variables, by distance z of their means.

    The table entries are for z = 0, 1/64, 2/64, ..., in standard deviations of the difference of the two.

    Returns:
        Expected maximum minus the greater mean, density(z) - z tail(z), in the same unit; and the probability that the
            variable with the smaller mean is the maximum, tail(z). Both tables end with 0.
    """
    z = np.arange(int(_REACH * _STEPS)) / _STEPS
    tail = np.array([(1 - erf(x / sqrt(2))) / 2 for x in z.tolist()])
    density = np.array([exp(-x * x / 2) / sqrt(2 * pi) for x in z.tolist()])
    late = np.maximum(0.0, density - z * tail)
    return np.append(late, 0.0), np.append(tail, 0.0)


@lru_cache(maxsize=8)
def slowest(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the maximum of r independent standard normal variables.

    Arguments:
        most: maximum r.

    Returns:
        Two arrays of shape (most + 1,), indexed by r; 0 at index 0.
    """
    x = np.linspace(-_REACH, _REACH, 2049)
    below = np.array([(1 + erf(each / sqrt(2))) / 2 for each in x.tolist()])
    step = float(x[1] - x[0])
    means, variances = [np.zeros(1)], [np.zeros(1)]
    for first in range(1, most + 1, _AT_ONCE):
        r = np.arange(first, min(first + _AT_ONCE, most + 1))[:, None]
        steps = np.diff(below[None, :] ** r, axis=1)  # probability of each interval; its middle stands for it
        middle = (x[1:] + x[:-1]) / 2
        mean = steps @ middle
        means.append(mean)
        # A middle ignores the variance within its interval.
        variances.append(np.maximum(0.0, steps @ middle**2 - mean**2 - step**2 / 12))
    found = np.concatenate(means), np.concatenate(variances)
    found[0][1:2] = 0.0  # the mean of one standard normal
    return found

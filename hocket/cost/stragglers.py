"""Stragglers: how much later than the mean the slowest of some replicas is expected, where their seconds vary.

Replicas that meet in a collective wait for the slowest. With seconds that are independent and normal, of mean m and standard deviation
s, the slowest of r takes m + s E[r] on average. E[r] is the expectation of the greatest of r standard normals: 0.564 of two (1 / sqrt
pi), 0.846 of three, 1.77 of sixteen. It grows as sqrt(2 ln r). Seconds of unlike means or deviations are joined two by two, each time
by the first two moments of the greater of two normals.

Rules of this file: numbers of the normal distribution alone, made once; the kernel of the simulator looks them up
(simulation/engine/meetings.py).
Source: order statistics of the normal distribution (David and Nagaraja, Order Statistics, 2003); C. E. Clark, The greatest of a finite
set of random variables, Operations Research 9 (1961).
"""

from functools import lru_cache
from math import erf, exp, pi, sqrt

import numpy as np

_STEPS = 64
"""Entries of a table for each standard deviation."""
_REACH = 9.0  # standard deviations beyond which a normal density adds nothing to a double
_AT_ONCE = 1024  # numbers of replicas that are worked out at once


@lru_cache(maxsize=1)
def tails() -> tuple[np.ndarray, np.ndarray]:
    """Tables for distances z = 0, 1/64, ... of two means, in deviations of their difference.

    Returns:
        Expected lateness of the greater of the two beyond the greater mean, density(z) - z tail(z), in the same unit; and the
        probability that the one of the smaller mean is the greater, tail(z). Both end with 0.
    """
    z = np.arange(int(_REACH * _STEPS)) / _STEPS
    tail = np.array([(1 - erf(x / sqrt(2))) / 2 for x in z.tolist()])
    density = np.array([exp(-x * x / 2) / sqrt(2 * pi) for x in z.tolist()])
    late = np.maximum(0.0, density - z * tail)
    return np.append(late, 0.0), np.append(tail, 0.0)


@lru_cache(maxsize=8)
def slowest(most: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the maximum of r independent standard normals, for r up to `most`; 0 and 0 at index 0."""
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
        # The spread within an interval is what a middle leaves out.
        variances.append(np.maximum(0.0, steps @ middle**2 - mean**2 - step**2 / 12))
    found = np.concatenate(means), np.concatenate(variances)
    found[0][1:2] = 0.0  # of one it is the mean itself
    return found

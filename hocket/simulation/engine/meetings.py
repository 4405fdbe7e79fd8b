"""Expected arrival of the last rank at a collective, if compute seconds vary.

A simulation plays mean seconds. The mean of the slowest rank's arrival is later than the latest of the mean arrivals.
A collective therefore begins when its slowest rank is expected.

For each node, kernel.py keeps the variance of its end since the last collective that it waited for. It is the sum of
the variances of the computation along the chain of causes. If no computation waits for a collective, variance
continues to add up past it. If computation waited for a collective, all ranks continue together, and variance begins
anew at 0. The model assumes that computation of different ranks varies independently between collectives.

These functions use only indexing and arithmetic, like kernel.py, which calls them. Source: cost/stragglers.py.
"""

from math import sqrt
from typing import Any

Floats = Any
Ints = Any
_STEPS = 64.0  # entries of a table for each standard deviation (cost/stragglers.py)


def looked_up(table: Floats, z: float) -> float:
    """Interpolate a table of cost/stragglers.py between its entries.

    Arguments:
        table: values at 0, 1/64, 2/64, ... standard deviations; shape (entries,).
        z: distance between the means of two arrival times, in standard deviations of the difference, >= 0.

    Returns:
        The value at z; 0 beyond the end of the table.
    """
    at = z * _STEPS
    k = int(at)
    if k + 1 >= len(table):
        return 0.0
    return float(table[k] + (at - k) * (table[k + 1] - table[k]))


def later(
    first_s: float, first_var: float, second_s: float, second_var: float, late: Floats, tail: Floats
) -> tuple[float, float]:
    """Mean and variance of the later of two independent normally distributed times.

    The formulas are Clark's first two moments (cost/stragglers.py).

    Arguments:
        first_s, second_s: means, in seconds.
        first_var, second_var: variances, in square seconds.
        late, tail: the two tables that `tails` of cost/stragglers.py returns: by how much the expected later time
            exceeds the later mean, and the probability that the time with the earlier mean is the later one.
    """
    if second_s > first_s:
        first_s, first_var, second_s, second_var = second_s, second_var, first_s, first_var
    both = sqrt(first_var + second_var)
    if both <= 0.0:
        return first_s, 0.0
    apart = first_s - second_s
    z = apart / both
    more, other = both * looked_up(late, z), looked_up(tail, z)
    density = more + apart * other  # times the deviation of the difference
    square = first_var * (1.0 - other) + (apart * apart + second_var) * other - apart * density
    return first_s + more, max(0.0, square - more * more)


def last_arrival(arrivals: Ints, copies: int, end: Floats, spread: Floats, numbers: Any) -> float:
    """Expected arrival of the last rank at a collective, in seconds.

    Consecutive ranks of equal mean and variance, such as replicas, are combined first.

    Arguments:
        arrivals: last node of each rank before the collective.
        copies: number of ranks that each arrival stands for.
        end: end of each node, in seconds.
        spread: variance of each node's end, in square seconds.
        numbers: (means, variances, late, tail) of cost/stragglers.py.
    """
    means, variances, late, tail = numbers
    found_s, found_var, joined = 0.0, 0.0, 0
    k, stop = 0, len(arrivals)
    while k < stop:
        at_s, var, alike = end[arrivals[k]], spread[arrivals[k]], 1
        k += 1
        while k < stop and end[arrivals[k]] == at_s and spread[arrivals[k]] == var:
            alike += 1
            k += 1
        r = alike * copies
        own_s, own_var = at_s + sqrt(var) * means[r], var * variances[r]
        if joined == 0:
            found_s, found_var = own_s, own_var
        else:
            found_s, found_var = later(found_s, found_var, own_s, own_var, late, tail)
        joined += 1
    return found_s

"""Plenty: a look at what jobs ask for that shows, without a program, that it is too much.

At any prices of workers a job's steps cost at least what they cost where they are cheapest. If all jobs together would pay more
than all workers are worth, they cannot have what they ask for. Prices rise where jobs crowd, a few times.
Source: weak duality; prices by multiplicative weights (Arora, Hazan and Kale 2012).
"""

import numpy as np

from hocket.cluster.policies._lines import Lines

_LOOKS = 12
_SURE = 1e-6


def too_much(lines: Lines, demand: np.ndarray) -> bool:
    """Whether these demands, steps a second by job, are found to be more than there is. With pairs nothing is found."""
    shares = lines.shares
    if len(lines.group) != shares.variables:
        return False
    runs = shares.group >= 0
    wanted = np.bincount(shares.group[runs], demand[runs], shares.groups)
    kind = shares.snapshot.type_of[shares.column]
    workers = shares.snapshot.workers
    need = (
        shares.scale[shares.first] * wanted[shares.first] / shares.steps_first
    )  # workers, if all were done in this way
    begins = np.searchsorted(shares.first, np.arange(shares.groups))
    price = np.ones(len(workers))
    for _ in range(_LOOKS):
        pays = need * price[kind]
        cheapest = np.minimum.reduceat(pays, begins)
        if cheapest.sum() > price @ workers * (1 + _SURE):
            return True
        chosen = pays <= cheapest[shares.first]
        crowd = np.bincount(kind[chosen], need[chosen], len(workers)) / np.maximum(workers, 1.0)
        price *= np.clip(crowd / max(float(crowd.max()), 1e-12), 0.25, 1.0) ** 0.5
    return False

"""Plenty: prices of workers that show, without a program, how much is too much.

At any prices of workers a job's steps cost at least what they cost where they are cheapest. If all jobs together would pay more
than all workers are worth, they cannot have what they ask for. Prices rise where jobs crowd, a few times.
Source: weak duality; prices by multiplicative weights (Arora, Hazan and Kale 2012).
"""

from collections.abc import Callable, Iterator

import numpy as np

from hocket.scheduler.solver.lp.variables import AllocationVariables

_LOOKS = 12
_MANY = 200  # groups


def looks(shares: AllocationVariables, wanted: Callable[[], np.ndarray]) -> Iterator[tuple[np.ndarray, float]]:
    """For some prices: what a step a second costs a job of each group at least, and what all workers are worth.

    Arguments:
        shares: many, without pairs; else nothing is shown, as small programs are solved sooner.
        wanted: steps a second of all jobs of each group, as they are wanted when the next prices are made.
    """
    if shares.groups < _MANY or (shares.second >= 0).any():
        return
    kind = shares.snapshot.type_of[shares.column]
    workers = shares.snapshot.workers
    per_step = shares.scale[shares.first] / shares.steps_first
    begins = np.searchsorted(shares.first, np.arange(shares.groups))
    price = np.ones(len(workers))
    for _ in range(_LOOKS):
        pays = per_step * price[kind]
        cheapest = np.minimum.reduceat(pays, begins)
        yield cheapest, float(price @ workers)
        chosen = pays <= cheapest[shares.first]
        need = (per_step * wanted()[shares.first])[chosen]
        crowd = np.bincount(kind[chosen], need, len(workers)) / np.maximum(workers, 1.0)
        price = price * np.clip(crowd / max(float(crowd.max()), 1e-300), 0.25, 1.0) ** 0.5

"""Infeasibility prices: proofs of infeasible demand without a linear program.

A worker price is a dual of a worker type, no dollars. At any worker prices, a job's steps cost at least what they cost
on its cheapest workers. If all jobs together pay more than the price of all workers, the demands are infeasible. A few
price updates raise the relative prices of crowded worker types.
Source: weak duality; prices by multiplicative weights (Arora, Hazan and Kale 2012).
"""

from collections.abc import Callable, Iterator

import numpy as np

from hocket.scheduler.solver.lp.variables import AllocationVariables

_LOOKS = 12  # number of price vectors tried
_MANY = 200  # minimum number of groups


def looks(shares: AllocationVariables, wanted: Callable[[], np.ndarray]) -> Iterator[tuple[np.ndarray, float]]:
    """Yield costs of demand and the price of all workers, for several worker prices.

    Arguments:
        shares: many groups without pairs; otherwise nothing is yielded, because small programs are faster to solve.
        wanted: function that returns the demand of each group in steps per second, summed over its jobs. It is called
            for each price update.

    Yields:
        Minimum cost of one step per second, by group; price of all workers together.
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

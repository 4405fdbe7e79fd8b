"""Prices: what running costs, for policies that look at money."""

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables

HOUR_S = 3600.0


_FREE = 1e-3  # of the cheapest price: what a worker that costs nothing counts as, so that a dollar still buys a number of steps


def priced(snapshot: Snapshot) -> np.ndarray:
    """Dollars an hour of one worker, by column, to divide by: a type that costs nothing counts as a thousandth of the cheapest other.

    Raises:
        InputError: all cost nothing: then there is nothing to save.
    """
    paid = snapshot.prices[(snapshot.prices > 0) & (snapshot.workers[snapshot.type_of] > 0)]
    there = [own.name for own in snapshot.types if own.workers]
    if there and not len(paid):
        place = f"worker type {there[0]}: price_usd_per_hour"
        raise InputError(
            place, "0, as of every type", "dollars an hour, > 0 of one at least", "A policy of cost needs prices"
        )
    return np.where(snapshot.prices > 0, snapshot.prices, _FREE * paid.min(initial=np.inf))


def cost_per_hour(shares: AllocationVariables, prices: np.ndarray | None = None) -> np.ndarray:
    """Dollars for an hour of each variable's time; two jobs side by side pay for their workers once.

    Arguments:
        prices: dollars an hour of one worker, by column; those of the snapshot by default.
    """
    prices = shares.snapshot.prices if prices is None else prices
    return prices[shares.column] * shares.scale[shares.first]

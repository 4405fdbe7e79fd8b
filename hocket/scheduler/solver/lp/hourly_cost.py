"""Hourly costs of allocations, for cost-aware policies."""

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables

HOUR_S = 3600.0


_FREE = 1e-3  # price of a free worker, relative to the cheapest, so that steps per dollar stay finite


def priced(snapshot: Snapshot) -> np.ndarray:
    """Dollars per hour of one worker, by column, as a divisor.

    A free type counts as a thousandth of the cheapest other type.

    Raises:
        InputError: all types are free, so there is nothing to save.
    """
    paid = snapshot.prices[(snapshot.prices > 0) & (snapshot.workers[snapshot.type_of] > 0)]
    there = [own.name for own in snapshot.types if own.workers]
    if there and not len(paid):
        place = f"worker type {there[0]}: price_usd_per_hour"
        raise InputError(
            place,
            "0, as for every type",
            "dollars per hour, > 0 for at least one type",
            "Give prices, or choose a policy without costs.",
        )
    return np.where(snapshot.prices > 0, snapshot.prices, _FREE * paid.min(initial=np.inf))


def cost_per_hour(shares: AllocationVariables, prices: np.ndarray | None = None) -> np.ndarray:
    """Dollars per hour of each variable's time; paired jobs pay for workers once.

    Arguments:
        prices: dollars per hour of one worker, by column; those of the snapshot by default.
    """
    prices = shares.snapshot.prices if prices is None else prices
    return prices[shares.column] * shares.scale[shares.first]

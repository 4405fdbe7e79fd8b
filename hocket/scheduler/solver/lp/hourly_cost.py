"""Hourly costs of allocations, for cost-aware policies."""

import numpy as np

from hocket.errors import InputError
from hocket.scheduler.model.snapshot import Snapshot
from hocket.scheduler.solver.lp.variables import AllocationVariables

HOUR_S = 3600.0


_FREE = 1e-3  # price of a free worker, relative to the cheapest paid one, so that steps per dollar stay finite


def priced(snapshot: Snapshot) -> np.ndarray:
    """Dollars per hour of one worker, by column; never 0, so that it can be a divisor.

    A free worker type gets a thousandth of the price of the cheapest paid type that has workers.

    Raises:
        InputError: all types with workers are free, so there is nothing to save.
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
    """Dollars per hour per unit of each variable: worker price times workers.

    Two jobs that share workers pay for them once.

    Arguments:
        prices: dollars per hour of one worker, by column; None for the prices of the snapshot.
    """
    prices = shares.snapshot.prices if prices is None else prices
    return prices[shares.column] * shares.scale[shares.first]

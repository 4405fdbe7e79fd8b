"""Prices: what running costs, for policies that look at money."""

import numpy as np

from hocket.cluster.policies._shares import Shares
from hocket.cluster.snapshot import Snapshot
from hocket.errors import InputError

HOUR_S = 3600.0


def priced(snapshot: Snapshot) -> np.ndarray:
    """Dollars an hour of one worker, by column.

    Raises:
        InputError: one costs nothing: then there is no throughput for a dollar.
    """
    for own in snapshot.types:
        if own.workers and not own.price_usd_per_hour > 0:
            place = f"worker type {own.name}: price_usd_per_hour"
            raise InputError(
                place, str(own.price_usd_per_hour), "dollars an hour, > 0", "A policy of cost needs prices"
            )
    return np.where(snapshot.prices > 0, snapshot.prices, np.inf)


def cost_per_hour(shares: Shares) -> np.ndarray:
    """Dollars for an hour of each variable's time; two jobs side by side pay for their workers once."""
    return shares.snapshot.prices[shares.column] * shares.scale[shares.first]

"""Prices of a market as events for the core: types of workers that cost something else from a moment on."""

from collections.abc import Mapping, Sequence
from math import isnan

from hocket.cluster.events import PriceChanged
from hocket.cluster.prices.market import Market, PriceKey
from hocket.cluster.workers import WorkerType
from hocket.errors import InputError, nearest


def price_changes(
    types: Sequence[WorkerType],
    keys: Mapping[str, PriceKey],
    market: Market,
    begin_s: float,
    end_s: float,
    spot: bool = True,
) -> tuple[tuple[float, PriceChanged], ...]:
    """Every change of price between two moments of the market, in order, with seconds counted from the first.

    `priced` (market.py) says what the types cost at the beginning. A type keeps its last price while it is not on sale: that it
    is gone is for its workers to tell.

    Arguments:
        keys: by the name of a type what its workers are.

    Raises:
        InputError: a key of no such type, or an instance that the market does not have.
    """
    names = [t.name for t in types]
    found = []
    for name, key in keys.items():
        if name not in names:
            raise InputError("prices", f"a key for {name!r}", f"one of {', '.join(names)}", nearest(name, names))
        offer = market[key]
        series = offer.spot if spot else offer.on_demand
        for when, price in series.between(begin_s, end_s)[1:] if series is not None else ():
            if not isnan(price):
                found.append((when - begin_s, PriceChanged(names.index(name), price / offer.accelerators)))
    return tuple(sorted(found, key=lambda one: (one[0], one[1].type)))

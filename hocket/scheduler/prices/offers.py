"""Offers at a moment, by accelerator: what the cheapest and the dearest of them cost, and what spot prices save."""

from dataclasses import dataclass
from math import isnan

from hocket.scheduler.prices.market import Market


@dataclass(frozen=True)
class BestOffer:
    """One accelerator at one moment; dollars an hour of one of it.

    Attributes:
        offers: spot offers that are on sale.
        cheapest, dearest: of those; cheapest is where.
        on_demand_usd_per_hour: the least price on demand; None where none is known.
    """

    accelerator: str
    offers: int
    cheapest: str
    cheapest_usd_per_hour: float
    dearest_usd_per_hour: float
    on_demand_usd_per_hour: float | None

    @property
    def reduction(self) -> float | None:
        """The price on demand by the cheapest spot price."""
        if self.on_demand_usd_per_hour is None or not self.cheapest_usd_per_hour:
            return None
        return self.on_demand_usd_per_hour / self.cheapest_usd_per_hour


def best_offers(market: Market, now_s: float) -> tuple[BestOffer, ...]:
    """Of each accelerator that has a spot price at that moment, in the order of their names."""
    found = []
    for accelerator in sorted({offer.accelerator for offer in market}):
        own = [o for o in market if o.accelerator == accelerator]
        priced = [o for o in own if not isnan(o.price(now_s))]
        if not priced:
            continue
        cheapest = market.cheapest(now_s, accelerator)
        assert cheapest is not None
        demand = [price for o in own if not isnan(price := o.price(now_s, spot=False))]
        found.append(
            BestOffer(
                accelerator,
                len(priced),
                str(cheapest.key),
                cheapest.price(now_s),
                max(o.price(now_s) for o in priced),
                min(demand, default=None),
            )
        )
    return tuple(found)

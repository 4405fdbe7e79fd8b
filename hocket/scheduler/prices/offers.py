"""Best offers by accelerator: cheapest, most expensive and on-demand price."""

from dataclasses import dataclass
from math import isnan

from hocket.scheduler.prices.market import Market


@dataclass(frozen=True)
class BestOffer:
    """Offers of one accelerator at one time; prices are per accelerator-hour.

    Attributes:
        offers: number of spot offers on sale.
        cheapest: key of the cheapest spot offer.
        cheapest_usd_per_hour, dearest_usd_per_hour: lowest and highest spot price.
        on_demand_usd_per_hour: lowest on-demand price; None if unknown.
    """

    accelerator: str
    offers: int
    cheapest: str
    cheapest_usd_per_hour: float
    dearest_usd_per_hour: float
    on_demand_usd_per_hour: float | None

    @property
    def reduction(self) -> float | None:
        """On-demand price over the cheapest spot price."""
        if self.on_demand_usd_per_hour is None or not self.cheapest_usd_per_hour:
            return None
        return self.on_demand_usd_per_hour / self.cheapest_usd_per_hour


def best_offers(market: Market, now_s: float) -> tuple[BestOffer, ...]:
    """Best offers of each accelerator with a spot price, sorted by name."""
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

"""Best offers at a time, by hand."""

from hocket.scheduler.prices.market import Market, Offer, PriceKey
from hocket.scheduler.prices.offers import best_offers
from hocket.scheduler.prices.series import Series


def offer(zone: str, spot: Series, demand: Series | None = None, accelerators: float = 1) -> Offer:
    """An offer of an instance with K80s."""
    return Offer(PriceKey("aws", "us-east-1", zone, "p2"), "k80", accelerators, spot, demand)


def test_the_cheapest_of_one_accelerator() -> None:
    """Prices are per accelerator, and offers not on sale do not count."""
    a = offer("a", Series((0.0, 10.0), (0.4, 0.3)), Series.constant(0.9))
    b = offer("b", Series((0.0,), (0.8,)), accelerators=4)
    later = offer("c", Series((20.0,), (0.1,)))
    market = Market((a, b, later))
    [found] = best_offers(market, 12.0)
    assert (found.offers, found.cheapest, found.cheapest_usd_per_hour) == (2, str(b.key), 0.2)
    assert (found.dearest_usd_per_hour, found.on_demand_usd_per_hour, found.reduction) == (0.3, 0.9, 0.9 / 0.2)
    assert market.last_s == 20.0
    assert best_offers(market, -1.0) == ()

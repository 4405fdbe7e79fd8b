"""Bill: cost of a lease with the prices paid.

Bills are stored with the run, because prices change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

from hocket.errors import InputError
from hocket.scheduler.prices.market import Market, PriceKey

HOUR_S = 3600.0


@dataclass(frozen=True)
class Paid:
    """Price from a time on: dollars per hour of one instance, or of one worker."""

    from_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class Bill:
    """Bill for a lease of instances.

    Attributes:
        cloud, region, zone, instance_type: the leased instance type.
        begin_s, end_s: start and end of the lease.
        instances: number of instances; a fraction if a job uses only some accelerators of one.
        spot: True for spot, False for on-demand.
        cost_usd: integral of the price over the lease, for all instances.
        paid: prices in effect, in time order.
    """

    cloud: str
    region: str
    zone: str
    instance_type: str
    begin_s: float
    end_s: float
    instances: float
    spot: bool
    cost_usd: float
    paid: tuple[Paid, ...]

    @property
    def mean_usd_per_hour(self) -> float:
        """Mean price of one instance over the lease; 0 for an empty lease."""
        hours = (self.end_s - self.begin_s) / HOUR_S * self.instances
        return self.cost_usd / hours if hours else 0.0


def bill(
    market: Market, key: PriceKey, begin_s: float, end_s: float, instances: float = 1.0, spot: bool = True
) -> Bill:
    """Compute the bill of a lease, with the price of each second.

    Raises:
        InputError: an unknown key, a lease that ends before it begins, or a time without a price.
    """
    place = f"lease of {key}"
    if not begin_s <= end_s:
        raise InputError(f"{place}: end_s", str(end_s), f"at or after the start of the lease, {begin_s}")
    if not 0 < instances < float("inf"):
        raise InputError(f"{place}: instances", str(instances), "a number > 0")
    market.price_at(key, begin_s, spot)
    offer = market[key]
    series = offer.spot if spot else offer.on_demand
    assert series is not None
    cost_usd = series.integral(begin_s, end_s) / HOUR_S * instances
    if isnan(cost_usd):
        raise InputError(place, "a time without a price", "a lease while the instance is on sale")
    paid = tuple(Paid(t, price) for t, price in series.between(begin_s, end_s))
    return Bill(*key, begin_s, end_s, instances, spot, cost_usd, paid)


def total_usd(bills: Iterable[Bill]) -> float:
    """Total cost of bills, in dollars."""
    return sum(one.cost_usd for one in bills)

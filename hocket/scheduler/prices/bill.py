"""Bill: what a lease cost, with the prices that were paid; it is stored with the run, because prices change."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan

from hocket.errors import InputError
from hocket.scheduler.prices.market import Market, PriceKey

HOUR_S = 3600.0


@dataclass(frozen=True)
class Paid:
    """From this moment on, dollars an hour of one instance."""

    from_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class Bill:
    """One lease of some instances.

    Attributes:
        cloud, region, zone, instance_type: what was leased.
        begin_s, end_s: of the lease.
        instances: leased at once; a part of one where a job has only some of its accelerators.
        spot: or on demand.
        cost_usd: the integral of the price over the lease, of all instances.
        paid: the prices that held, in order.
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
        """Of one instance, over the lease; 0 for a lease of no time."""
        hours = (self.end_s - self.begin_s) / HOUR_S * self.instances
        return self.cost_usd / hours if hours else 0.0


def bill(
    market: Market, key: PriceKey, begin_s: float, end_s: float, instances: float = 1.0, spot: bool = True
) -> Bill:
    """What a lease costs: each second at the price of that second.

    Raises:
        InputError: an unknown key, a lease that ends before it begins, or one at a time when it was not on sale.
    """
    place = f"lease of {key}"
    if not begin_s <= end_s:
        raise InputError(f"{place}: end_s", str(end_s), f"at or after its beginning, {begin_s}")
    if not 0 < instances < float("inf"):
        raise InputError(f"{place}: instances", str(instances), "a number > 0")
    market.price_at(key, begin_s, spot)
    offer = market[key]
    series = offer.spot if spot else offer.on_demand
    assert series is not None
    cost_usd = series.integral(begin_s, end_s) / HOUR_S * instances
    if isnan(cost_usd):
        raise InputError(place, "a time without a price", "a lease at times when it is on sale")
    paid = tuple(Paid(t, price) for t, price in series.between(begin_s, end_s))
    return Bill(*key, begin_s, end_s, instances, spot, cost_usd, paid)


def total_usd(bills: Iterable[Bill]) -> float:
    """Of all leases of a run."""
    return sum(one.cost_usd for one in bills)

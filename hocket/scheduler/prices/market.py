"""Market: offers of accelerator instances by cloud, region, zone and type.

Prices are dollars per hour of a whole instance. A worker is one accelerator and pays its share.
Source: Narayanan's dissertation, section 6.3.2 (prices vary by place and time; instances with several accelerators
may be cheaper per accelerator).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan, nan
from typing import NamedTuple

from hocket.errors import InputError, nearest
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.series import Series


class PriceKey(NamedTuple):
    """Key of an offer: place and instance type; `zone` is empty for a price of the whole region."""

    cloud: str
    region: str
    zone: str
    instance_type: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.cloud, self.zone or self.region, self.instance_type) if part)


@dataclass(frozen=True)
class Offer:
    """Offer of one instance type in one place.

    Attributes:
        accelerator: name, such as "v100".
        accelerators: number per instance; a fraction on clouds that divide accelerators.
        spot: dollars per hour of a preemptible instance; None without a spot market.
        on_demand: dollars per hour of an on-demand instance; None if unknown.
    """

    key: PriceKey
    accelerator: str
    accelerators: float = 1.0
    spot: Series | None = None
    on_demand: Series | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.accelerators) and self.accelerators > 0):
            expected = "the number of accelerators in one instance, > 0"
            raise InputError(f"{self.key}: accelerators", str(self.accelerators), expected)
        if not self.accelerator:
            raise InputError(f"{self.key}: accelerator", "nothing", "a name such as v100")

    def price(self, now_s: float, spot: bool = True) -> float:
        """Dollars per hour of one accelerator of the instance; nan if it is not on sale at this time.

        Arguments:
            now_s: seconds since 1970.
            spot: True for the spot price, False for the on-demand price.
        """
        series = self.spot if spot else self.on_demand
        return series.at(now_s) / self.accelerators if series is not None else nan


@dataclass(frozen=True)
class Market:
    """All offers, one per key."""

    offers: tuple[Offer, ...]

    def __post_init__(self) -> None:
        if len(self._by_key) != len(self.offers):
            seen = [offer.key for offer in self.offers]
            twice = next(key for k, key in enumerate(seen) if key in seen[:k])
            raise InputError(f"market: {twice}", "two offers", "one offer per key", "Merge them with Market.of.")

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> "Market":
        """Market from offers; series of the same key are merged.

        Raises:
            InputError: two offers contradict each other.
        """
        groups: dict[PriceKey, list[Offer]] = {}
        for offer in offers:
            groups.setdefault(offer.key, []).append(offer)
        return cls(tuple(_joined(groups[key]) for key in sorted(groups)))

    @cached_property
    def _by_key(self) -> dict[PriceKey, Offer]:
        return {offer.key: offer for offer in self.offers}

    def __getitem__(self, key: PriceKey) -> Offer:
        if key not in self._by_key:
            near = nearest(str(key), map(str, self._by_key))
            raise InputError("market", f"no offer of {key}", "a key of this market", near)
        return self._by_key[key]

    def offer_of(self, own: WorkerType) -> Offer | None:
        """Offer named by a worker type; None if the type names no offer.

        Raises:
            InputError: no offer has this name, or the market lacks the type's kind of price.
        """
        if not own.offer:
            return None
        place = f"worker type {own.name}: offer"
        found = next((offer for offer in self.offers if str(offer.key) == own.offer), None)
        if found is None:
            step = nearest(own.offer, (str(offer.key) for offer in self.offers))
            raise InputError(place, repr(own.offer), "an offer of the market, such as aws/us-east-1a/p3.2xlarge", step)
        if (found.spot if own.spot else found.on_demand) is None:
            what = "spot prices" if own.spot else "prices on demand"
            step = "Replace `offer` by price_usd_per_hour, or set `spot: true`."
            raise InputError(
                place, f"{own.offer}, without {what}", f"an offer with {what}", step if not own.spot else ""
            )
        return found

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    @property
    def first_s(self) -> float:
        """Time of the earliest spot price, in seconds.

        If no offer has spot prices, it is the time of the earliest on-demand price.
        """
        spot = [offer.spot.times_s[0] for offer in self.offers if offer.spot]
        return min(spot or [o.on_demand.times_s[0] for o in self.offers if o.on_demand])

    @property
    def last_s(self) -> float:
        """Time of the latest change of a spot price, in seconds.

        If no offer has spot prices, it is the time of the latest change of an on-demand price.
        """
        spot = [offer.spot.times_s[-1] for offer in self.offers if offer.spot]
        return max(spot or [o.on_demand.times_s[-1] for o in self.offers if o.on_demand])

    def where(self, wanted: Callable[[Offer], bool]) -> "Market":
        """Market of the offers that satisfy a predicate."""
        return Market(tuple(offer for offer in self.offers if wanted(offer)))

    def price_at(self, key: PriceKey, now_s: float, spot: bool = True) -> float:
        """Price of a whole instance at one moment, in dollars per hour.

        Arguments:
            now_s: the moment, in seconds since 1970.
            spot: True for the spot price, False for the on-demand price.

        Raises:
            InputError: the market has no offer with this key, or the instance has no price of this kind at the moment.
        """
        offer = self[key]
        price = offer.price(now_s, spot) * offer.accelerators
        if isnan(price):
            kind = "spot price" if spot else "price on demand"
            raise InputError(f"{key}: {kind}", f"none at {now_s:.0f} s", "a time at which it is on sale")
        return price

    def cheapest(self, now_s: float, accelerator: str, spot: bool = True) -> Offer | None:
        """Offer with the lowest price per accelerator at one moment; None if none is on sale then.

        Ties go to the first key.

        Arguments:
            now_s: the moment, in seconds since 1970.
            accelerator: name, such as "v100".
            spot: True to compare spot prices, False for on-demand prices.
        """
        found = [o for o in self.offers if o.accelerator == accelerator and not isnan(o.price(now_s, spot))]
        return min(found, key=lambda o: (o.price(now_s, spot), o.key), default=None)


def _joined(parts: Sequence[Offer]) -> Offer:
    first = parts[0]
    for other in parts[1:]:
        mine, theirs = ((p.accelerator, p.accelerators) for p in (first, other))
        if mine != theirs:
            found = f"{mine[1]:g} {mine[0]} and {theirs[1]:g} {theirs[0]}"
            expected = "the same type and number of accelerators in all offers of this key"
            raise InputError(f"market: {first.key}", found, expected)
    both = [[s for p in parts if (s := getattr(p, name)) is not None] for name in ("spot", "on_demand")]
    spot, on_demand = (_together(series, f"market: {first.key}") for series in both)
    return replace(first, spot=spot, on_demand=on_demand)


def _together(parts: Sequence[Series], place: str) -> Series | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Series.of(((t, v) for s in parts for t, v in zip(s.times_s, s.values, strict=True)), place)


def priced(types: Iterable[WorkerType], market: Market, now_s: float) -> tuple[WorkerType, ...]:
    """Worker types with their prices at one moment, in dollars per hour of one worker.

    Spot types pay the spot price, other types the on-demand price. Types without an offer keep their price.

    Raises:
        InputError: an offer is not in the market or not on sale.
    """
    return tuple(
        replace(t, price_usd_per_hour=market.price_at(found.key, now_s, t.spot) / found.accelerators)
        if (found := market.offer_of(t)) is not None
        else t
        for t in types
    )

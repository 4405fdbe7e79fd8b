"""Market: offers of instances with accelerators, by cloud, region, zone and type, and what each costs at a moment.

Prices are dollars an hour of a whole instance; a worker is one accelerator, and costs its part of it.
Source: section 6.3.2 (prices change with place and time; instances of several accelerators may be cheaper for each).
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
    """Where, and what; the zone is empty where a whole region has one price."""

    cloud: str
    region: str
    zone: str
    instance_type: str

    def __str__(self) -> str:
        return "/".join(part for part in (self.cloud, self.zone or self.region, self.instance_type) if part)


@dataclass(frozen=True)
class Offer:
    """One type of instance in one place.

    Attributes:
        accelerator: such as "v100".
        accelerators: in one instance; a part of one on clouds that divide them.
        spot: dollars an hour of an instance that may be taken away; None where there is no such market.
        on_demand: dollars an hour of one that is kept; None where nobody told.
    """

    key: PriceKey
    accelerator: str
    accelerators: float = 1.0
    spot: Series | None = None
    on_demand: Series | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.accelerators) and self.accelerators > 0):
            raise InputError(f"{self.key}: accelerators", str(self.accelerators), "a number > 0")
        if not self.accelerator:
            raise InputError(f"{self.key}: accelerator", "nothing", "a name such as v100")

    def price(self, now_s: float, spot: bool = True) -> float:
        """Dollars an hour of one accelerator; nan where it is not on sale."""
        series = self.spot if spot else self.on_demand
        return series.at(now_s) / self.accelerators if series is not None else nan


@dataclass(frozen=True)
class Market:
    """All offers, one for each key."""

    offers: tuple[Offer, ...]

    def __post_init__(self) -> None:
        if len(self._by_key) != len(self.offers):
            seen = [offer.key for offer in self.offers]
            twice = next(key for k, key in enumerate(seen) if key in seen[:k])
            raise InputError(f"market: {twice}", "two offers", "one", "Join them with Market.of.")

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> "Market":
        """Join offers of one key that come from several files: of each series, the changes together.

        Raises:
            InputError: they contradict each other.
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
        """What workers of a type are, by the offer that it names; None where it names none.

        Raises:
            InputError: no offer is written so, or the market does not know what it costs as this type wants it.
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
            step = "Leave `offer` out and give price_usd_per_hour, or say `spot: true`."
            raise InputError(place, f"{own.offer}, without {what}", f"one with {what}", step if not own.spot else "")
        return found

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    @property
    def first_s(self) -> float:
        """The first moment of which a spot price is known, or any price where no offer has one."""
        spot = [offer.spot.times_s[0] for offer in self.offers if offer.spot]
        return min(spot or [o.on_demand.times_s[0] for o in self.offers if o.on_demand])

    @property
    def last_s(self) -> float:
        """The last moment at which a spot price changed, or any price where no offer has one."""
        spot = [offer.spot.times_s[-1] for offer in self.offers if offer.spot]
        return max(spot or [o.on_demand.times_s[-1] for o in self.offers if o.on_demand])

    def where(self, wanted: Callable[[Offer], bool]) -> "Market":
        """The offers that are wanted."""
        return Market(tuple(offer for offer in self.offers if wanted(offer)))

    def price_at(self, key: PriceKey, now_s: float, spot: bool = True) -> float:
        """Dollars an hour of one instance at a moment.

        Raises:
            InputError: an unknown key, or an instance that is not on sale then.
        """
        offer = self[key]
        price = offer.price(now_s, spot) * offer.accelerators
        if isnan(price):
            kind = "spot price" if spot else "price on demand"
            raise InputError(f"{key}: {kind}", f"none at {now_s:.0f} s", "a moment at which it is on sale")
        return price

    def cheapest(self, now_s: float, accelerator: str, spot: bool = True) -> Offer | None:
        """The offer whose accelerator costs least at a moment; the first by key among equals; None if none is on sale."""
        found = [o for o in self.offers if o.accelerator == accelerator and not isnan(o.price(now_s, spot))]
        return min(found, key=lambda o: (o.price(now_s, spot), o.key), default=None)


def _joined(parts: Sequence[Offer]) -> Offer:
    first = parts[0]
    for other in parts[1:]:
        mine, theirs = ((p.accelerator, p.accelerators) for p in (first, other))
        if mine != theirs:
            found = f"{mine[1]:g} {mine[0]} and {theirs[1]:g} {theirs[0]}"
            raise InputError(f"market: {first.key}", found, "the same accelerators everywhere")
    both = [[s for p in parts if (s := getattr(p, name)) is not None] for name in ("spot", "on_demand")]
    spot, on_demand = (_together(series, f"market: {first.key}") for series in both)
    return replace(first, spot=spot, on_demand=on_demand)


def _together(parts: Sequence[Series], place: str) -> Series | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return Series.of(((t, v) for s in parts for t, v in zip(s.times_s, s.values, strict=True)), place)


def priced(types: Iterable[WorkerType], market: Market, now_s: float) -> tuple[WorkerType, ...]:
    """Types of workers with the prices of the moment, for a Snapshot; types without an offer keep the price that they have.

    A spot type pays the spot price, any other the price on demand.

    Raises:
        InputError: an offer that the market does not have, or one that is not on sale.
    """
    return tuple(
        replace(t, price_usd_per_hour=market.price_at(found.key, now_s, t.spot) / found.accelerators)
        if (found := market.offer_of(t)) is not None
        else t
        for t in types
    )

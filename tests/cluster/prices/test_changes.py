"""Prices of the moment reach the core as events."""

from math import nan

import pytest

from hocket.cluster.events import PriceChanged
from hocket.cluster.prices.changes import price_changes
from hocket.cluster.prices.market import Market, Offer, priced
from hocket.cluster.prices.series import Series
from hocket.cluster.workers import WorkerType
from hocket.errors import InputError
from tests.cluster.prices.markets import BIG, HOUR, OTHER, SMALL, market

TYPES = (WorkerType("k80", 4), WorkerType("v100", 8))


def test_each_change_is_an_event_with_the_price_of_one_accelerator() -> None:
    """Counted from the beginning; four accelerators share the price of their instance."""
    found = price_changes(TYPES, {"v100": SMALL, "k80": OTHER}, market(), 9 * HOUR, 20 * HOUR)
    assert found == ((HOUR, PriceChanged(1, 0.5)),)
    four = Market((Offer(BIG, "v100", 4, spot=Series((0.0, 10.0, 20.0, 30.0), (4.0, 8.0, nan, 2.0))),))
    found = price_changes(TYPES, {"v100": BIG}, four, 5.0, 40.0)
    assert found == ((5.0, PriceChanged(1, 2.0)), (25.0, PriceChanged(1, 0.5)))


def test_the_first_price_and_the_changes_are_the_price_at_any_moment() -> None:
    """What the types cost at the beginning, and the last change before a moment, give the market's price then."""
    begin = 9 * HOUR
    now = {t.name: t.price_usd_per_hour for t in priced(TYPES, {"v100": SMALL}, market(), begin)}
    assert now["v100"] == market().price_at(SMALL, begin)
    for when, event in price_changes(TYPES, {"v100": SMALL}, market(), begin, 30 * HOUR):
        assert event.price_usd_per_hour == market().price_at(SMALL, begin + when)


def test_unknown_types_and_instances_are_refused() -> None:
    """With the nearest name."""
    with pytest.raises(InputError, match="Did you mean 'v100'"):
        price_changes(TYPES, {"v10": SMALL}, market(), 0.0, 1.0)
    with pytest.raises(InputError, match="no offer of"):
        price_changes(TYPES, {"v100": SMALL._replace(zone="x")}, market(), 0.0, 1.0)

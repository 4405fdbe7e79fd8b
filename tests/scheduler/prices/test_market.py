"""Markets: current prices, merged from several files."""

from dataclasses import replace
from math import isnan, nan

import pytest

from hocket.errors import InputError
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.prices.market import Market, Offer, PriceKey, priced
from hocket.scheduler.prices.series import Series
from tests.scheduler.helpers.markets import BIG, HOUR, OTHER, SMALL, market


def test_a_price_is_that_of_the_moment() -> None:
    """Prices at a time, spot or on demand, of an instance or an accelerator."""
    whole = market()
    assert whole.price_at(SMALL, 0.0) == 3.0
    assert whole.price_at(SMALL, 10 * HOUR) == 0.5
    assert whole.price_at(BIG, 5.0, spot=False) == 12.0
    assert whole[BIG].price(5.0) == 1.0


def test_the_cheapest_is_by_accelerator() -> None:
    """The cheapest offer is per accelerator; None if no offer has the accelerator.

    A quarter of an instance with four may be cheapest, until a price changes.
    """
    whole = market()
    first, later = whole.cheapest(0.0, "v100"), whole.cheapest(11 * HOUR, "v100")
    assert first is not None
    assert later is not None
    assert (first.key, later.key) == (BIG, SMALL)
    assert whole.cheapest(0.0, "h100") is None
    assert whole.cheapest(0.0, "k80", spot=False) is None


def test_what_is_not_there_is_refused_with_its_name() -> None:
    """Unknown keys and missing prices are refused by name.

    The error names the nearest key, or the kind of price.
    """
    with pytest.raises(InputError, match=r"us-east-1b/p3\.2xlarge"):
        market()[SMALL._replace(instance_type="p3.2xlarg")]
    with pytest.raises(InputError, match="price on demand: found none"):
        market().price_at(SMALL, 0.0, spot=False)
    with pytest.raises(InputError, match="spot price: found none"):
        market().price_at(SMALL, -1.0)


def test_offers_of_several_files_are_joined() -> None:
    """Changes of one series are merged, for any order of files."""
    parts = [Offer(SMALL, "v100", 1, spot=Series((t,), (v,))) for t, v in ((5.0, 2.0), (0.0, 1.0), (5.0, 2.0))]
    parts.append(Offer(SMALL, "v100", 1, on_demand=Series.constant(3.0)))
    whole = Market.of(parts)
    assert whole.offers == Market.of(reversed(parts)).offers
    assert whole[SMALL].spot == Series((0.0, 5.0), (1.0, 2.0))
    assert whole.price_at(SMALL, 1.0, spot=False) == 3.0


@pytest.mark.parametrize(
    "other",
    [Offer(SMALL, "k80", 1, spot=Series.constant(9.0)), Offer(SMALL, "v100", 2), Offer(SMALL, "v100", 1, spot=Series.constant(9.0))],
)  # fmt: skip
def test_offers_that_contradict_each_other_are_refused(other: Offer) -> None:
    """Different accelerators, or two prices at one time, are refused."""
    with pytest.raises(InputError, match=r"us-east-1b/p3\.2xlarge"):
        Market.of([Offer(SMALL, "v100", 1, spot=Series.constant(1.0)), other])


def test_one_key_twice_is_refused() -> None:
    """A market has one offer per key, and offers have accelerators."""
    offer = Offer(OTHER, "k80")
    with pytest.raises(InputError, match="two offers"):
        Market((offer, offer))
    for wrong in (0.0, nan, -1.0):
        with pytest.raises(InputError, match="accelerators"):
            Offer(OTHER, "k80", wrong)
    with pytest.raises(InputError, match="accelerator"):
        Offer(OTHER, "")
    assert isnan(offer.price(0.0))


def test_types_of_workers_get_the_prices_of_the_moment() -> None:
    """Worker types get current prices of one accelerator, spot or on demand.

    Types without an offer keep their price.
    """
    spot = WorkerType("v100 spot", 8, spot=True, offer=str(BIG))
    types = (spot, replace(spot, name="v100", spot=False), WorkerType("k80", 4, price_usd_per_hour=0.9))
    found = priced(types, market(), 0.0)
    assert [t.price_usd_per_hour for t in found] == [1.0, 3.0, 0.9]
    assert priced([replace(spot, offer=str(SMALL))], market(), 10 * HOUR)[0].price_usd_per_hour == 0.5
    with pytest.raises(InputError, match="without prices on demand"):
        priced([WorkerType("v100", 1, offer=str(SMALL))], market(), 0.0)
    with pytest.raises(InputError, match=r"no offer|an offer of the market.*Did you mean 'aws/us-east-1a/p3.8xlarge'"):
        priced([replace(spot, offer="aws/us-east-1a/p3.8xlarg")], market(), 0.0)


def test_a_key_is_written_shortly() -> None:
    """A key is written with its zone, or else with its region."""
    assert str(BIG) == "aws/us-east-1a/p3.8xlarge"
    assert str(PriceKey("azure", "us-east", "", "NC6")) == "azure/us-east/NC6"

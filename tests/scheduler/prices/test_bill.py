"""Bills: the prices paid, stored with the run."""

from math import nan

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.bill import Bill, Paid, bill, total_usd
from hocket.scheduler.prices.market import Market, Offer
from hocket.scheduler.prices.series import Series
from hocket.util.schema import as_data, read_as
from tests.scheduler.helpers.markets import BIG, HOUR, SMALL, market


def test_each_second_costs_the_price_of_that_second() -> None:
    """Nine hours to ten at 3 dollars, then at 0.5: the bill is the integral.

    It lists both prices.
    """
    found = bill(market(), SMALL, 9 * HOUR, 12 * HOUR, instances=2)
    assert found.cost_usd == pytest.approx(2 * (3.0 + 2 * 0.5))
    assert found.paid == (Paid(9 * HOUR, 3.0), Paid(10 * HOUR, 0.5))
    assert found.mean_usd_per_hour == pytest.approx(4 / 3)
    assert total_usd([found, found]) == pytest.approx(16.0)


def test_a_part_of_an_instance_costs_its_part() -> None:
    """A job with one of four accelerators pays a quarter, spot or on demand."""
    assert bill(market(), BIG, 0.0, HOUR, 0.25).cost_usd == pytest.approx(1.0)
    assert bill(market(), BIG, 0.0, HOUR, spot=False).cost_usd == pytest.approx(12.0)
    assert bill(market(), BIG, HOUR, HOUR).mean_usd_per_hour == 0.0


def test_a_bill_survives_being_written_and_read() -> None:
    """A bill is plain data, and independent of later prices."""
    found = bill(market(), SMALL, 9 * HOUR, 12 * HOUR)
    assert read_as(Bill, as_data(found), "bill") == found


def test_a_lease_that_cannot_be_is_refused() -> None:
    """Invalid leases are refused.

    Examples: a lease that ends before it begins, a lease of no instances, and a lease without a price at the start
    or for a while.
    """
    gap = Market((Offer(SMALL, "v100", 1, spot=Series((0.0, 5.0, 9.0), (1.0, nan, 1.0))),))
    for wrong in ((SMALL, 2.0, 1.0), (SMALL, 0.0, 7.0), (SMALL, -3.0, 2.0), (SMALL, 6.0, 7.0)):
        with pytest.raises(InputError, match="us-east-1b"):
            bill(gap, *wrong)
    with pytest.raises(InputError, match="instances"):
        bill(gap, SMALL, 0.0, 1.0, instances=0)

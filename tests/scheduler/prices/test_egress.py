"""Costs of moving bytes."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.prices.egress import GB, TARIFFS, Egress, Tariff, move_usd
from hocket.scheduler.prices.market import PriceKey

HERE = PriceKey("aws", "us-east-1", "us-east-1a", "p3.2xlarge")


@pytest.mark.parametrize(
    ("target", "usd"),
    [
        (HERE, 0.0),
        (HERE._replace(zone="us-east-1b"), 1.0),
        (HERE._replace(region="us-west-2", zone="us-west-2a"), 2.0),
        (PriceKey("azure", "us-east", "", "NC6"), 99 * 0.09),
    ],
)
def test_the_farther_the_dearer(target: PriceKey, usd: float) -> None:
    """100 GB cost nothing within a zone, and more with the distance.

    A cent a GB to another zone, two to another region, nine out of the cloud with one GB free.
    """
    assert move_usd(100 * GB, HERE, target) == pytest.approx(usd)


@given(st.sampled_from(sorted(TARIFFS)), st.floats(0, 3e5), st.floats(0, 3e5))
def test_bands_count_what_went_before(cloud: str, first_gb: float, second_gb: float) -> None:
    """Two transfers in a month cost as much as one of both."""
    tariff = TARIFFS[cloud]
    both = tariff.out_usd((first_gb + second_gb) * GB)
    split = tariff.out_usd(first_gb * GB) + tariff.out_usd(second_gb * GB, first_gb * GB)
    assert split == pytest.approx(both, rel=1e-9, abs=1e-9)


def test_moves_of_a_month_are_charged_as_one() -> None:
    """The first gigabyte of a month is free once, not once for each move.

    Each cloud and each month counts separately.
    """
    away, egress, begin_s = PriceKey("azure", "us-east", "", "NC6"), Egress(), 1583020800.0  # 1 March 2020
    costs = [egress.move_usd(0.6 * GB, HERE, away, begin_s + 86400.0 * day) for day in range(32)]
    assert costs[:3] == pytest.approx([0.0, 0.2 * 0.09, 0.6 * 0.09])
    assert sum(costs[:31]) == pytest.approx(move_usd(31 * 0.6 * GB, HERE, away))
    assert egress.quote_usd(0.6 * GB, HERE, away, begin_s) == pytest.approx(0.6 * 0.09)
    assert costs[31] == 0.0  # it is April
    assert egress.move_usd(5 * GB, away, HERE, begin_s) == 0.0
    assert egress.move_usd(5 * GB, away, HERE, begin_s) == pytest.approx(5 * 0.087)


def test_what_has_no_price_is_refused() -> None:
    """Unknown clouds, negative sizes, and invalid tariffs are refused."""
    with pytest.raises(InputError, match="none for 'awz'"):
        move_usd(1.0, HERE._replace(cloud="awz"), HERE)
    assert move_usd(0.0, HERE._replace(cloud="awz"), HERE) == 0.0
    with pytest.raises(InputError, match=r"size_bytes: found -1\.0; expected a number of bytes, >= 0"):
        move_usd(-1.0, HERE, HERE)
    for bands in (((10.0, 0.1),), ((10.0, 0.1), (5.0, 0.1), (inf, 0.1)), ()):
        with pytest.raises(InputError, match="tariff: out"):
            Tariff(bands, 0.0, 0.0)
    with pytest.raises(InputError, match="dollars per GB"):
        Tariff(((inf, -0.1),), 0.0, 0.0)

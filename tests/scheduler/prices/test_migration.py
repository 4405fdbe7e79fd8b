"""Migration of a job as prices change."""

from math import nan

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.market import Market, Offer
from hocket.scheduler.prices.migration import Moving, travel
from hocket.scheduler.prices.series import Series
from tests.scheduler.helpers.markets import BIG, FAR, HOUR, OTHER, SMALL, market

SPEED = {"v100": 1.0, "k80": 0.1}


def test_a_job_without_moves_stays_where_it_began() -> None:
    """A job without moves stays on the offer with the cheapest step.

    A quarter of an instance with four costs a dollar an hour. The K80 costs less an hour and more a step.
    """
    found = travel(market(), SPEED, 20 * HOUR, 0.0)
    assert [b.instance_type for b in found.bills] == [BIG.instance_type]
    assert (found.cost_usd, found.moves, found.end_s) == (pytest.approx(20.0), 0, pytest.approx(20 * HOUR))


def test_a_job_that_may_move_goes_where_a_step_is_cheapest() -> None:
    """After twelve hours the job finds a V100 for half a dollar and moves.

    Slower accelerators are compared by steps.
    """
    found = travel(market(), SPEED, 20 * HOUR, 0.0, Moving(every_s=12 * HOUR))
    assert [b.zone for b in found.bills] == [BIG.zone, SMALL.zone]
    assert found.cost_usd == pytest.approx(12.0 + 8 * 0.5)
    k80 = travel(market(), {"v100": 1.0, "k80": 0.9}, 9 * HOUR, 0.0)
    assert (k80.bills[0].zone, k80.end_s) == (OTHER.zone, pytest.approx(10 * HOUR))


def test_a_move_is_paid_for_in_money_and_in_time() -> None:
    """A move costs its transfer and its restart; if it saves less, the job stays."""
    cheap = Moving(12 * HOUR, checkpoint_bytes=100e9, restart_s=HOUR)
    found = travel(market(), SPEED, 20 * HOUR, 0.0, cheap)
    assert found.transfer_usd == pytest.approx(1.0)
    assert found.cost_usd == pytest.approx(12.0 + 1.0 + 9 * 0.5)
    assert found.end_s == pytest.approx(21 * HOUR)
    dear = Moving(12 * HOUR, checkpoint_bytes=1000e9)
    assert travel(market(), SPEED, 20 * HOUR, 0.0, dear).moves == 0


def test_an_instance_that_is_sold_no_more_is_left() -> None:
    """A job leaves an instance that is not on sale any more, even without checks."""
    ends = Offer(SMALL, "v100", 1, spot=Series((0.0, 5 * HOUR), (0.1, nan)))
    found = travel(Market((ends, *market().where(lambda o: o.key == FAR))), SPEED, 8 * HOUR, 0.0)
    assert [(b.zone, b.cost_usd) for b in found.bills] == [
        (SMALL.zone, pytest.approx(0.5)), (FAR.zone, pytest.approx(6.0)),
    ]  # fmt: skip


def test_what_cannot_be_trained_is_refused() -> None:
    """No steps, no offers, no usable accelerator and invalid moves are refused."""
    with pytest.raises(InputError, match="steps"):
        travel(market(), SPEED, nan, 0.0)
    with pytest.raises(InputError, match="nothing on sale"):
        travel(market(), SPEED, 1.0, -1.0)
    with pytest.raises(InputError, match="h100"):
        travel(market(), {"h100": 1.0}, 1.0, 0.0)
    for wrong in ({"every_s": 0.0}, {"checkpoint_bytes": -1.0}, {"restart_s": nan}):
        with pytest.raises(InputError, match="moving"):
            Moving(**wrong)

"""Availability of instances, and preemption notices."""

from math import inf, isnan

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.availability import Availability, InstanceLifetime, Notice, notices
from tests.scheduler.helpers.markets import FAR, SMALL

HELD = (
    InstanceLifetime(100.0, 400.0, True),
    InstanceLifetime(600.0, 700.0, True),
    InstanceLifetime(900.0, 1000.0, False),
)
ONE = Availability(SMALL, "v100", 1.0, HELD, (500.0,), 0.0, 1000.0)


def test_an_instance_is_there_between_grant_and_preemption() -> None:
    """An instance is available between grant and preemption.

    Outside the observation, availability is unknown.
    """
    assert [ONE.available(t) for t in (-1.0, 50.0, 100.0, 399.0, 400.0, 650.0, 1000.0, 1001.0)] == [
        None, False, True, True, False, True, True, None,
    ]  # fmt: skip
    assert [ONE.series.at(t) for t in (50.0, 100.0, 400.0, 950.0)] == [0.0, 1.0, 0.0, 1.0]
    assert isnan(ONE.series.at(1000.0))
    assert ONE.series.integral(0.0, 1000.0) == ONE.held_s == 500.0


def test_the_time_of_instances_that_stayed_counts() -> None:
    """500 s with an instance and two preemptions: 250 s to preemption.

    The two preempted instances lasted 200 s on average.
    """
    assert (ONE.fraction, ONE.preemptions, ONE.mean_s_to_preemption) == (0.5, 2, 250.0)
    never = Availability(SMALL, "v100", 1.0, HELD[2:], (), 0.0, 1000.0)
    assert never.mean_s_to_preemption == inf
    assert isnan(Availability(SMALL, "", 1.0, (), (), 5.0, 5.0).fraction)


def test_a_notice_comes_before_each_preemption_only() -> None:
    """Notices precede preemptions by the cloud's period, and never the grant.

    A longer checkpoint is too late.
    """
    assert ONE.notices() == (Notice(SMALL, 280.0, 400.0), Notice(SMALL, 600.0, 700.0))
    assert ONE.notices(30.0)[1].at_s == 670.0
    assert ONE.notices()[0].enough_for(120.0)
    assert not ONE.notices()[1].enough_for(120.0)


def test_notices_of_many_come_in_order() -> None:
    """Notices are sorted by time, then by key."""
    other = Availability(FAR, "v100", 1.0, (InstanceLifetime(0.0, 500.0, True),), (), 0.0, 1000.0)
    assert [n.at_s for n in notices([ONE, other])] == [280.0, 380.0, 600.0]


def test_what_cannot_be_is_refused() -> None:
    """Overlapping instances, unknown clouds and negative notice periods are refused."""
    with pytest.raises(InputError, match="the time 4 s after 5 s, not in ascending order"):
        Availability(
            SMALL, "v100", 1.0, (InstanceLifetime(0.0, 5.0, True), InstanceLifetime(4.0, 6.0, True)), (), 0.0, 10.0
        )
    unknown = Availability(SMALL._replace(cloud="mine"), "v100", 1.0, HELD, (), 0.0, 1000.0)
    with pytest.raises(InputError, match="'mine'"):
        unknown.notices()
    with pytest.raises(InputError, match="notice_s"):
        ONE.notices(-1.0)

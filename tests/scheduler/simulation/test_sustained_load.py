"""Sustained load: the load at which a policy's JCT equals another's."""

from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.scheduler.simulation.sustained_load import Sustained, course, sustained

SLOW = [(2.0, 20.0), (4.0, 40.0), (6.0, 90.0)]


def test_seeds_come_together() -> None:
    """The mean of known values, by ascending load."""
    found = course([(4.0, 10.0), (2.0, 6.0), (4.0, 20.0), (4.0, nan), (8.0, nan), (9.0, inf)])
    assert found[:2] == [(2.0, 6.0), (4.0, 15.0)]
    assert [load for load, _ in found[2:]] == [8.0, 9.0]
    assert all(isnan(jct_s) for _, jct_s in found[2:])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([(2.0, 10.0), (4.0, 30.0), (6.0, 60.0)], Sustained(4.0 + 2.0 / 3.0, 4.0)),  # 90 is reached nowhere, 40 is
        ([(2.0, 30.0), (4.0, 60.0), (6.0, 120.0)], Sustained(5.0, 6.0)),  # longer: less load
        (SLOW, Sustained(6.0, 6.0)),
        ([(2.0, 5.0), (4.0, 6.0), (6.0, 7.0)], Sustained(6.0, 2.0, at_least=True)),
        ([(6.0, 7.0)], Sustained(6.0, 2.0, at_least=True)),
        ([(2.0, 7.0)], None),  # shorter, but not at a greater load
        ([(2.0, 100.0), (4.0, 200.0)], None),
        ([(2.0, 95.0), (4.0, 15.0), (6.0, 100.0)], None),  # longer at first: what comes then is chance
        ([(2.0, nan), (4.0, nan)], None),
        ([], None),
        ([(2.0, 20.0)], Sustained(2.0, 2.0)),
    ],
)
def test_what_is_sustained(own: list[tuple[float, float]], expected: Sustained | None) -> None:
    """The result is for the other policy's largest load with a known answer."""
    found = sustained(own, SLOW)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert tuple(found) == pytest.approx(tuple(expected))


@given(
    times=st.lists(st.floats(1.0, 1e6), min_size=2, max_size=8),
    factor=st.floats(1.1, 3.0),
)
def test_a_policy_that_is_quicker_by_load_sustains_as_much_more(times: list[float], factor: float) -> None:
    """A policy with all loads scaled by a factor sustains that factor."""
    times = sorted({round(time_s, 3) for time_s in times})
    other = [(float(k + 1), time_s) for k, time_s in enumerate(times)]
    found = sustained([(load * factor, time_s) for load, time_s in other], other)
    assert found is not None
    assert not found.at_least
    assert found.factor == pytest.approx(factor)


def test_it_is_told_in_words() -> None:
    """The sentence has both loads and their ratio."""
    assert Sustained(6.0, 4.0).sentence("a", "b") == "a at 6 jobs an hour takes as long as b at 4: 1.5 × the load"
    told = Sustained(6.0, 4.0, at_least=True).sentence("a", "b")
    assert told == "a at 6 jobs an hour takes less time than b at 4: more than 1.5 × the load"

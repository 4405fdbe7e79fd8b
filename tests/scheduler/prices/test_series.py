"""Time series: steps, and their integrals."""

from math import inf, isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.scheduler.prices.series import Series

STEPS = st.dictionaries(st.integers(0, 1000), st.floats(0, 50), min_size=1, max_size=12).map(
    lambda steps: Series.of(steps.items(), "test")
)


@given(STEPS, st.lists(st.floats(1000, 3000), min_size=3, max_size=3).map(sorted))
def test_integrals_of_neighbouring_times_add_up(series: Series, moments: list[float]) -> None:
    """Integrals over adjacent times add up."""
    first, middle, last = moments
    whole = series.integral(first, last)
    assert series.integral(first, middle) + series.integral(middle, last) == pytest.approx(whole, abs=1e-6)


@given(STEPS, st.integers(0, 400), st.integers(0, 400))
def test_the_integral_is_the_sum_over_seconds(series: Series, begin: int, length: int) -> None:
    """With changes at whole seconds, the integral is the sum over seconds."""
    begin += int(series.times_s[0])
    expected = sum(series.at(second) for second in range(begin, begin + length))
    assert series.integral(begin, begin + length) == pytest.approx(expected, abs=1e-6)


@given(STEPS, st.integers(-10, 1200))
def test_many_moments_are_asked_as_one(series: Series, now: int) -> None:
    """`on` gives for an array the values that `at` gives for each time."""
    assert np.array_equal(series.on(np.array([now])), [series.at(now)], equal_nan=True)


@given(STEPS, st.integers(0, 500), st.integers(1, 800))
def test_steps_between_tell_the_same_integral(series: Series, begin: int, length: int) -> None:
    """The steps of a bill add up to the integral."""
    begin += int(series.times_s[0])
    steps = series.between(begin, begin + length)
    ends = [start for start, _ in steps[1:]] + [begin + length]
    area = sum(value * (end - start) for (start, value), end in zip(steps, ends, strict=True))
    assert area == pytest.approx(series.integral(begin, begin + length), abs=1e-6)


def test_before_the_first_moment_and_in_gaps_nothing_is_known() -> None:
    """Before the first time, and in gaps, there is no value and no integral.

    The ends of a gap belong to it as documented.
    """
    series = Series((10.0, 20.0, 30.0), (1.0, nan, 2.0))
    assert isnan(series.at(9.9))
    assert isnan(series.integral(5, 12))
    assert isnan(series.integral(15, 25))
    assert isnan(series.integral(22, 24))
    assert series.integral(10, 20) == 10
    assert series.integral(30, 35) == 10
    assert series.integral(22, 22) == 0
    assert (series.until(12), series.until(30)) == (20, inf)


def test_after_the_last_moment_the_value_stays() -> None:
    """After the last time the value continues."""
    assert Series.constant(3.0, 100.0).at(1e12) == 3.0


@pytest.mark.parametrize(
    ("times", "values"),
    [((), ()), ((1.0,), ()), ((1.0, 1.0), (2.0, 2.0)), ((2.0, 1.0), (1.0, 1.0)), ((inf,), (1.0,)), ((nan,), (1.0,)),
     ((1.0,), (-1.0,)), ((1.0,), (inf,))],
)  # fmt: skip
def test_a_series_that_is_none_is_refused(times: tuple[float, ...], values: tuple[float, ...]) -> None:
    """Invalid series are refused.

    Examples: no times, unordered or invalid times, negative or infinite values.
    """
    with pytest.raises(InputError):
        Series(times, values)


def test_two_values_for_one_moment_are_refused_with_the_place() -> None:
    """Two values for one time are refused with the place; a duplicate counts once."""
    assert Series.of([(1, 2.0), (1, 2.0), (0, nan), (0, nan)], "here").times_s == (0, 1)
    with pytest.raises(InputError, match="here: found 2 and 3 at one moment"):
        Series.of([(1, 2.0), (1, 3.0)], "here")
    with pytest.raises(InputError, match="no values"):
        Series.of([], "here")
    with pytest.raises(InputError, match="at or after"):
        Series.constant(1.0).integral(2, 1)

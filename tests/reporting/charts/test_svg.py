"""Small pieces of SVG: numbers, ticks and escaping."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.reporting.charts.svg import byte_ticks, log_ticks, num, show_tick, svg, text, ticks

LENGTHS = st.floats(1e-9, 1e9)


@given(st.floats(-1e6, 1e6))
def test_numbers_are_short_and_near(value: float) -> None:
    """Two decimals at most, no exponent, no needless zeros, no minus zero."""
    shown = num(value)
    assert abs(float(shown) - value) <= 0.00501
    assert "e" not in shown
    assert shown != "-0"
    assert "." not in shown or not shown.endswith("0")


@given(LENGTHS, st.floats(0, 1e6), st.integers(1, 40))
def test_ticks_lie_inside_and_are_about_as_many_as_wanted(length: float, low: float, wanted: int) -> None:
    """The number of ticks is near the wanted number.

    It is between a third of the wanted number and one more than it. All ticks lie between the low and the high end.
    """
    high = low + length
    if high - low < 1e-6 * high:
        return
    found = ticks(low, high, wanted)
    assert wanted // 3 <= len(found) <= wanted + 1
    assert all(low - 1e-6 * length <= t <= high + 1e-6 * length for t in found)


@given(st.floats(1, 1e13), st.integers(1, 8))
def test_ticks_of_bytes_begin_at_zero_and_are_powers_of_two_apart(high: float, wanted: int) -> None:
    """At most one more than wanted."""
    found = byte_ticks(high, wanted)
    assert found[0] == 0
    assert len(found) <= wanted + 1
    assert found[-1] <= high


@given(st.floats(1e-6, 1e3), st.floats(1.2, 1e6))
def test_ticks_of_a_log_axis_lie_inside(low: float, factor: float) -> None:
    """Ascending, from low to high."""
    found = log_ticks(low, low * factor)
    assert found == sorted(found)
    assert all(low * 0.999 <= t <= low * factor * 1.001 for t in found)


def test_empty_lengths_have_one_tick() -> None:
    """No division by zero where there is nothing to divide."""
    assert ticks(3.0, 3.0, 5) == [3.0]
    assert ticks(0.0, float("nan"), 5) == [0.0]
    assert byte_ticks(0.0, 4) == [0.0]


@pytest.mark.parametrize(
    ("value_s", "scale_s", "shown"),
    [(0, 1, "0"), (0.25, 1, "250 ms"), (3, 10, "3 s"), (2e-5, 1e-4, "20 µs")],
)
def test_ticks_of_time_have_the_unit_of_their_axis(value_s: float, scale_s: float, shown: str) -> None:
    """One axis, one unit."""
    assert show_tick(value_s, scale_s) == shown


@pytest.mark.slow
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn"))))
def test_every_text_is_escaped(content: str) -> None:
    """A drawing with any name is well-formed and shows the name."""
    root = ET.fromstring(svg(10, 10, [text(1, 1, content, "tick")], content, content))
    assert [(e.text or "") for e in root] == [content, *([content] if content else []), content]

"""Axes: places, round ticks, labels that people read."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hocket.reporting.cluster_report.axis import Axis, lattice, show_long, show_tick, span_of, stairs


def test_long_times_are_in_hours() -> None:
    """Hours from two hours on, as jobs of clusters are talked about."""
    assert show_long(30.0) == "30 s"
    assert show_long(3600.0) == "60.0 min"
    assert show_long(38.2 * 3600) == "38.2 h"
    assert show_long(1363 * 3600) == "1,363 h"
    assert [show_tick(t) for t in (0.5, 10.0, 600.0, 36000.0)] == ["500 ms", "10 s", "10 min", "10 h"]


@given(st.floats(1e-3, 1e8), st.floats(1.0001, 1e6), st.booleans(), st.sampled_from(["", "time", "%"]))
def test_marks_stand_in_order_within_the_axis(low: float, ratio: float, log: bool, unit: str) -> None:
    """Marks are in order within the axis and have different labels."""
    axis = Axis(low, low * ratio, 0.0, 100.0, unit, log)
    marks = axis.marks(6)
    places = [axis.at(value) for value, _ in marks]
    assert places == sorted(places)
    assert all(0 <= p <= 100 for p in places)
    if ratio > 1.5:
        assert len({name for _, name in marks}) == len(marks) >= 2


def test_a_logarithmic_axis_gives_ratios_the_same_room() -> None:
    """1 to 10 takes as much as 10 to 100; what is beyond stands at the end."""
    axis = Axis(1.0, 100.0, 0.0, 200.0, log=True)
    assert [axis.at(v) for v in (1.0, 10.0, 100.0, 1e9, 1e-9)] == pytest.approx([0, 100, 200, 200, 0])


@example(1.5, 10.0, "")
@example(1.5, 10.0, "time")
@given(st.floats(1e-3, 1e3), st.floats(10.0, 1e6), st.sampled_from(["", "time"]))
def test_marks_of_a_logarithmic_axis_leave_no_part_of_it_empty(low: float, ratio: float, unit: str) -> None:
    """No gap between marks of a logarithmic axis reaches half of the axis.

    Marks at equal distances in value would crowd at the right end.
    """
    axis = Axis(low, low * ratio, 0.0, 100.0, unit, log=True)
    places = [0.0, *(axis.at(value) for value, _ in axis.marks(6)), 100.0]
    assert max(b - a for a, b in pairwise(places)) < 50


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=5), st.booleans())
def test_spans_are_never_empty(values: list[float], log: bool) -> None:
    """The span of any values is finite and not empty.

    The lower end of a logarithmic axis is above 0.
    """
    low, high = span_of([float(v) for v in values], log)
    assert np.isfinite([low, high]).all()
    assert low < high
    assert low > 0 or not log


def test_stairs_leave_equal_steps_out() -> None:
    """A value that stays is one line."""
    path = stairs(lambda x: x, lambda y: y, np.arange(5.0), np.array([1.0, 1.0, 3.0, 3.0]))
    assert path == "M0 1H2V3H4"


def test_labels_do_not_run_into_each_other() -> None:
    """On an axis of many ticks some go without a label."""
    across = Axis(1.0, 1e9, 0.0, 120.0, "time", log=True, title="t")
    parts = [p for p in lattice(across, Axis(0.0, 1.0, 100.0, 0.0, title="y")) if " min<" in p or " h<" in p]
    assert 2 <= len(parts) < len(across.marks(6))

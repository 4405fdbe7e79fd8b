"""Memory curves."""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

from hocket.program.trace.trace import Trace
from hocket.reporting.charts.memory import memory_curves
from hocket.reporting.charts.window import DrawnTrace, Window, choose
from hocket.util.units import show_bytes


def heights(drawing: str, cls: str) -> list[float]:
    """The heights that a curve takes, in its order."""
    path = next(e for e in ET.fromstring(drawing).findall(".//{*}path") if e.get("class") == cls)
    return [float(y) for y in re.findall(r"(?:M[\d.]+ |V)([\d.]+)", path.get("d", ""))]


def test_every_device_has_a_curve_with_its_peak(predicted: Callable[..., Any]) -> None:
    """The figures are the summary's, and shares are of the capacity."""
    plan, trace, summary = predicted()
    window = choose(trace, plan.microbatches)
    capacity = dict.fromkeys(range(4), 2 * max(summary.peak_memory_bytes.values()))
    found = memory_curves(
        DrawnTrace(trace, window), None, window.seconds, (0, 1, 2, 3), capacity, summary.peak_memory_bytes
    )
    assert [c.device for c in found] == [0, 1, 2, 3]
    assert [c.peak for c in found] == [show_bytes(summary.peak_memory_bytes[d]) for d in range(4)]
    assert found[0].share == "50.0%"
    assert all(ET.fromstring(c.drawing).findtext("{*}title") for c in found)


def test_the_curve_is_the_record() -> None:
    """The memory curve follows the recorded steps.

    It rises by one step, then to a spike shorter than a column of the drawing, and falls again. The measured curve is
    drawn too.
    """
    steps = [(0.0, 100.0), (2.0, 200.0), (5.0, 400.0), (5.0001, 200.0), (8.0, 100.0)]
    trace = Trace.of([], {0: steps})
    window = Window(0.0, 10.0, 0, 1, 1)
    record = DrawnTrace(trace, window)
    (found,) = memory_curves(record, record, 10.0, (0,), {0: 500.0}, {})
    levels = heights(found.drawing, "curve")
    low, middle, spike, *_ = levels
    assert levels == [low, middle, spike, middle, low]
    assert abs((low - spike) - 3 * (low - middle)) < 0.05
    assert heights(found.drawing, "real") == levels
    assert 'class="limit"' in found.drawing


def test_a_record_that_ends_before_the_window_says_nothing_of_it() -> None:
    """A record that ends before the window is drawn only as a peak.

    Memory is recorded only in the first iterations of a run.
    """
    trace = Trace.of([], {0: [(0.0, 100.0), (9.0, 300.0)]})
    early = Trace.of([], {0: [(0.0, 100.0), (1.0, 200.0)]})
    window = Window(2.0, 10.0, 0, 1, 1)
    (found,) = memory_curves(DrawnTrace(trace, window), DrawnTrace(early, window), 8.0, (0,), {}, {})
    assert len(heights(found.drawing, "real")) == 1
    assert found.measured_peak == show_bytes(200.0)


def test_a_far_capacity_does_not_flatten_the_curves() -> None:
    """A capacity far above the peak does not flatten the curves.

    If the peak is a hundredth of the capacity, the axis ends near the peak.
    """
    trace = Trace.of([], {0: [(0.0, 100.0), (1.0, 200.0)]})
    (found,) = memory_curves(DrawnTrace(trace, Window(0.0, 2.0, 0, 1, 1)), None, 2.0, (0,), {0: 20_000.0}, {})
    low, high = heights(found.drawing, "curve")
    assert low - high > 40
    assert 'class="limit"' not in found.drawing


def test_without_records_there_are_no_curves() -> None:
    """A trace without memory gives nothing to draw."""
    assert memory_curves(DrawnTrace(Trace.of([]), Window(0.0, 1.0, 0, 1, 1)), None, 1.0, (0, 1), {}, {}) == ()

"""Utilisation, bars of prediction beside measurement, loss curves."""

import re
from collections.abc import Callable
from math import nan
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hocket.reporting.charts.bars import loss_curves, paired_bars, utilization
from hocket.reporting.charts.window import choose


def texts(drawing: str) -> list[str]:
    """Every text of a drawing, titles too."""
    return [(e.text or "") for e in ET.fromstring(drawing).iter() if e.text]


def test_shares_are_those_of_the_simulation(predicted: Callable[..., Any]) -> None:
    """Each bar's busy share is the utilisation in the summary.

    A forward takes half the time of a backward.
    """
    plan, trace, summary = predicted()
    window = choose(trace, plan.microbatches)
    told = [t for t in texts(utilization(window.events(trace), window, (0, 1, 2, 3))) if t.startswith("Device")]
    assert len(told) == 4
    for device, line in enumerate(told):
        busy, forward, backward = (float(x) for x in re.findall(r"([\d.]+)%", line)[:3])
        assert busy == pytest.approx(100 * summary.utilization[device], abs=0.1)
        assert 2 * forward == pytest.approx(backward, abs=0.2)


def test_bars_are_as_long_as_their_times() -> None:
    """The length of a bar is proportional to its time.

    A time that was not measured has no bar, and the drawing says so.
    """
    drawing = paired_bars([("slow", 2.0, 1.0), ("other", 1.0, nan)], "Times")
    widths = {
        (e.findtext("{*}title") or ""): float((re.search(r"h([\d.]+)", e.get("d", "")) or [0, 0])[1])
        for e in ET.fromstring(drawing).findall(".//{*}path")
        if e.get("class") in ("predicted", "measured")
    }
    assert len(widths) == 3
    assert widths["slow: predicted 2 s"] == pytest.approx(2 * widths["slow: measured 1 s"], rel=0.01)
    assert "not measured" in texts(drawing)


@pytest.mark.parametrize("log_axis", [False, True])
def test_each_curve_is_drawn_and_named(log_axis: bool) -> None:
    """Each strategy with losses has one line with a name.

    Lower losses are lower on the page, and the names do not overlap.
    """
    drawing = loss_curves({"flush": [4.0, 2.0], "two_bw": [4.0, 2.001, nan], "none": []}, log_axis)
    root = ET.fromstring(drawing)
    lines = [e for e in root.findall(".//{*}path") if e.get("class") == "loss" and e.find("{*}title") is not None]
    assert len(lines) == 2
    for line in lines:
        heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", line.get("d", ""))]
        assert len(heights) == 2
        assert heights[0] < heights[1]
    names = sorted(float(e.get("y", "0")) for e in root.findall(".//{*}text") if e.get("class") == "name")
    assert names[1] - names[0] >= 14


@pytest.mark.parametrize("losses", [[], [nan], [2.0], [2.0, 2.0], [0.0, 0.0]])
@pytest.mark.parametrize("log_axis", [False, True])
def test_odd_curves_are_drawn(losses: list[float], log_axis: bool) -> None:
    """No loss, one loss and the same loss twice break nothing."""
    ET.fromstring(loss_curves({"flush": losses}, log_axis))


def test_long_curves_stay_small() -> None:
    """A hundred thousand steps give a drawing of less than 100 kB."""
    assert len(loss_curves({"flush": [1 / (k + 1) for k in range(100_000)]})) < 100_000

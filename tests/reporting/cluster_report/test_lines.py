"""Line charts of cluster reports show the data and stay small."""

import re
from math import log
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hocket.reporting.cluster_report.lines import BOTTOM, LEFT, RIGHT, TOP, Sample, StepLine, distribution, over_time
from hocket.reporting.cluster_report.style import legend, line_look


def lines(drawing: str) -> list[ET.Element]:
    """Paths that have a text of their own."""
    return [e for e in ET.fromstring(drawing).findall(".//{*}path") if e.find("{*}title") is not None]


def test_a_distribution_rises_where_jobs_are() -> None:
    """A distribution rises by one step at each finished job.

    Three of four jobs are finished: the line has three steps of a quarter, at logarithmic positions, and ends below
    the top.
    """
    sample = Sample("p", line_look(0), np.array([1.0, 10.0, 100.0]), 4)
    (line,) = lines(distribution([sample], "CDF", "x"))
    steps = [tuple(map(float, found)) for found in re.findall(r"H([\d.]+)V([\d.]+)", line.get("d", ""))]
    whole = log(110.0 / (1 / 1.1))
    for (x, y), value, part in zip(steps, (1.0, 10.0, 100.0), (0.25, 0.5, 0.75), strict=True):
        assert x == pytest.approx(LEFT + (RIGHT - LEFT) * log(value * 1.1) / whole, abs=0.6)
        assert y == pytest.approx(BOTTOM + part * (TOP - BOTTOM), abs=0.01)
    assert "3 of 4 jobs, half of them up to 10" in (line.findtext("{*}title") or "")


@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_distributions_of_any_size_are_small(count: int) -> None:
    """A distribution's drawing is smaller than 20 kB for any number of jobs.

    Some of the jobs have a waiting time of 0.
    """
    values = np.linspace(0.0, 1e5, count) if count > 1 else np.zeros(count)
    drawing = distribution([Sample("p", line_look(0), values, max(1, count))], "CDF", "x", "time", least=1.0)
    ET.fromstring(drawing)
    assert len(drawing) < 20_000
    assert len(lines(drawing)) == min(count, 1)


def test_courses_are_drawn_to_scale() -> None:
    """Twice as many is twice as high; the mean in the text is by time."""
    course = StepLine("p", line_look(0), np.array([0.0, 10.0, 40.0]), np.array([1.0, 2.0]))
    (line,) = lines(over_time([course], "Jobs", "jobs"))
    heights = [float(y) for y in re.findall(r"(?:V|M[\d.]+ )([\d.]+)", line.get("d", ""))]
    assert BOTTOM - heights[1] == pytest.approx(2 * (BOTTOM - heights[0]), abs=0.02)
    assert line.findtext("{*}title") == "p: 1.75 on average, 2 at most"


def test_nothing_over_time_is_a_drawing() -> None:
    """No courses, and one that is 0 throughout."""
    ET.fromstring(over_time([], "Jobs", "jobs"))
    ET.fromstring(over_time([StepLine("p", line_look(0), np.array([0.0, 1.0]), np.zeros(1))], "Jobs", "jobs"))


def test_policies_look_different() -> None:
    """No two of 64 have the same colour and dash; names in legends are text."""
    looks = [line_look(k) for k in range(64)]
    assert len(set(looks)) == 64
    shown = legend([("<b>&", looks[0])], lines=True)
    assert "<b>" not in shown
    assert "&lt;b&gt;&amp;" in shown

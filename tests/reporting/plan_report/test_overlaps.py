"""Drawing of a backward with and without overlap of its all-reduces.

The drawing shows the simulated times, and its size is bounded.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import predict
from hocket.profiling.analytic import synthetic
from hocket.program.trace.overlap import Overlap
from hocket.program.trace.trace import Trace
from hocket.reporting import PlanResults, report_html
from hocket.reporting.plan_report.overlap_panel import LEFT, RIGHT, drawing
from hocket.reporting.plan_report.overlaps import overlaps
from hocket.simulation.summary import Summary
from tests.reporting.helpers import documents

HEADING = "Backward with and without overlap"


@cache
def made(buckets: int, replicas: int = 2, depth: int = 1) -> tuple[Plan, Trace, Summary]:
    """Stages alike, each of so many layers that are a bucket each."""
    profile = synthetic.chain(
        buckets * depth,
        forward_s=0.001,
        backward_s=0.004,
        weights_bytes=3e6,
        activation_bytes=1e4,
        device_type="cpu-core",
    )
    names = [layer.name for layer in profile.layers]
    stages = []
    for s in range(depth):
        own = names[s * buckets : (s + 1) * buckets]
        devices = tuple(range(s * replicas, (s + 1) * replicas))
        stages.append(PlanStage(tuple(own), devices, buckets=tuple((name,) for name in reversed(own))))
    cluster = Cluster("lab", (Level("server", replicas * depth, 1e9),), device_type=profile.device_type)
    strategy = "data_parallel" if depth == 1 else "flush"
    plan = Plan(strategy, profile.name, 2 * replicas, 1, tuple(stages), cluster)
    return plan, *predict(plan, profile)


def slower(trace: Trace) -> Trace:
    """A run that takes twice as long."""
    return Trace.of([replace(e, start_s=5 + 2 * e.start_s, end_s=5 + 2 * e.end_s) for e in trace.events])


def known(summary: Summary) -> Overlap:
    """Return the overlap of a summary."""
    assert summary.overlap is not None
    return summary.overlap


def widths(svg: str, cls: str) -> float:
    """Units of all boxes of a class together."""
    paths = [e.get("d", "") for e in ET.fromstring(svg).findall(".//{*}path") if e.get("class") == cls]
    return sum(float(w) for d in paths for w in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v", d))


@pytest.mark.parametrize("buckets", [4, 20, 100])
def test_what_is_drawn_is_as_long_as_it_takes(buckets: int) -> None:
    """Pieces, hidden parts and exposed parts have the length of their times.

    This holds if all-reduces have a row each, share rows or share paths. The drawing names the gained time.
    """
    _, _, summary = made(buckets)
    (one,) = known(summary).devices
    found = drawing(one, None, "Device 0")
    scale = (RIGHT - LEFT) / max(one.beside.seconds, one.apart.seconds)
    both = (one.beside, one.apart)
    pieces = widths(found, "b0") + widths(found, "b1")
    assert pieces == pytest.approx(scale * sum(s.backward_s for s in both), rel=0.01)
    assert widths(found, "sum") == pytest.approx(scale * sum(s.sums_s - s.exposed_s for s in both), rel=0.01)
    assert widths(found, "bare") == pytest.approx(scale * sum(s.exposed_s for s in both), rel=0.01)
    assert "gained (" in found


def test_a_run_is_drawn_below_on_the_same_axis() -> None:
    """Twice as slow is twice as long; the table has its begins and ends."""
    _, trace, summary = made(4)
    (one,) = known(summary).devices
    found = overlaps(known(summary), slower(trace))
    assert found is not None
    assert found.measured
    (picture,) = found.pictures
    scale = (RIGHT - LEFT) / (2 * one.beside.seconds)
    together = (2 + 1) * one.beside.exposed_s + one.apart.exposed_s
    assert widths(picture.drawing, "bare") == pytest.approx(scale * together, rel=0.01)
    assert picture.table.columns[-3:] == ("measured begins", "measured ends", "measured exposed")
    assert len(picture.table.rows) == 4


def test_devices_that_look_alike_are_drawn_once() -> None:
    """Three stages alike: one picture that says so, and a row for each."""
    _, _, summary = made(2, depth=3)
    found = overlaps(known(summary), None)
    assert found is not None
    assert [picture.title for picture in found.pictures] == ["Device 0, stage 0 (and like it 2, 4)"]
    assert [row[:2] for row in found.devices.rows] == [("0", "0"), ("2", "1"), ("4", "2")]
    assert found.rest == 0


def test_the_page_has_it_where_gradients_are_summed(predicted: Callable[..., Any]) -> None:
    """The page has the section only if gradients are all-reduced.

    The document is valid, with a drawing and a table.
    """
    plan, trace, summary = made(4)
    page = report_html(PlanResults(plan, trace, summary, slower(trace)))
    text = " ".join(" ".join(documents.check(page).text).split())
    for words in (
        HEADING,
        "as simulated if none begins before the backward has ended",
        "are gained",
        "gradients there",
        "all-reduce of each bucket",
    ):
        assert words in text
    assert HEADING not in report_html(PlanResults(*predicted()))


def test_hundreds_of_buckets_stay_small() -> None:
    """A section of 300 buckets is smaller than 100 kB.

    It says that its table is not complete.
    """
    _, _, summary = made(300)
    found = overlaps(known(summary), None)
    assert found is not None
    (picture,) = found.pictures
    assert len(picture.drawing) < 100_000
    assert len(picture.table.rows) == 128
    assert picture.note.startswith("172 more buckets")

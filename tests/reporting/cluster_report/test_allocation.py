"""Allocation over time: bands of jobs where they are few, of types otherwise."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from hocket.reporting.cluster_report.allocation import MOST_JOBS, allocations
from hocket.reporting.cluster_report.series import edges_of
from hocket.reporting.cluster_report.stacked_areas import Band, bands, height_axis, stacked_bars
from hocket.reporting.cluster_report.style import Look, area_look
from tests.reporting.helpers import clusters

RED, BLUE = Look("#ff0000"), Look("#0000ff")


def shapes(drawing: str) -> list[ET.Element]:
    """The bands of a drawing."""
    return [e for e in ET.fromstring(drawing).findall(".//{*}path") if "band" in e.get("class", "")]


def area(path: str) -> float:
    """Compute the area of an SVG path of M, H, V and z."""
    points, x, y = [], 0.0, 0.0
    for kind, rest in re.findall(r"([MHV])([\d. ]+)", path):
        values = [float(v) for v in rest.split()]
        x, y = (values[0], values[1]) if kind == "M" else (values[0], y) if kind == "H" else (x, values[0])
        points.append((x, y))
    around = zip(points, points[1:] + points[:1], strict=True)
    return abs(sum(a * d - b * c for (a, b), (c, d) in around)) / 2


def test_areas_are_as_large_as_what_was_held() -> None:
    """A band's area is proportional to time and workers, at any position."""
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    first, second = np.array([1.0, 0.0, 1.0]), np.array([1.0, 3.0, 2.0])
    found = shapes(bands([Band("a", RED, first), Band("b", BLUE, second)], edges, 3.0, height_axis(4.0, "y"), "t", 4.0))
    size = {name: sum(area(e.get("d", "")) for e in found if e.findtext("{*}title") == name) for name in "ab"}
    assert size["b"] == pytest.approx(3 * size["a"], rel=0.01)
    assert len([e for e in found if e.findtext("{*}title") == "a"]) == 2


def test_few_jobs_have_bands_in_the_colours_of_their_entities() -> None:
    """Two jobs of two entities, in both drawings of each policy, and a legend."""
    run = clusters.pair()
    found = allocations([("p", run, edges_of(run, 100.0))], {}, 100.0)
    assert found.jobs
    ((name, drawings),) = found.rows
    assert name == "p"
    assert [title for title, _ in drawings] == ["workers held", "value of the workers"]
    for _, drawing in drawings:
        assert {e.get("fill") for e in shapes(drawing)} == {area_look(0).colour, area_look(1).colour}
    assert "red" in found.legend
    assert "blue" in found.legend


def test_jobs_of_nobody_differ_in_colour() -> None:
    """Without entities neighbours have colours of their own, and there is no legend."""
    run = clusters.pair(("", ""))
    found = allocations([("p", run, edges_of(run, 100.0))], {}, 100.0)
    assert len({e.get("fill") for e in shapes(found.rows[0][1][0][1])}) == 2
    assert not found.legend


def test_many_jobs_are_shown_by_type() -> None:
    """One band a type, however many jobs."""
    run = clusters.crowd(MOST_JOBS + 1)
    found = allocations([("p", run, edges_of(run, run.ended_s))], {"fast": RED}, run.ended_s)
    assert not found.jobs
    assert {e.get("fill") for e in shapes(found.rows[0][1][0][1])} == {RED.colour}
    assert "fast" in found.legend


def test_bars_are_as_long_as_their_sizes() -> None:
    """The length of each piece of a stacked bar is proportional to its size.

    Pieces of size 0 are omitted. Long names are not shortened.
    """
    drawing = stacked_bars([("p", [("x", RED, 1.0), ("y", BLUE, 3.0)], "4"), ("q", [("x", RED, 0.0)], "0")], "t")
    widths = [float(re.findall(r"h([\d.]+)", e.get("d", ""))[0]) for e in shapes(drawing)]
    assert len(widths) == 2
    assert widths[1] == pytest.approx(3 * widths[0])
    long = "finish_time_fairness (agnostic, space sharing, as published)"
    assert f'x="4" y="17">{long}<' in stacked_bars([(long, [], "")], "t")

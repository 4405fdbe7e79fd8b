"""Line charts of clusters: distributions and time series, one line per policy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from hocket.reporting.charts.svg import num, svg
from hocket.reporting.cluster_report.axis import Axis, lattice, show_long, span_of, stairs
from hocket.reporting.cluster_report.style import Look
from hocket.scheduler.simulation.metrics import cdf

WIDTH, HEIGHT = 560.0, 262.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 546.0, 22.0, 226.0


@dataclass(frozen=True)
class Sample:
    """Values of jobs under one policy, such as completion times.

    Attributes:
        name, look: name, colour and dash of the policy.
        values: one value for each job that has one.
        of: number of all jobs.
    """

    name: str
    look: Look
    values: np.ndarray
    of: int


@dataclass(frozen=True)
class StepLine:
    """Step function of time: one value for each interval between two edges."""

    name: str
    look: Look
    edges_s: np.ndarray
    values: np.ndarray


def distribution(
    samples: Sequence[Sample], title: str, label: str, unit: str = "", least: float = 0.0, mark: float | None = None
) -> Markup:
    """Draw cumulative distributions over jobs, on a logarithmic axis of values.

    A policy without values is named in the text alternative, without a curve.

    Arguments:
        label: title of the axis of values.
        unit: as in `Axis`.
        least: smaller values are drawn at the left end.
        mark: value marked by a vertical line; None for no line.
    """
    seen = [float(v) for s in samples if len(s.values) for v in (s.values.min(), s.values.max())]
    low, high = span_of([max(v, least) for v in seen] + ([mark] if mark else []), log=True)
    across = Axis(max(low, least), high, LEFT, RIGHT, unit, log=True, title=label)
    up = Axis(0.0, 1.0, BOTTOM, TOP, "%", title="jobs")
    parts = lattice(across, up)
    if mark:
        parts.append(f'<path class="limit" d="M{num(across.at(mark))} {num(TOP)}V{num(BOTTOM)}"/>')
    told = []
    for sample in samples:
        if not len(sample.values):
            told.append(f"{sample.name}: no job")
            continue
        rising, part = cdf(sample.values)
        part = part * (len(rising) / sample.of)
        half = float(np.median(rising))
        about = f"{sample.name}: {len(rising):,} of {sample.of:,} jobs, half of them up to {_shown(half, unit)}"
        told.append(about)
        parts.append(curve(_risers(rising, part, across, up), sample.look, about))
    return svg(WIDTH, HEIGHT, parts, title, "; ".join(told), cls="chart")


def _risers(rising: np.ndarray, part: np.ndarray, across: Axis, up: Axis) -> str:
    """Return the path data of a CDF, with at most one step per pixel column.

    Arguments:
        rising: values in ascending order.
        part: share of jobs up to each value.
    """
    places = np.round([across.at(v) for v in rising.tolist()])
    last = np.flatnonzero(np.append(np.diff(places) > 0, True))
    steps = "".join(f"H{num(float(places[k]))}V{num(up.at(float(part[k])))}" for k in last.tolist())
    return f"M{num(across.start)} {num(up.start)}{steps}" + (f"H{num(across.end)}" if part[-1] >= 1 else "")


def over_time(
    courses: Sequence[StepLine], title: str, y_title: str, unit: str = "", most: float = 0.0, low: float = 0.0
) -> Markup:
    """Draw step functions of time.

    Arguments:
        y_title: title of the vertical axis.
        unit: as in `Axis`.
        most, low: the vertical axis goes from `low` to `most`, or higher if values are higher.
    """
    end_s = max([float(c.edges_s[-1]) for c in courses], default=1.0)
    high = max([most, low + 1e-9, *(float(c.values.max()) for c in courses if len(c.values))])
    across = Axis(0.0, end_s, LEFT, RIGHT, "time", title="time")
    end = high if high <= most * (1 + 1e-9) else low + (high - low) * 1.05
    up = Axis(low, end, BOTTOM, TOP, unit, title=y_title)
    parts, told = lattice(across, up), []
    for course in courses:
        weights = np.diff(course.edges_s)
        mean, peak = float(course.values @ weights / weights.sum()), float(course.values.max())
        about = f"{course.name}: {_shown(mean, unit)} on average, {_shown(peak, unit)} at most"
        told.append(about)
        parts.append(curve(stairs(across.at, up.at, course.edges_s, course.values), course.look, about))
    return svg(WIDTH, HEIGHT, parts, title, "; ".join(told), cls="chart")


def curve(path: str, look: Look, about: str) -> str:
    """Return a line of a chart as an SVG path; `about` is its tooltip."""
    return f'<path class="loss" {look.stroke} d="{path}"><title>{escape(about)}</title></path>'


def _shown(value: float, unit: str) -> str:
    return show_long(value) if unit == "time" else f"{value:.1%}" if unit == "%" else f"{value:.3g}"

"""Report of average JCT against load, as in figure 5.9 of Narayanan's dissertation (Gavel).

JCT is a job's completion time: the seconds from its arrival to its end.

The first chart has a line per policy and a point per rate (figure 5.9a). The second chart has CDFs at one rate (figure
5.9b).
"""

from collections.abc import Iterable, Sequence
from math import isfinite, isinf, nan

import numpy as np
from markupsafe import Markup, escape

from hocket.errors import InputError
from hocket.reporting.charts.svg import num, svg, through
from hocket.reporting.cluster_report.axis import Axis, lattice, show_long, span_of
from hocket.reporting.cluster_report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Sample, curve, distribution
from hocket.reporting.cluster_report.style import Look, legend, line_look
from hocket.reporting.plan_report.facts import Tile
from hocket.reporting.plan_report.page import render
from hocket.scheduler.simulation.sustained_load import course, sustained

LoadRow = tuple[str, float, float]  # policy, jobs an hour, average JCT in seconds (nan if no job finished)
Times = tuple[str, np.ndarray, int]  # policy, JCT in seconds of finished jobs, number of jobs
_ASIDE = 4.0  # distance of the policies' vertical lines at one rate, which would otherwise hide each other
_WIDE = 20.0  # the axis is logarithmic if the ratio of the longest to the shortest time is larger


def load_report_html(
    rows: Sequence[LoadRow], title: str = "JCT against load", times: Sequence[Times] = (), at: str = ""
) -> str:
    """Build a page with the charts and a table.

    Arguments:
        rows: (policy, jobs an hour, average JCT in seconds) of each run. Runs with the same policy and rate differ in
            their seed.
        times: (policy, JCT in seconds of its finished jobs, number of all jobs), for a CDF; empty for no CDF.
        at: description of the rate at which `times` were simulated.

    Returns:
        A self-contained HTML document; the same input gives the same bytes.

    Raises:
        InputError: a rate that is not > 0, a time that is < 0 or infinite, or a CDF of a policy without rows.
    """
    found = _points(rows)
    rates = sorted({rate for line in found.values() for rate in line})
    best = [_best(found, rate) for rate in rates]
    cells = []
    for name, line in found.items():
        values = [_mean(line.get(rate, [])) for rate in rates]
        cells.append(
            (name, [(show_long(v) if isfinite(v) else "–", v == b) for v, b in zip(values, best, strict=True)])
        )
    seeds = max((sum(map(isfinite, seen)) for line in found.values() for seen in line.values()), default=0)
    return render(
        "cluster_load.html",
        title=title,
        rates=[f"{rate:g}" for rate in rates],
        rows=cells,
        tiles=_tiles(found, rates),
        drawing=load_chart(rows) if any(isfinite(jct_s) for _, _, jct_s in rows) else None,
        looks=legend([(name, line_look(k)) for k, name in enumerate(found)], lines=True),
        seeds=seeds,
        gains=_gains(found),
        cdf=_cdf(times, list(found)),
        at=at,
    )


def _gains(found: dict[str, dict[float, list[float]]]) -> list[str]:
    """Describe the load that each policy sustains relative to the first, in sentences.

    Policies are left out if the simulated rates give no answer.

    Arguments:
        found: average JCT of each run, by policy and rate, from `_points`.
    """
    courses = {
        name: course((rate, jct_s) for rate, seen in line.items() for jct_s in seen) for name, line in found.items()
    }
    names = list(courses)
    gained = [(name, sustained(courses[name], courses[names[0]])) for name in names[1:]]
    return [gain.sentence(name, names[0]) for name, gain in gained if gain is not None]


def _cdf(times: Sequence[Times], names: Sequence[str]) -> Markup | None:
    """Draw CDFs of JCT; policies have the same colours as in the load chart."""
    samples = []
    for name, values, of in times:
        if name not in names:
            raise InputError("times: policy", repr(name), "a policy of the rows")
        samples.append(Sample(name, line_look(names.index(name)), values, of))
    return distribution(samples, "CDF of job completion times", "JCT (log)", "time", 1e-6) if samples else None


def load_chart(rows: Iterable[LoadRow]) -> Markup:
    """Draw average JCT by arrival rate, a line per policy through means over seeds.

    A vertical line at a point shows the range over seeds.

    Raises:
        InputError: an impossible rate or time, see `load_report_html`.
    """
    found = _points(rows)
    known = [v for line in found.values() for seen in line.values() for v in seen if isfinite(v)]
    log = bool(known) and min(known) > 0 and max(known) > _WIDE * min(known)
    low, high = span_of(known, log=True) if log else (0.0, max([*known, 1e-6]) * 1.05)
    low_rate, high_rate = span_of(rate for line in found.values() for rate in line)
    pad = 0.04 * (high_rate - low_rate) if high_rate - low_rate > 1e-6 else 0.5 * low_rate
    across = Axis(low_rate - pad, high_rate + pad, LEFT, RIGHT, title="jobs an hour")
    up = Axis(low, high, BOTTOM, TOP, "time", log, "average JCT" + (" (log)" if log else ""))
    parts, told = lattice(across, up), []
    for k, (name, line) in enumerate(found.items()):
        points = [(rate, [v for v in seen if isfinite(v)]) for rate, seen in sorted(line.items())]
        points = [(rate, seen) for rate, seen in points if seen]
        aside = _ASIDE * (k - (len(found) - 1) / 2)
        parts.append(_line(name, points, across, up, line_look(k), aside))
        told.append(f"{name}: " + (", ".join(f"{show_long(_mean(v))} at {r:g}" for r, v in points) or "nothing"))
    return svg(WIDTH, HEIGHT, parts, "Average JCT by jobs an hour", "; ".join(told), cls="chart")


def _line(
    name: str, points: Sequence[tuple[float, list[float]]], across: Axis, up: Axis, look: Look, aside: float
) -> str:
    places = [(across.at(rate), up.at(_mean(seen))) for rate, seen in points]
    parts = []
    if len(places) > 1:
        parts.append(curve(through(places), look, name))
    for (x, y), (rate, seen) in zip(places, points, strict=True):
        about = f"{name}: {show_long(_mean(seen))} at {rate:g} jobs an hour"
        if max(seen) > min(seen):
            about += f", of {len(seen)} runs from {show_long(min(seen))} to {show_long(max(seen))}"
            low, high = num(up.at(min(seen))), num(up.at(max(seen)))
            parts.append(f'<path class="loss" stroke="{look.colour}" d="M{num(x + aside)} {low}V{high}"/>')
        point = f'cx="{num(x)}" cy="{num(y)}" r="3.4" fill="{look.colour}"'
        parts.append(f"<circle {point}><title>{escape(about)}</title></circle>")
    return "".join(parts)


def _points(rows: Iterable[LoadRow]) -> dict[str, dict[float, list[float]]]:
    """Group average JCTs by policy and rate, one for each seed, in row order."""
    found: dict[str, dict[float, list[float]]] = {}
    for k, (name, rate, jct_s) in enumerate(rows):
        if not (isfinite(rate) and rate > 0):
            raise InputError(f"rows.{k}: rate", str(rate), "jobs an hour, > 0")
        if jct_s < 0 or isinf(jct_s):
            raise InputError(f"rows.{k}: average JCT", str(jct_s), "seconds, >= 0, or nan if no job finished")
        found.setdefault(name, {}).setdefault(rate, []).append(jct_s)
    return found


def _mean(values: Sequence[float]) -> float:
    """Compute the mean of the finite values; nan if there are none."""
    known = [v for v in values if isfinite(v)]
    return sum(known) / len(known) if known else nan


def _best(found: dict[str, dict[float, list[float]]], rate: float) -> float:
    """Return the shortest average JCT of all policies at a rate.

    It is nan, which equals no value, if fewer than two policies have a JCT or all JCTs are equal.
    """
    values = [_mean(line.get(rate, [])) for line in found.values()]
    values = [v for v in values if isfinite(v)]
    return min(values) if len(values) > 1 and max(values) > min(values) else nan


def _tiles(found: dict[str, dict[float, list[float]]], rates: Sequence[float]) -> tuple[Tile, ...]:
    span = f"from {rates[0]:g} to {rates[-1]:g} jobs an hour" if len(rates) > 1 else ""
    tiles = [Tile("policies", str(len(found))), Tile("rates", str(len(rates)), span)]
    for rate in reversed(rates):
        values = sorted((_mean(line.get(rate, [])), name) for name, line in found.items())
        values = [(v, name) for v, name in values if isfinite(v)]
        if len(values) > 1 and values[0][0] > 0:
            (least, name), (most, other) = values[0], values[-1]
            tiles.append(
                Tile(f"at {rate:g} jobs an hour", show_long(least), f"{name}; {most / least:.3g} × with {other}")
            )
            break
    return tuple(tiles)

"""Stacked areas over time, and stacked bars of totals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np
from markupsafe import Markup, escape

from hocket.reporting.charts.svg import box, num, svg, text
from hocket.reporting.cluster_report.axis import Axis, lattice
from hocket.reporting.cluster_report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from hocket.reporting.cluster_report.style import Look


@dataclass(frozen=True)
class Band:
    """One area of stacked areas.

    Attributes:
        about: tooltip.
        heights: height of the area in each time bin.
        pale: True for a pale colour, which separates neighbours of the same colour.
    """

    about: str
    look: Look
    heights: np.ndarray
    pale: bool = False


def height_axis(most: float, title: str) -> Axis:
    """Return the vertical axis of stacked areas, from 0 to `most`."""
    return Axis(0.0, max(most, 1e-9), BOTTOM, TOP, title=title)


def bands(items: Sequence[Band], edges_s: np.ndarray, end_s: float, up: Axis, title: str, limit: float) -> Markup:
    """Draw stacked areas over time, the first at the bottom.

    Arguments:
        edges_s: edges of the time bins.
        end_s: end of the time axis.
        up: the vertical axis, see `height_axis`.
        limit: height of the line that shows the capacity; 0 for no line.
    """
    across = Axis(0.0, end_s, LEFT, RIGHT, "time", title="time")
    parts = lattice(across, up)
    base = np.zeros(len(edges_s) - 1)
    for item in items:
        top = base + item.heights
        kind = "band pale" if item.pale else "band"
        for first, last in _stretches(item.heights > 0):
            path = _outline(across, up, edges_s[first : last + 1], base[first:last], top[first:last])
            about = f"<title>{escape(item.about)}</title>"
            parts.append(f'<path class="{kind}" fill="{item.look.colour}" d="{path}">{about}</path>')
        base = top
    if limit:
        parts.append(f'<path class="limit" d="M{num(LEFT)} {num(up.at(limit))}H{num(RIGHT)}"/>')
    return svg(WIDTH, HEIGHT, parts, title, f"{len(items)} bands, one on top of the other", cls="chart")


def _stretches(there: np.ndarray) -> list[tuple[int, int]]:
    """Return the index ranges [first, last) in which a mask is true.

    Arguments:
        there: the mask: True for each time bin in which the area has a height above 0; shape (bins,).
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _outline(across: Axis, up: Axis, edges_s: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """Return the path data around an area: along its top, and back along its bottom.

    Arguments:
        low, high: bottom and top of the area in each bin.
    """
    x = [f"{across.at(e):.1f}" for e in edges_s.tolist()]
    tops, lows = ([f"{up.at(v):.1f}" for v in side.tolist()] for side in (high, low))
    steps = [f"M{x[0]} {lows[0]}V{tops[0]}"]
    steps += [f"H{x[k]}V{tops[k]}" for k in range(1, len(tops)) if tops[k] != tops[k - 1]]
    steps.append(f"H{x[-1]}V{lows[-1]}")
    steps += [f"H{x[k + 1]}V{lows[k]}" for k in range(len(lows) - 2, -1, -1) if lows[k] != lows[k + 1]]
    return "".join(steps) + "z"


def stacked_bars(rows: Sequence[tuple[str, Sequence[tuple[str, Look, float]], str]], title: str) -> Markup:
    """Draw a bar for each row, divided into pieces.

    Arguments:
        rows: name above the bar, its pieces (name, colour, size), and the text at its end.
    """
    left, right, each = 4.0, 468.0, 42.0
    most = max([fsum(size for _, _, size in pieces) for _, pieces, _ in rows], default=0.0) or 1.0
    parts: list[str] = []
    for k, (name, pieces, told) in enumerate(rows):
        x, y = left, 22 + k * each
        parts.append(text(left, y - 5, name, "name"))
        for what, look, size in pieces:
            if size > 0:
                width = size / most * (right - left)
                about = f"<title>{escape(f'{name}: {what}')}</title>"
                parts.append(f'<path class="band" fill="{look.colour}" d="{box(x, y, width, 20)}">{about}</path>')
                x += width
        parts.append(text(x + 6, y + 14, told, "value"))
    return svg(WIDTH, 8 + each * len(rows), parts, title, "; ".join(f"{n}: {t}" for n, _, t in rows), cls="chart")

"""Axes of cluster charts, with round ticks; long times are in minutes and hours."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, log10

import numpy as np

from hocket.reporting.charts.svg import log_ticks, num, show_time, text, ticks

# Ticks of a logarithmic time axis: round numbers of seconds, minutes and hours.
_TIMES_S = (
    *(10.0**k for k in range(-6, 1)),
    *(10.0, 60.0, 600.0, 3600.0),
    *(36e3 * 10.0**k for k in range(9)),
)
_SHORT_S = {m * 10.0**k for k in range(-6, 1) for m in (2, 5)}
_FINER_S = tuple(sorted({*_TIMES_S, *_SHORT_S, 30.0, 120.0, 300.0, 1800.0, 7200.0, 18e3, 72e3, 18e4, 72e4, 18e5}))


def show_long(value_s: float) -> str:
    """Format a duration; from two hours on in hours, such as '38.2 h'."""
    if abs(value_s) < 7200:
        return show_time(value_s)
    hours = value_s / 3600
    return f"{hours:.3g} h" if hours < 1000 else f"{hours:,.0f} h"


def show_tick(value_s: float) -> str:
    """Format a tick of a logarithmic time axis, such as '10 min' for 600 seconds."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if value_s >= size:
            return f"{value_s / size:,.4g} {unit}"
    return show_time(value_s)


_FEWEST = 4


@dataclass(frozen=True)
class Axis:
    """One axis of a drawing.

    Attributes:
        low, high: values at the ends; low < high, and both > 0 on a logarithmic axis.
        start, end: coordinates of the ends.
        unit: format of the tick labels: "time" for seconds, "%" for shares, empty for numbers.
        log: True for a logarithmic axis.
        title: quantity and unit, such as "jobs an hour".
    """

    low: float
    high: float
    start: float
    end: float
    unit: str = ""
    log: bool = False
    title: str = ""

    def at(self, value: float) -> float:
        """Return the coordinate of a value; values beyond an end are clipped to it."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def marks(self, wanted: int) -> list[tuple[float, str]]:
        """Return about `wanted` ticks: round values, each with its label."""
        if not self.log:
            return self._even(wanted)
        show = show_tick if self.unit == "time" else self._show
        for found in self._decades():
            if len(found) >= _FEWEST:
                return [(value, show(value)) for value in found]
        # Equidistant ticks crowd at the right end of a logarithmic axis, so the few round ones are added.
        by_name = {name: value for value, name in self._even(wanted)}
        by_name |= {show(value): value for value in found if value not in by_name.values()}
        return sorted((value, name) for name, value in by_name.items())

    def _even(self, wanted: int) -> list[tuple[float, str]]:
        if self.unit == "time":
            size, unit = next(((s, u) for s, u in ((3600.0, "h"), (60.0, "min")) if self.high > 3 * s), (1.0, "s"))
            found = ticks(self.low / size, self.high / size, wanted)
            return [(t * size, f"{t:,.6g} {unit}" if t else "0") for t in found]
        return [(value, self._show(value)) for value in ticks(self.low, self.high, wanted)]

    def _decades(self) -> tuple[list[float], ...]:
        """Return candidate ticks of a logarithmic axis, first coarse, then fine."""
        if self.unit == "time":
            return tuple([t for t in times if self.low <= t <= self.high] for times in (_TIMES_S, _FINER_S))
        return log_ticks(self.low, self.high), log_ticks(self.low, self.high, fine=True)

    def _show(self, value: float) -> str:
        return f"{value * 100:.4g}%" if self.unit == "%" else f"{value:,.6g}"


def span_of(values: Iterable[float], log: bool = False) -> tuple[float, float]:
    """Compute the lower and the upper end of an axis that shows all values.

    The ends always differ. On a logarithmic axis they lie a little beyond the values.
    """
    known = [v for v in values if isfinite(v) and (v > 0 or not log)]
    low, high = min(known, default=1.0), max(known, default=1.0)
    if log:
        return (low / 1.1, high * 1.1) if high / low > 1.5 else (low / 2, high * 2)
    return low, max(high, low + 1e-9, low + 1e-9 * abs(low))


def lattice(across: Axis, up: Axis, rows: int = 5, columns: int = 6) -> list[str]:
    """Draw the grid of a chart, the labels of ticks, and the titles of the axes.

    Arguments:
        across: the horizontal axis.
        up: the vertical axis.
        rows, columns: wanted numbers of ticks on the vertical and the horizontal axis.
    """
    parts = []
    for value, name in up.marks(rows):
        parts.append(f'<path class="grid" d="M{num(across.start)} {num(up.at(value))}H{num(across.end)}"/>')
        parts.append(text(across.start - 6, up.at(value) + 3.5, name, "tick", "end"))
    last = -1e9
    for value, name in across.marks(columns):
        x, half = across.at(value), 3.1 * len(name)
        parts.append(f'<path class="grid" d="M{num(x)} {num(up.start)}v4"/>')
        if x - half > last + 6:  # labels must not overlap
            parts.append(text(min(x, across.end + 12 - half), up.start + 16, name, "tick", "middle"))
            last = x + half
    parts.append(text((across.start + across.end) / 2, up.start + 31, across.title, "tick", "middle"))
    parts.append(text(4, 11, up.title, "tick"))
    return parts


def stairs(x: Callable[[float], float], y: Callable[[float], float], edges: np.ndarray, values: np.ndarray) -> str:
    """Return the path data of a step function; equal neighbours are merged.

    Arguments:
        x, y: functions from a time and a value to coordinates.
        edges: edges of the intervals; shape (intervals + 1,).
        values: value in each interval; shape (intervals,).
    """
    steps = [f"M{num(x(float(edges[0])))} {num(y(float(values[0])))}"]
    level = num(y(float(values[0])))
    for edge, value in zip(edges[1:-1].tolist(), values[1:].tolist(), strict=True):
        if num(y(value)) != level:
            level = num(y(value))
            steps.append(f"H{num(x(edge))}V{level}")
    return "".join(steps) + f"H{num(x(float(edges[-1])))}"

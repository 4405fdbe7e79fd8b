"""Memory curves: a small drawing for each device, all with the same axes, with its peak and its capacity."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.program.trace.trace import Trace
from hocket.program.trace.usage import held_in
from hocket.reporting.charts.svg import box, byte_ticks, num, show_bytes_short, svg, text
from hocket.reporting.charts.window import Window
from hocket.util.units import show_bytes

NEAR = 0.3  # the capacity line is drawn when the highest peak comes up to this share of it


@dataclass(frozen=True)
class MemoryCurve:
    """Drawing of one device.

    Attributes:
        peak, share: predicted, for the whole run; measured_peak: likewise, empty where it is not known.
        limited: whether the capacity is drawn.
    """

    device: int
    drawing: Markup
    peak: str
    measured_peak: str
    share: str
    capacity: str
    limited: bool


@dataclass(frozen=True)
class DrawnTrace:
    """A trace and the part of it that is drawn."""

    trace: Trace
    window: Window

    def has(self, device: int) -> bool:
        """True if the memory of a device was recorded in that part."""
        series = self.trace.memory.get(device)
        return series is not None and float(series[0][-1]) >= self.window.start_s


@dataclass(frozen=True)
class _MemoryFrame:
    """Common scale of all drawings: units, seconds of the width and bytes of the height."""

    width: float
    height: float
    span_s: float
    top_bytes: float


def memory_curves(
    predicted: DrawnTrace,
    measured: DrawnTrace | None,
    span_s: float,
    devices: tuple[int, ...],
    capacity_bytes: Mapping[int, float],
    peak_bytes: Mapping[int, float],
) -> tuple[MemoryCurve, ...]:
    """Curves of some devices over the window; devices without a record of their memory have none.

    Arguments:
        peak_bytes: predicted for the whole run, by device; the trace's own where a device is missing.
    """
    known = predicted.trace.peak_memory_bytes()
    real = measured.trace.peak_memory_bytes() if measured else {}
    shown = [d for d in devices if d in known]
    if not shown:
        return ()
    peaks = {d: float(peak_bytes.get(d, known[d])) for d in shown}
    highest = max(*peaks.values(), *known.values(), *real.values(), 1.0)
    near = [capacity_bytes[d] for d in shown if d in capacity_bytes and highest >= NEAR * capacity_bytes[d]]
    size = (536.0, 120.0) if len(shown) <= 4 else (262.0, 72.0)
    frame = _MemoryFrame(*size, span_s, max([highest, *near]) * 1.08)
    curves = []
    for device in shown:
        limit = capacity_bytes.get(device)
        drawing = _drawing(predicted, measured, frame, device, limit, peaks[device], real.get(device))
        share, capacity = (f"{peaks[device] / limit:.1%}", show_bytes_short(limit)) if limit else ("", "")
        told = show_bytes(real[device]) if device in real else ""
        limited = limit is not None and limit <= frame.top_bytes
        curves.append(MemoryCurve(device, drawing, show_bytes(peaks[device]), told, share, capacity, limited))
    return tuple(curves)


def _drawing(
    predicted: DrawnTrace,
    measured: DrawnTrace | None,
    frame: _MemoryFrame,
    device: int,
    limit: float | None,
    peak: float,
    measured_peak: float | None,
) -> Markup:
    width, height, top = frame.width, frame.height, frame.top_bytes
    left, bottom = 52.0, height - 4
    room = width - left - 4

    def y(amount: float) -> float:
        return bottom - amount / top * (bottom - 4)

    parts = []
    for tick in byte_ticks(top, 4 if height > 100 else 2):
        parts.append(f'<path class="grid" d="M{num(left)} {num(y(tick))}h{num(room)}"/>')
        if y(tick) > 6:
            parts.append(text(left - 5, y(tick) + 3.5, show_bytes_short(tick), "tick", "end"))
    columns = int(room)

    def curve(record: DrawnTrace) -> tuple[str, np.ndarray, float]:
        high, last = _columns(*record.trace.memory[device], record.window, frame.span_s, columns)
        steps = [f"M{num(left)} {num(y(float(high[0])))}"]
        for k in np.flatnonzero(np.diff(high)).tolist():
            steps.append(f"H{num(left + (k + 1) * room / columns)}V{num(y(float(high[k + 1])))}")
        steps.append(f"H{num(left + room * min(1.0, record.window.seconds / frame.span_s))}")
        return "".join(steps), high, last

    line, high, last = curve(predicted)
    parts.append(f'<path class="area" d="{line}V{num(bottom)}H{num(left)}z"/><path class="curve" d="{line}"/>')
    at = int(np.argmax(high))
    parts.append(
        f'<circle class="dot" cx="{num(left + (at + 0.5) * room / columns)}" cy="{num(y(float(high[at])))}" r="2.6"/>'
    )
    where = f"predicted: highest in the window {show_bytes(float(high.max()))}, of the run {show_bytes(peak)}, at its end {show_bytes(last)}"
    if measured is not None and measured.has(device):
        line, high, _ = curve(measured)
        parts.append(f'<path class="real" d="{line}"/>')
        where += f"; measured: highest in the window {show_bytes(float(high.max()))}"
    elif measured_peak is not None:  # of a run that kept no series, the most that it ever held
        parts.append(f'<path class="real" d="M{num(left)} {num(y(measured_peak))}h{num(room)}"/>')
    if measured_peak is not None:
        where += f"; measured: of the run {show_bytes(measured_peak)}"
    if limit is not None and limit <= top:
        parts.append(f'<path class="limit" d="M{num(left)} {num(y(limit))}h{num(room)}"/>')
        parts.append(text(left + room, y(limit) + 10, "capacity", "bad", "end"))
    cover = f'<path class="none" d="{box(left, 0, room, height)}"/>'
    return svg(width, height, [*parts, cover], f"Memory of device {device}: {where}", cls="memory")


def _columns(
    seconds: np.ndarray, held: np.ndarray, window: Window, span_s: float, columns: int
) -> tuple[np.ndarray, float]:
    """The most that was held in each column of pixels that the window fills, and what was held at its end."""
    filled = max(1, min(columns, round(columns * window.seconds / span_s)))
    edges = window.start_s + np.arange(filled + 1) * (span_s / columns)
    last = held[max(int(np.searchsorted(seconds, edges[-1], side="right")) - 1, 0)]
    return held_in(seconds, held, edges), float(last)

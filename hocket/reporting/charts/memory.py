"""Memory curves: a small drawing per device, all on the same axes.

Each drawing shows the device's peak and capacity.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.program.trace.usage import held_in
from hocket.reporting.charts.svg import box, byte_ticks, num, show_bytes_short, svg, text
from hocket.reporting.charts.window import DrawnTrace, Window
from hocket.util.units import show_bytes

NEAR = 0.3  # draw the capacity line if the highest peak reaches this share of the capacity


@dataclass(frozen=True)
class MemoryCurve:
    """Memory curve of one device, with texts.

    Attributes:
        peak: predicted peak memory of the whole run, as text.
        measured_peak: measured peak of the whole run, as text; empty if unknown.
        share: predicted peak as a share of the capacity, as text; empty if the capacity is unknown.
        capacity: memory capacity as text; empty if unknown.
        limited: True if the capacity is drawn.
    """

    device: int
    drawing: Markup
    peak: str
    measured_peak: str
    share: str
    capacity: str
    limited: bool


@dataclass(frozen=True)
class _DevicePeak:
    """Peak memory of one device over the whole run, in bytes.

    Attributes:
        measured_bytes: None if unknown.
        capacity_bytes: memory capacity of the device; None if unknown.
    """

    device: int
    predicted_bytes: float
    measured_bytes: float | None
    capacity_bytes: float | None


@dataclass(frozen=True)
class _MemoryFrame:
    """Common size and scale of all memory drawings.

    Attributes:
        width, height: size in drawing units.
        span_s: seconds of the whole width.
        top_bytes: bytes of the whole height.
    """

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
    """Draw memory over time, one small drawing per device.

    Devices without a memory record are left out.

    Arguments:
        predicted: simulated trace and the window to draw.
        measured: measured trace and its window; None without a run.
        span_s: seconds of the time axis.
        devices: devices to draw, in order.
        capacity_bytes: memory capacity by device; may lack devices.
        peak_bytes: predicted peak of the whole run by device; for missing devices the trace's peak is used.
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
        peak = _DevicePeak(device, peaks[device], real.get(device), limit)
        drawing = _drawing(predicted, measured, frame, peak)
        share, capacity = (f"{peaks[device] / limit:.1%}", show_bytes_short(limit)) if limit else ("", "")
        told = show_bytes(real[device]) if device in real else ""
        limited = limit is not None and limit <= frame.top_bytes
        curves.append(MemoryCurve(device, drawing, show_bytes(peaks[device]), told, share, capacity, limited))
    return tuple(curves)


def _drawing(predicted: DrawnTrace, measured: DrawnTrace | None, frame: _MemoryFrame, peak: _DevicePeak) -> Markup:
    device, limit, measured_peak = peak.device, peak.capacity_bytes, peak.measured_bytes
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
    where = f"predicted: highest in the window {show_bytes(float(high.max()))}, of the run {show_bytes(peak.predicted_bytes)}, at its end {show_bytes(last)}"
    if measured is not None and measured.has(device):
        line, high, _ = curve(measured)
        parts.append(f'<path class="real" d="{line}"/>')
        where += f"; measured: highest in the window {show_bytes(float(high.max()))}"
    elif measured_peak is not None:  # the run recorded peaks only
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
    """Compute the peak bytes by pixel column, and the bytes at the window's end.

    Arguments:
        seconds, held: times at which the memory changes, ascending, and the bytes held from each on.
        span_s: seconds of the time axis.
        columns: number of pixel columns of the axis; columns behind the window's end are left out.
    """
    filled = max(1, min(columns, round(columns * window.seconds / span_s)))
    edges = window.start_s + np.arange(filled + 1) * (span_s / columns)
    last = held[max(int(np.searchsorted(seconds, edges[-1], side="right")) - 1, 0)]
    return held_in(seconds, held, edges), float(last)

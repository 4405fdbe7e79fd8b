"""Usage panel: memory and compute of every device over one iteration.

It compares a plan with one wave (launched all at once) with the same plan in several waves. A row is a device, and a
column is a run, predicted or measured. All columns have the same scales of seconds and bytes. A cell has the memory
above, and the share of the device that computes below. At most MOST devices are drawn.

Source: Wavelet (Wang et al. 2021), figures 1, 2, 5, 6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.planning.waves.compare import PlanTimeline
from hocket.program.trace.trace import Trace
from hocket.program.trace.usage import Usage, usage
from hocket.reporting.charts.svg import box, byte_ticks, num, show_bytes_short, show_tick, show_time, svg, text, ticks
from hocket.reporting.plan_report.facts import Table
from hocket.util.units import show_bytes, show_number

MOST = 8
NEAR = 0.5  # draw the capacity if the highest peak reaches this share of it
WIDTH, _LEFT, _GAP = 1120.0, 104.0, 26.0
_AT_ALL = "compute is the time in which a device computes at all"
_LOOKED_AT = "; memory is that of an earlier iteration, in which operations were observed"
_MEMORY, _COMPUTE, _BETWEEN, _ROW = 56.0, 30.0, 5.0, 112.0


@dataclass(frozen=True)
class UsagePanel:
    """Section of a report on memory and compute of the devices over one iteration.

    Attributes:
        titles: titles of the columns.
        figures: table of metrics with a row per run.
        rest: number of devices without a drawing.
        measured: True if a measured run is drawn.
        flat: True if of the measured run's memory only the peak is known, which is drawn as a flat line.
        limited: True if the capacity is drawn.
    """

    titles: tuple[str, ...]
    drawing: Markup
    figures: Table
    notes: tuple[str, ...]
    rest: int
    measured: bool
    flat: bool
    limited: bool


def usage_panel(
    courses: Sequence[PlanTimeline],
    measured: Trace | None,
    samples: int,
    capacity_bytes: Mapping[int, float],
    excerpt: str = "",
) -> UsagePanel | None:
    """Build the section on device use; None without a predicted run.

    Arguments:
        courses: predicted runs, one for each column.
        measured: trace of a run of the plan; None without one.
        samples: samples of one iteration of the measured run.
        capacity_bytes: memory capacity by device.
        excerpt: description of the excerpt that `courses` cover; empty for the whole plan.
    """
    if not courses:
        return None
    columns = list(courses)
    peaks: Mapping[int, float] = {}
    if measured is not None and len(measured):
        real = usage(measured)
        columns.append(PlanTimeline("measured", real, samples, _AT_ALL + _LOOKED_AT * bool(real.held_bytes)))
        peaks = measured.peak_memory_bytes()
    devices = sorted({device for course in courses for device in course.usage.computes})
    shown = devices[:MOST]
    seen = [_peak(course.usage, device, peaks) for course in columns for device in shown]
    highest = max([size for size in seen if size is not None], default=1.0)
    limit = max((capacity_bytes.get(device, 0.0) for device in shown), default=0.0)
    top = max(highest, limit if highest >= NEAR * limit else 0.0) * 1.05 or 1.0
    span_s = max(course.usage.period_s for course in columns) or 1.0
    frame = _UsageFrame(
        (WIDTH - _LEFT - _GAP * (len(columns) - 1)) / len(columns), span_s, top, dict(capacity_bytes), peaks
    )
    height = 16 + _ROW * len(shown) + 16
    parts = []
    for k, course in enumerate(columns):
        x = _LEFT + k * (frame.width + _GAP)
        parts.append(text(x, 11, course.title, "name"))
        for row, device in enumerate(shown):
            parts += frame.cell(course.usage, device, x, 18 + row * _ROW, first=k == 0)
        for tick in ticks(0.0, span_s, max(2, int(frame.width / 90))):
            at = x + tick / span_s * frame.width
            parts.append(text(at, height - 3, show_tick(tick, span_s), "tick", "middle" if tick else ""))
    about = "; ".join(f"{course.title}: one iteration takes {show_time(course.usage.period_s)}" for course in columns)
    return UsagePanel(
        tuple(course.title for course in columns),
        svg(WIDTH, height, parts, "Memory and compute over one iteration, by device", about, cls="usage"),
        _figures(columns, shown, peaks),
        (
            *([f"The prediction here is of an excerpt, {excerpt}, as a separate batch"] if excerpt else []),
            *(f"{course.title}: {course.note}" for course in columns if course.note),
        ),
        len(devices) - len(shown),
        len(columns) > len(courses),
        len(columns) > len(courses) and not columns[-1].usage.held_bytes and bool(peaks),
        0 < limit <= top,
    )


def _peak(one: Usage, device: int, peaks: Mapping[int, float]) -> float | None:
    return one.peak_bytes(device) if device in one.held_bytes else peaks.get(device)


@dataclass(frozen=True)
class _UsageFrame:
    """Common scales of all cells.

    Attributes:
        width: width of a cell, in drawing units.
        span_s, top_bytes: seconds of the width, and bytes of the height of the memory drawing.
        capacity_bytes, peaks: memory capacity, and measured peak bytes, by device.
    """

    width: float
    span_s: float
    top_bytes: float
    capacity_bytes: Mapping[int, float]
    peaks: Mapping[int, float]

    def cell(self, one: Usage, device: int, x: float, y: float, first: bool) -> list[str]:
        """Draw the cell of one device in one run, at (x, y).

        Arguments:
            first: True for the first column, which has the labels.
        """
        compute = y + _MEMORY + _BETWEEN
        length = one.period_s / self.span_s * self.width
        parts = [f'<path class="grid" d="M{num(x)} {num(compute + _COMPUTE)}h{num(self.width)}"/>']
        if first:
            parts.append(text(0, y + _MEMORY / 2 + 4, f"device {device}", "name"))
            parts.append(text(x - 6, compute + _COMPUTE, "compute", "tick", "end"))
        for tick in byte_ticks(self.top_bytes, 2):
            at = y + _MEMORY * (1 - tick / self.top_bytes)
            parts.append(f'<path class="grid" d="M{num(x)} {num(at)}h{num(self.width)}"/>')
            if first:
                parts.append(text(x - 6, at + 3, show_bytes_short(tick) if tick else "0", "tick", "end"))
        told = f"device {device}: computes {one.compute_share(device):.1%} of the iteration"
        if device in one.held_bytes:
            told += f", holds at most {show_bytes(one.peak_bytes(device))}"
            line = _steps(one.held_bytes[device] / self.top_bytes, x, y + _MEMORY, length, _MEMORY)
            floor = f"V{num(y + _MEMORY)}H{num(x)}z"
            parts.append(f'<path class="area" d="{line}{floor}"/><path class="curve" d="{line}"/>')
        elif device in self.peaks:
            told += f", held at most {show_bytes(self.peaks[device])}"
            at = y + _MEMORY * (1 - self.peaks[device] / self.top_bytes)
            parts.append(f'<path class="real" d="M{num(x)} {num(at)}h{num(length)}"/>')
        limit = self.capacity_bytes.get(device, 0.0)
        if 0 < limit <= self.top_bytes:
            parts.append(
                f'<path class="limit" d="M{num(x)} {num(y + _MEMORY * (1 - limit / self.top_bytes))}h{num(self.width)}"/>'
            )
        line = _steps(one.computes[device], x, compute + _COMPUTE, length, _COMPUTE) if device in one.computes else ""
        if line:
            parts.append(f'<path class="busy" d="{line}V{num(compute + _COMPUTE)}H{num(x)}z"/>')
        parts.append(
            f'<path class="none" d="{box(x, y, self.width, compute + _COMPUTE - y)}"><title>{told}</title></path>'
        )
        return parts


def _steps(shares: np.ndarray, x: float, bottom: float, length: float, height: float) -> str:
    """Return the path data of a step function; equal neighbours are merged.

    Arguments:
        shares: values from 0 to 1, evenly spread over the length.
        x, bottom, length, height: place and size of the drawing.
    """
    rounded = np.round(np.clip(shares, 0.0, 1.0), 3)
    parts = [f"M{num(x)} {num(bottom - float(rounded[0]) * height)}"]
    for k in np.flatnonzero(np.diff(rounded)).tolist():
        parts.append(f"H{num(x + (k + 1) * length / len(rounded))}V{num(bottom - float(rounded[k + 1]) * height)}")
    return "".join([*parts, f"H{num(x + length)}"])


def _figures(columns: Sequence[PlanTimeline], shown: Sequence[int], peaks: Mapping[int, float]) -> Table:
    """Build a table with a row per run.

    Columns are samples, time, throughput, share of time that devices compute, peak memory, and valley. The valley is
    the share of time in which a device holds less than half of its variable memory.
    """
    rows = []
    for course in columns:
        one = course.usage
        shares = [one.compute_share(d) for d in shown if d in one.computes]
        held = [size for d in shown if (size := _peak(one, d, peaks)) is not None]
        most = max((course.most_bytes.get(d, 0.0) for d in shown), default=0.0)
        valleys = [one.valley_share(d) for d in shown if d in one.held_bytes]
        rows.append(
            (
                course.title,
                f"{course.samples:,}",
                show_time(one.period_s),
                show_number(course.samples / one.period_s) if one.period_s > 0 else "–",
                _range([f"{share:.0%}" for share in (min(shares), max(shares))]) if shares else "–",
                _told(max(held), most) if held else "–",
                _range([f"{share:.0%}" for share in (min(valleys), max(valleys))]) if valleys else "–",
            )
        )
    names = ("run", "samples", "iteration", "samples/s", "devices compute", "peak memory", "memory in its valley")
    return Table(names, tuple(rows), right=(1, 2, 3, 4, 5, 6))


def _told(held: float, most: float) -> str:
    """Format the peak memory of a run.

    Arguments:
        held: peak bytes in the drawn timing.
        most: peak bytes in any timing; shown as well if it is larger. 0 if unknown.
    """
    return f"{show_bytes(most)} ({show_bytes(held)} drawn)" if most > held else show_bytes(held)


def _range(pair: Sequence[str]) -> str:
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"

"""Timeline of a trace: a row per device, or per wave of a device.

A row has a thick compute lane, and thin network and host lanes below it. The size of the drawing is bounded:

- At most MOST_ROWS devices are drawn, the first replicas of every stage first.
- Up to MOST_TOLD instructions have their own path and tooltip. With more, instructions that differ only in their index
  share a path, and the page's script computes their tooltips.
- With more than MOST_BLOCKS instructions, short ones are merged into blocks. A block shows the share of its time by
  kind of instruction.

Notes say what was merged or left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hocket.planning.plan import Plan
from hocket.program.instruction import COMPUTE, computes
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts.merge_events import smallest_s
from hocket.reporting.charts.palette import MEANINGS, family_of
from hocket.reporting.charts.svg import num, show_tick, show_time, stretched_svg, text, ticks
from hocket.reporting.charts.timeline_rows import WIDTH, ZOOMS, LevelOfDetail, Painter, TimelineRow
from hocket.reporting.charts.window import DrawnTrace

MOST_ROWS = 128
MOST_TOLD = 5_000
MOST_BLOCKS = {"compute": 40_000, "network": 40_000}
MOST_LABELS = 7_000


@dataclass(frozen=True)
class Timeline:
    """One timeline, as values of the page's template.

    Attributes:
        axis: drawing of the time axis.
        legend: CSS classes with their meanings.
        notes: sentences on merged instructions and on devices that are not drawn.
        dense: True if more than 16 devices are drawn.
        critical: True if a part of the critical path is outlined.
        unit_s: seconds of one drawing unit.
    """

    title: str
    axis: Markup
    rows: tuple[TimelineRow, ...]
    legend: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    dense: bool
    critical: bool
    unit_s: float


def rows_of(plan: Plan, trace: Trace) -> tuple[int, ...]:
    """Choose the devices to draw; return them in ascending order.

    The first replicas of all stages are chosen first, then the second replicas, and so on.
    """
    present = {device for device, _ in trace.lanes}
    ranked: dict[int, None] = {}
    for replica in range(max(len(stage.devices) for stage in plan.stages)):
        for stage in plan.stages:
            if replica < len(stage.devices) and stage.devices[replica] in present:
                ranked.setdefault(stage.devices[replica])
    for device in sorted(present):
        ranked.setdefault(device)
    return tuple(sorted(list(ranked)[:MOST_ROWS]))


def _detail_of(lanes: Mapping[tuple[int, str], Sequence[Event]], rows: int, span_s: float) -> LevelOfDetail:
    """Choose the level of detail at which the drawing stays small.

    Arguments:
        lanes: events in time order, by (device, lane).
        rows: number of drawn devices.
        span_s: seconds of the time axis.
    """
    smallest = {
        group: smallest_s(
            [v for (_, lane), v in lanes.items() if computes(lane) == (group == "compute")],
            most,
            span_s / WIDTH / ZOOMS[-1],
            span_s,
        )
        for group, most in MOST_BLOCKS.items()
    }
    height = 24.0 if rows <= 8 else 18.0 if rows <= 24 else 12.0
    told = sum(map(len, lanes.values())) <= MOST_TOLD
    count = sum(len(v) for (_, lane), v in lanes.items() if computes(lane))
    deepest = ZOOMS[-1] if count <= MOST_LABELS else ZOOMS[2] if count <= 3 * MOST_LABELS else 0
    return LevelOfDetail(height, smallest, told, deepest)


def timeline(
    plan: Plan,
    record: DrawnTrace,
    events: Sequence[Event],
    span_s: float,
    title: str,
    critical: Callable[[Event], bool] | None = None,
) -> Timeline:
    """Draw the window of a trace.

    Arguments:
        record: the trace and its window.
        events: events of the window.
        span_s: seconds of the time axis; it may be longer than the window.
        critical: function that returns True for an event on the critical path; None to outline nothing.
    """
    drawn = rows_of(plan, record.trace)
    wanted = set(drawn)
    lanes: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        if event.device in wanted:
            lanes.setdefault((event.device, event.lane), []).append(event)
    for lane in lanes.values():
        lane.sort(key=lambda e: (e.start_s, e.end_s))
    detail = _detail_of(lanes, len(drawn), span_s)
    painter = Painter(plan, record.window, span_s, detail, critical)
    rows = []
    for device in drawn:
        own = {name: events for (d, name), events in sorted(lanes.items()) if d == device}
        others = {name: events for name, events in own.items() if not computes(name)}
        waves = sorted({COMPUTE, *(name for name in own if computes(name))})
        for name in waves:
            wave = name if len(waves) > 1 else ""
            rows.append(painter.row(device, own.get(name, []), others if name == waves[-1] else {}, wave))
    notes = [
        f"instructions of the {'compute' if group == 'compute' else 'thin'} lanes shorter than {show_time(limit)} are drawn together with their neighbours"
        for group, limit in detail.smallest_s.items()
        if limit
    ]
    left = len({device for device, _ in record.trace.lanes}) - len(drawn)
    if left > 0:
        notes.append(f"{left} more devices are not drawn; their replicas are")
    legend = tuple(
        (next(name for name in sorted(painter.used) if family_of(name) == family), meaning)
        for family, meaning in MEANINGS.items()
        if any(family_of(name) == family for name in painter.used)
    )
    return Timeline(
        title, axis(span_s), tuple(rows), legend, tuple(notes), len(drawn) > 16, painter.outlined, span_s / WIDTH
    )


def axis(span_s: float) -> Markup:
    """Draw the time axis, from the window's start, with finer ticks for each zoom."""
    parts, seen = [], set()
    for zoom in ZOOMS:
        for tick in ticks(0.0, span_s, 10 * zoom):
            key = round(tick / span_s * 1e6)
            if key in seen:
                continue
            seen.add(key)
            x = tick / span_s * WIDTH
            anchor = "start" if x < 20 else "end" if x > WIDTH - 24 else "middle"
            cls = f"t{zoom}"
            parts.append(
                f'<path class="{cls}" d="M{num(x)} 16v4"/>' + text(x, 12, show_tick(tick, span_s), f"{cls} {anchor[0]}")
            )
    return stretched_svg(WIDTH, 20, parts, "Time axis", "axis")

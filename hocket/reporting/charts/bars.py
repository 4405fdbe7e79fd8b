"""Bar charts and loss curves.

Bars show the use of devices' time, or predictions beside measurements.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log10

import numpy as np
from markupsafe import Markup

from hocket.program.instruction import computes
from hocket.program.trace.busy_time import once
from hocket.program.trace.trace import Event
from hocket.reporting.charts.palette import CURVES, MEANINGS, class_of, family_of
from hocket.reporting.charts.svg import box, log_ticks, num, show_time, svg, text, through, ticks
from hocket.reporting.charts.window import Window

WIDTH = 1120.0


def utilization(events: Iterable[Event], window: Window, devices: Sequence[int]) -> Markup:
    """Draw a bar for each device: shares of the window by kind of instruction.

    If waves compute concurrently on a device, their common time counts for the instruction that began first.

    Arguments:
        events: events of the trace. Events outside of compute lanes are ignored.
        devices: devices to draw, in order.
    """
    shares: dict[int, dict[str, float]] = {device: {} for device in devices}
    own_events = [event for event in events if computes(event.lane)]
    columns = [[e.device for e in own_events], [e.start_s for e in own_events], [e.end_s for e in own_events]]
    begun_s, some = once(*(np.array(column) for column in columns))
    for event, start_s, counts in zip(own_events, begun_s.tolist(), some.tolist(), strict=True):
        if counts and event.device in shares:
            family = family_of(class_of(event.kind, 0, " again " in event.name))
            seconds = max(0.0, min(event.end_s, window.end_s) - max(start_s, window.start_s))
            own = shares[event.device]
            own[family] = own.get(family, 0.0) + seconds / window.seconds
    left, top, bottom = 40.0, 16.0, 150.0
    room = (WIDTH - left) / max(1, len(devices))
    bar = min(72.0, room * 0.8)
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = bottom - share * (bottom - top)
        parts.append(f'<path class="grid" d="M{num(left)} {num(y)}h{num(WIDTH - left)}"/>')
        parts.append(text(left - 6, y + 3.5, f"{share:.0%}", "tick", "end"))
    every = max(1, -(-20 // int(max(1.0, room))))
    for k, device in enumerate(devices):
        x = left + (k + 0.5) * room - bar / 2
        y, told = bottom, []
        stack = []
        for family in MEANINGS:
            share = shares[device].get(family, 0.0)
            if share > 0:
                height = share * (bottom - top)
                y -= height
                name = f"{family}0" if family in ("f", "b") else family
                stack.append(f'<path class="{name}" d="{box(x, y, bar, height)}"/>')
                told.append(f"{MEANINGS[family]} {share:.1%}")
        busy = sum(shares[device].values())
        about = f"Device {device}: busy {busy:.1%}. {', '.join(told)}"
        back = f'<path class="idle" d="{box(x, top, bar, bottom - top)}"/>'
        parts.append(f"<g>{_title(about)}{back}{''.join(stack)}</g>")
        if k % every == 0:
            parts.append(text(x + bar / 2, bottom + 14, str(device), "tick", "middle"))
        if room >= 34:
            parts.append(text(x + bar / 2, min(y, bottom) - 4, f"{busy:.0%}", "value", "middle"))
    desc = "Shares of the window by device; the rest of each bar is idle."
    return svg(WIDTH, bottom + 20, parts, "Use of compute lanes' time", desc)


def legend_of(drawings: Iterable[Markup]) -> tuple[tuple[str, str], ...]:
    """Return (CSS class, meaning) of each kind of instruction in drawings.

    Arguments:
        drawings: results of `utilization`.
    """
    drawn = "".join(drawings)
    classes = {family: f"{family}0" if family in ("f", "b") else family for family in MEANINGS}
    return tuple((classes[family], MEANINGS[family]) for family in MEANINGS if f'class="{classes[family]}"' in drawn)


def paired_bars(rows: Sequence[tuple[str, float, float | None]], title: str) -> Markup:
    """Draw two bars for each row (name, predicted seconds, measured seconds).

    A value that is None or not finite is drawn as "not measured" or "not predicted".
    """
    left, room, each = 250.0, WIDTH - 250.0 - 120.0, 46.0
    longest = max([v for _, *pair in rows for v in pair if v is not None and isfinite(v)], default=1.0) or 1.0
    height = each * len(rows) + 22
    parts = []
    for tick in ticks(0.0, longest, 8):
        x = left + tick / longest * room
        parts.append(f'<path class="grid" d="M{num(x)} 0v{num(height - 18)}"/>')
        parts.append(text(x, height - 4, show_time(tick) if tick else "0", "tick", "middle"))
    for k, (name, predicted, measured) in enumerate(rows):
        y = k * each + 5
        parts.append(text(left - 10, y + 22, _short(name, 36), "name", "end"))
        for offset, cls, value, what in (
            (0, "predicted", predicted, "predicted"),
            (18, "measured", measured, "measured"),
        ):
            if value is None or not isfinite(value):
                parts.append(text(left + 6, y + offset + 12, f"not {what}", "tick"))
                continue
            width = value / longest * room
            about = _title(f"{name}: {what} {show_time(value)}")
            parts.append(f'<path class="{cls}" d="{box(left, y + offset, width, 16)}">{about}</path>')
            parts.append(text(left + width + 6, y + offset + 12, show_time(value), "value"))
    return svg(WIDTH, height, parts, title, "; ".join(f"{n}: predicted {show_time(p)}" for n, p, _ in rows))


def loss_curves(curves: Mapping[str, Sequence[float]], log_axis: bool = False, x_label: str = "step") -> Markup:
    """Draw the loss curve of each strategy.

    Each curve has its own colour and dash, and its name at the right end.

    Arguments:
        curves: loss of each step, by name of the strategy; values that are not finite are left out.
        log_axis: True for a logarithmic loss axis.
        x_label: title of the horizontal axis.
    """
    points = {
        name: [(k + 1, float(v)) for k, v in enumerate(values) if isfinite(v) and (v > 0 or not log_axis)]
        for name, values in curves.items()
    }
    points = {name: line for name, line in points.items() if line}
    values = [v for line in points.values() for _, v in line]
    low, high = min(values, default=1.0), max(values, default=2.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = (
            (low / 1.1, high * 1.1) if log_axis else (low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9)
        )
    pad = (high - low) * 0.06
    low, high = (low / 1.05, high * 1.05) if log_axis else (low - pad, high + pad)
    steps = max((line[-1][0] for line in points.values()), default=2)
    left, top, bottom, room = 56.0, 10.0, 330.0, WIDTH - 56.0 - 190.0

    def y(value: float) -> float:
        share = log10(value / low) / log10(high / low) if log_axis else (value - low) / (high - low)
        return bottom - share * (bottom - top)

    def x(step: float) -> float:
        return left + (step - 1) / max(1, steps - 1) * room

    parts = []
    for tick in log_ticks(low, high) if log_axis else ticks(low, high, 7):
        parts.append(f'<path class="grid" d="M{num(left)} {num(y(tick))}h{num(room)}"/>')
        parts.append(text(left - 6, y(tick) + 3.5, f"{tick:.4g}", "tick", "end"))
    for tick in [1.0, *(t for t in ticks(1.0, float(steps), 10) if t > 1 and t == int(t))]:
        parts.append(text(x(tick), bottom + 16, f"{tick:g}", "tick", "middle"))
    parts.append(text(left + room / 2, bottom + 32, x_label, "tick", "middle"))
    parts.append(text(4, top - 1 + 8, "loss" + (" (log)" if log_axis else ""), "tick"))
    ends = _apart({name: y(line[-1][1]) for name, line in points.items()}, 15.0, bottom)
    for k, (name, line) in enumerate(points.items()):
        colour, dash = CURVES[k % len(CURVES)]
        style = f'stroke="{colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        path = through((x(step), y(value)) for step, value in _thinned(line))
        told = f"{name}: {line[0][1]:.4g} at the first step, {line[-1][1]:.4g} at step {line[-1][0]}"
        parts.append(f'<path class="loss" {style} d="{path}">{_title(told)}</path>')
        end_x, label_y = x(line[-1][0]), ends[name]
        parts.append(
            f'<path class="lead" d="M{num(end_x + 2)} {num(y(line[-1][1]))}L{num(left + room + 14)} {num(label_y)}"/>'
        )
        parts.append(f'<path class="loss" {style} d="M{num(left + room + 16)} {num(label_y)}h26"/>')
        parts.append(text(left + room + 48, label_y + 4, _short(f"{name} {line[-1][1]:.3g}", 24), "name"))
    told = "; ".join(f"{name} ends at {line[-1][1]:.4g}" for name, line in points.items())
    return svg(WIDTH, bottom + 40, parts, "Loss by step", told)


def _thinned(line: Sequence[tuple[int, float]], most: int = 1000) -> Sequence[tuple[int, float]]:
    """Keep about `most` evenly spaced points, and always the last."""
    every = -(-len(line) // most)
    return [*line[:-1:every], line[-1]]


def _apart(wanted: Mapping[str, float], gap: float, bottom: float) -> dict[str, float]:
    """Place labels near the wanted y coordinates, without overlaps.

    Arguments:
        wanted: y coordinate by label.
        gap: least distance of two labels.
        bottom: largest y coordinate.
    """
    names = sorted(wanted, key=lambda n: (wanted[n], n))
    places: list[float] = []
    for name in names:
        places.append(max(wanted[name], places[-1] + gap) if places else max(wanted[name], 10.0))
    limit = bottom
    for k in range(len(places) - 1, -1, -1):
        places[k] = min(places[k], limit)
        limit = places[k] - gap
    return dict(zip(names, places, strict=True))


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _title(content: str) -> str:
    return str(Markup("<title>{}</title>").format(content))

"""Drawing of one device's backwards and gradient all-reduces.

It shows them with overlap, without overlap, and measured, on one time axis. Up to MOST_OWN all-reduces have a row
each; with more, they share rows. With more than MOST_TOLD backwards or all-reduces, equal colours share a path,
without tooltips.
"""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from hocket.program.trace.overlap import DeviceOverlap, GradientSum, SummedBackward
from hocket.reporting.charts.svg import box, num, show_tick, show_time, svg, text, ticks
from hocket.reporting.plan_report.facts import plural
from hocket.util.units import show_bytes

MOST_OWN, MOST_TOLD = 12, 64
WIDTH, LEFT, RIGHT = 1120.0, 186.0, 1040.0
COMPUTE, THIN, GAP, BAND = 22.0, 13.0, 3.0, 17.0
DIGIT = 6.4


def name_of(stage: int, bucket: int, several: bool) -> str:
    """Return the name of a bucket, with its stage if the device has several stages."""
    return f"{stage}:{bucket}" if several else str(bucket)


def gain_word(gain_s: float) -> str:
    """Return the verb for a gain in seconds: "gained" above 0, else "lost"."""
    return "gained" if gain_s > 0 else "lost"


def _wide(one: DeviceOverlap, span_s: float) -> bool:
    """True if the time gained or lost by overlap is wide enough to be drawn.

    Arguments:
        span_s: seconds of the drawing's axis.
    """
    return abs(one.gained_s) / span_s * (RIGHT - LEFT) > 16


def drawing(one: DeviceOverlap, real: SummedBackward | None, title: str) -> Markup:
    """Draw backwards and all-reduces with overlap, without overlap, and measured.

    Arguments:
        one: simulation of the device with and without overlap.
        real: measured backwards and all-reduces; None without a run.
    """
    sides = [("with overlap", one.beside), ("without overlap", one.apart)]
    sides += [("measured", real)] if real is not None else []
    span_s = max(side.seconds for _, side in sides)
    parts: list[str] = []
    y = 4.0
    for name, side in sides:
        panel = Panel(side, span_s, y, BAND if side is one.apart and _wide(one, span_s) else 0.0)
        parts += panel.drawn(name)
        if panel.band:
            parts += panel.gain(one)
        y = panel.bottom + 14
    grid = []
    for tick in ticks(0.0, span_s, 10):
        x = LEFT + tick / span_s * (RIGHT - LEFT)
        grid.append(f'<path class="grid" d="M{num(x)} 0V{num(y - 4)}"/>')
        grid.append(text(x, y + 10, show_tick(tick, span_s), "tick", "middle"))
    told = "; ".join(f"{name}: {show_time(side.seconds)}" for name, side in sides)
    return svg(WIDTH, y + 16, [*grid, *parts], f"{title}: backward and sums of gradients, bucket by bucket", told)


class Panel:
    """One part of a drawing: a compute lane, and the all-reduces below it."""

    def __init__(self, side: SummedBackward, span_s: float, top: float, band: float) -> None:
        """Lay out the lanes and rows.

        Arguments:
            side: backwards and all-reduces to draw.
            span_s: seconds of the drawing's axis.
            top: y coordinate of the panel's top.
            band: height between the compute lane and the all-reduces, in drawing units.
        """
        self.side, self.scale, self.top, self.band = side, (RIGHT - LEFT) / span_s, top, band
        self.several = len({p.stage for p in side.pieces}) > 1
        self.own = len(side.sums) <= MOST_OWN
        self.rows = [[s] for s in side.sums] if self.own else _packed(side.sums)
        self.bottom = top + COMPUTE + GAP + band + len(self.rows) * (THIN + GAP)

    def x(self, seconds: float) -> float:
        """Return the x coordinate of a time."""
        return LEFT + seconds * self.scale

    def drawn(self, name: str) -> list[str]:
        """Draw the compute lane, the all-reduces, their labels, and a line at the end."""
        side, y = self.side, self.top
        parts = [text(LEFT - 8, y + COMPUTE / 2 + 4, name, "name", "end")]
        idle = box(LEFT, y, side.seconds * self.scale, COMPUTE)
        parts.append(f'<path class="idle" d="{idle}"/>')
        if side.others:
            boxes = "".join(box(self.x(a), y, (b - a) * self.scale, COMPUTE) for a, b in side.others)
            parts.append(f'<path class="aside" d="{boxes}"><title>other computation</title></path>')
        parts += self._pieces(y)
        y += COMPUTE + GAP + self.band
        for row in self.rows:
            parts += self._sums(row, y)
            y += THIN + GAP
        x = self.x(side.seconds)
        parts.append(f'<path class="end" d="M{num(x)} {num(self.top - 3)}V{num(self.bottom)}"/>')
        parts.append(text(x + 6, self.top + COMPUTE / 2 + 4, show_time(side.seconds), "strong"))
        return parts

    def gain(self, one: DeviceOverlap) -> list[str]:
        """Draw the time gained or lost by overlap, as an arrow with its seconds."""
        near, far = sorted((self.x(one.beside.seconds), self.x(one.apart.seconds)))
        y = self.top + COMPUTE + self.band / 2 + 1
        told = f"{show_time(abs(one.gained_s))} {gain_word(one.gained_s)} ({abs(one.gained_s) / one.apart.seconds:.1%})"
        heads = f"m-6 -4l6 4l-6 4M{num(near + 6)} {num(y - 4)}l-6 4l6 4"
        return [
            f'<path class="end" d="M{num(near)} {num(y - 7)}v14"/>',
            f'<path class="gain" d="M{num(near)} {num(y)}H{num(far)}{heads}"/>',
            text(near - 6, y + 4, told, "strong", "end"),
        ]

    def _pieces(self, y: float) -> list[str]:
        parts: list[str] = []
        labels: list[str] = []
        shared: dict[str, list[str]] = {}
        for k, piece in enumerate(self.side.pieces):
            cls = f"b{k % 2}"
            left, width = self.x(piece.start_s), (piece.end_s - piece.start_s) * self.scale
            drawn = box(left, y, width, COMPUTE)
            if len(self.side.pieces) <= MOST_TOLD:
                what = f"backward of stage {piece.stage}" + (f", bucket {piece.bucket}" if piece.bucket >= 0 else "")
                parts.append(f'<path class="{cls}" d="{drawn}">{_title(what, piece.start_s, piece.end_s)}</path>')
            else:
                shared.setdefault(cls, []).append(drawn)
            name = name_of(piece.stage, piece.bucket, self.several) if piece.bucket >= 0 else f"stage {piece.stage}"
            if width > len(name) * DIGIT + 4:
                labels.append(text(left + width / 2, y + COMPUTE / 2 + 4, name, f"l-{cls}", "middle"))
        return [*parts, *(f'<path class="{cls}" d="{"".join(d)}"/>' for cls, d in shared.items()), *labels]

    def _sums(self, row: Sequence[GradientSum], y: float) -> list[str]:
        parts: list[str] = []
        labels: list[str] = []
        shared: dict[str, list[str]] = {}
        for s in row:
            name = name_of(s.stage, s.bucket, self.several)
            if s.ready_s is not None and self.own and s.start_s > s.ready_s:
                parts.append(
                    f'<path class="wait" d="M{num(self.x(s.ready_s))} {num(y + THIN / 2)}H{num(self.x(s.start_s))}"/>'
                )
            boxes = {cls: _boxes(self, found, y) for cls, found in self._shares(s).items()}
            if len(self.side.sums) <= MOST_TOLD:
                drawn = "".join(f'<path class="{cls}" d="{d}"/>' for cls, d in boxes.items() if d)
                what = f"{s.kind.replace('_', '-')} of bucket {name}" + (
                    f", {show_bytes(s.size_bytes)}" if s.size_bytes else ""
                )
                parts.append(f"<g>{_title(what, s.start_s, s.end_s, s.exposed_s)}{drawn}</g>")
            else:
                for cls, d in boxes.items():
                    shared.setdefault(cls, []).append(d)
            if self.own:
                threads = f" · {plural(s.threads, 'thread')}" if s.threads else ""
                size = f" · {show_bytes(s.size_bytes)}" if s.size_bytes else ""
                labels.append(text(LEFT - 8, y + THIN - 3, f"{name}{size}{threads}", "tick", "end"))
                labels.append(text(self.x(s.end_s) + 5, y + THIN - 3, show_time(s.seconds), "tick"))
            elif s.seconds * self.scale > len(name) * DIGIT + 4:
                labels.append(text((self.x(s.start_s) + self.x(s.end_s)) / 2, y + THIN - 3, name, "l-bare", "middle"))
        return [*parts, *(f'<path class="{cls}" d="{"".join(d)}"/>' for cls, d in shared.items() if d), *labels]

    def _shares(self, s: GradientSum) -> dict[str, list[tuple[float, float]]]:
        """Split an all-reduce into time intervals, by CSS class.

        The class is "sum" while the device computes, and "bare" while it does not.
        """
        busy = sorted([*((p.start_s, p.end_s) for p in self.side.pieces), *self.side.others])
        hidden, bare, at = [], [], s.start_s
        for start_s, end_s in busy:
            start_s, end_s = max(start_s, at), min(end_s, s.end_s)
            if end_s <= start_s:
                continue
            if start_s > at:
                bare.append((at, start_s))
            hidden.append((start_s, end_s))
            at = end_s
        if at < s.end_s:
            bare.append((at, s.end_s))
        return {"sum": hidden, "bare": bare}


def _boxes(panel: Panel, spans: Iterable[tuple[float, float]], y: float) -> str:
    return "".join(box(panel.x(a), y, max(0.3, (b - a) * panel.scale), THIN) for a, b in spans)


def _packed(sums: Sequence[GradientSum]) -> list[list[GradientSum]]:
    """Pack all-reduces into as few rows as possible, at most three."""
    rows: list[list[GradientSum]] = []
    for s in sums:
        free = next((row for row in rows if row[-1].end_s <= s.start_s + 1e-12), None)
        if free is None and len(rows) < 3:
            rows.append(free := [])
        (free if free is not None else rows[-1]).append(s)
    return rows


def _title(what: str, start_s: float, end_s: float, exposed_s: float | None = None) -> str:
    told = f"{what}\nfrom {show_time(start_s)} to {show_time(end_s)}, {show_time(end_s - start_s)}"
    if exposed_s is not None:
        told += f"; {show_time(exposed_s)} exposed"
    return f"<title>{escape(told)}</title>"

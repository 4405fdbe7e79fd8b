"""Report of time to accuracy by devices, as in DeepPool's figures 1 to 3."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from hocket.planning.goals.time_to_accuracy import OPTIMAL, WAYS, Scaled, Scaling
from hocket.reporting.charts.svg import num, svg, through
from hocket.reporting.cluster_report.axis import Axis, lattice, span_of
from hocket.reporting.cluster_report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, curve
from hocket.reporting.cluster_report.style import Look, legend, line_look
from hocket.reporting.plan_report.facts import Tile
from hocket.reporting.plan_report.page import render
from hocket.util.units import show_days

Line = tuple[str, Look, Sequence[tuple[float, float]]]  # name, look, points


def scaling_report_html(
    scaling: Scaling, title: str, networks: Mapping[float, Scaling] | None = None, link: str = "links"
) -> str:
    """Build a page with the charts and a table.

    Arguments:
        networks: scaling for other bandwidths of one cluster level, by bandwidth in bytes per second; None for none.
        link: name of this level.

    Returns:
        A self-contained HTML document; the same input gives the same bytes.
    """
    counts = sorted({row.devices for row in scaling.rows})
    table = []
    for count in counts:
        mine = {row.way: row for row in scaling.rows if row.devices == count}
        best = max(row.speedup for row in mine.values())
        cells = [_cell(mine[way], best) if way in mine else ("–", False) for way in WAYS]
        table.append((f"{count:,}", cells, f"{mine[OPTIMAL].batch_size:,}" if OPTIMAL in mine else "–"))
    return render(
        "scaling.html",
        title=title,
        curve=scaling.curve.name,
        source=scaling.curve.source,
        base=scaling.base_batch,
        tiles=_tiles(scaling),
        speedup=speedup_chart(scaling),
        batches=batch_chart(scaling),
        networks=network_chart(networks, link) if networks and len(networks) > 1 else None,
        link=link,
        most=counts[-1],
        looks=legend([(way, line_look(k)) for k, way in enumerate(WAYS)], lines=True),
        ways=WAYS,
        rows=table,
        notes=scaling.notes[:12],
    )


def _cell(row: Scaled, best: float) -> tuple[str, bool]:
    return f"{show_days(row.seconds)} ({row.speedup:.3g} x)", row.speedup == best


def _tiles(scaling: Scaling) -> list[Tile]:
    """Build tiles of the results on the most devices."""
    last = {way: scaling.of(way)[-1] for way in WAYS if scaling.of(way)}
    found = []
    for way, row in last.items():
        about = f"on {row.devices:,} devices, batches of {row.batch_size:,}"
        found.append(Tile(way, f"{row.speedup:.3g} x", about))
    return found


def speedup_chart(scaling: Scaling) -> Markup:
    """Draw speedup by devices (DeepPool, figure 1), with the line of linear speedup."""
    lines = [(way, line_look(k), [(r.devices, r.speedup) for r in scaling.of(way)]) for k, way in enumerate(WAYS)]
    first = min(row.devices for row in scaling.rows)
    last = max(row.devices for row in scaling.rows)
    linear = [(float(first), 1.0), (float(last), last / first)]
    return chart(lines, "Speedup in time to accuracy by devices", "devices (log)", "speedup (log)", linear)


def batch_chart(scaling: Scaling) -> Markup:
    """Draw samples per device in the best batch, by devices (DeepPool, figure 2)."""
    points = [(row.devices, row.samples_per_device) for row in scaling.of(OPTIMAL)]
    lines = [(OPTIMAL, line_look(WAYS.index(OPTIMAL)), points)]
    return chart(lines, "Samples of a device in the best batch", "devices (log)", "samples of a device (log)")


def network_chart(networks: Mapping[float, Scaling], link: str) -> Markup:
    """Draw speedup on the most devices by link bandwidth (DeepPool, figure 3)."""
    lines = []
    for k, way in enumerate(WAYS):
        ends = [(rate * 8e-9, scaling.of(way)) for rate, scaling in sorted(networks.items())]
        lines.append((way, line_look(k), [(gigabits, rows[-1].speedup) for gigabits, rows in ends if rows]))
    return chart(lines, "Speedup by the bandwidth of links", f"Gbit/s of {link} (log)", "speedup (log)")


def chart(
    lines: Sequence[Line],
    title: str,
    label: str,
    y_title: str,
    linear: Sequence[tuple[float, float]] = (),
) -> Markup:
    """Draw lines with their points on logarithmic axes.

    Arguments:
        lines: name, look and points (x, y) of each line.
        label: title of the horizontal axis.
        y_title: title of the vertical axis.
        linear: ends of a straight line for comparison.
    """
    seen = [point for _, _, points in lines for point in (*points, *linear)]
    across = Axis(*span_of((x for x, _ in seen), log=True), LEFT, RIGHT, log=True, title=label)
    up = Axis(*span_of((y for _, y in seen), log=True), BOTTOM, TOP, log=True, title=y_title)
    parts = lattice(across, up)
    if linear:
        path = through((across.at(x), up.at(y)) for x, y in linear)
        parts.append(f'<path class="limit" d="{path}"><title>linear speedup</title></path>')
    told = []
    for name, look, points in lines:
        places = [(across.at(x), up.at(y)) for x, y in points]
        if len(places) > 1:
            parts.append(curve(through(places), look, name))
        for (x, y), (at, value) in zip(places, points, strict=True):
            about = f"{name}: {value:.4g} at {at:,.4g}"
            dot = f'<circle cx="{num(x)}" cy="{num(y)}" r="3" fill="{look.colour}">'
            parts.append(f"{dot}<title>{escape(about)}</title></circle>")
        told.append(f"{name}: " + ", ".join(f"{value:.3g}" for _, value in points))
    return svg(WIDTH, HEIGHT, parts, title, "; ".join(told), cls="chart")

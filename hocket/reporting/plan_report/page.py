"""Report of one plan: prediction and measurement, as a self-contained HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hocket import __version__
from hocket.planning.plan import Plan
from hocket.planning.predict.whole_batch import excerpt_text
from hocket.planning.waves.compare import PlanTimeline
from hocket.printable import printable
from hocket.program.trace.compare import compare
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts.bars import legend_of, utilization
from hocket.reporting.charts.memory import MemoryCurve, memory_curves
from hocket.reporting.charts.palette import stylesheet
from hocket.reporting.charts.staircase import Staircase, staircase
from hocket.reporting.charts.svg import show_time
from hocket.reporting.charts.timeline import Timeline, rows_of, timeline
from hocket.reporting.charts.window import DrawnTrace, Window, choose
from hocket.reporting.plan_report import facts
from hocket.reporting.plan_report.background import BackgroundSection
from hocket.reporting.plan_report.overlaps import OverlapSection, overlaps
from hocket.reporting.plan_report.swap_panel import swap_panel
from hocket.reporting.plan_report.usage_panel import usage_panel
from hocket.simulation.summary import Summary
from hocket.simulation.swapping.host_memory import HostCourse

TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True)
class PlanResults:
    """A plan with its prediction and, if it ran, its measurement.

    Attributes:
        trace, summary: the prediction, from `LoadedPlan.simulate`.
        measured: trace of a run, to compare with the prediction; None if there was none.
        shown: the excerpt that `trace` covers, if the plan is too long to be drawn whole (`LoadedPlan.shown`); None for
            the plan itself. Drawings of the prediction are then labelled as an excerpt. Metrics of an iteration are
            the whole plan's, from `summary`.
    """

    plan: Plan
    trace: Trace
    summary: Summary
    measured: Trace | None = None
    shown: Plan | None = None


@dataclass(frozen=True)
class Drawings:
    """All drawings of one plan, with texts.

    Attributes:
        window: part of the predicted trace that is drawn.
        measured_memory: "series" or "peaks" of a run; empty if its memory was not measured.
        utilization: titles and drawings of the use of compute lanes.
        kinds: legend of `utilization`: CSS class and meaning.
        events: events of the predicted trace in the window.
        excerpt: description of the excerpt that the predicted drawings show; empty for the whole plan.
    """

    window: Window
    timelines: tuple[Timeline, ...]
    memory: tuple[MemoryCurve, ...]
    measured_memory: str
    utilization: tuple[tuple[str, Markup], ...]
    kinds: tuple[tuple[str, str], ...]
    events: list[Event]
    overlaps: OverlapSection | None
    staircase: Staircase | None
    excerpt: str


def report_html(
    results: PlanResults,
    amplification: str = "",
    together: BackgroundSection | None = None,
    courses: Sequence[PlanTimeline] = (),
    swapped: HostCourse | None = None,
    largest: tuple[facts.Table, str] | None = None,
) -> str:
    """Build the report of one plan.

    Arguments:
        amplification: sentence on the device time of a plan that yields idle devices; empty for other plans
            (planning/burst/amplification.py).
        together: section on a background job; None without one.
        courses: use of devices over one iteration, for the plan and for the same job in one wave or several waves
            (planning/waves/compare.py).
        swapped: bytes over time on hosts and in transfer, for a plan that swaps; None for other plans.
        largest: table of the deepest models (swap_panel.py), and a description of the block that they repeat.

    Returns:
        A self-contained HTML document; the same input gives the same bytes.
    """
    plan, summary = results.plan, results.summary
    measured = results.measured.by_group() if results.measured is not None else None
    drawn = draw(replace(results, measured=measured), together)
    return render(
        "report.html",
        title=f"{plan.model}: {plan.strategy} {facts.configuration(plan)}",
        plan=plan,
        config=facts.configuration(plan),
        sentence=facts.sentence(plan),
        about=facts.about_strategy(plan),
        chips=facts.chips(plan),
        tiles=facts.tiles(plan, summary, measured),
        drawn=drawn,
        computing=facts.computing(summary),
        measured=measured is not None,
        amplification=amplification,
        together=together,
        swaps=swap_panel(plan, swapped, drawn.window),
        largest=largest,
        usage=usage_panel(courses, measured, plan.batch_size, _capacities(plan), drawn.excerpt),
        differences=facts.difference_tables(compare(results.trace, measured)) if measured is not None else (),
        stages=facts.stage_table(plan, summary),
        traffic=facts.traffic_table(plan, summary, drawn.events, drawn.window),
        levels=facts.level_table(plan, summary),
    )


def draw(results: PlanResults, together: BackgroundSection | None = None) -> Drawings:
    """Draw timelines, memory and utilization of a few iterations of a plan.

    The predicted timeline, the measured timeline and the timeline with a background job have the same time scale.
    """
    plan, trace, summary, measured = results.plan, results.trace, results.summary, results.measured
    shown = results.shown or plan
    excerpt = excerpt_text(plan, shown)
    part = f"excerpt, {excerpt}: " if excerpt else ""
    path = set(summary.critical_path)
    window = choose(trace, shown.microbatches, around_s=_span_of(trace, path))
    span_s, real = window.seconds, None
    if measured is not None:
        real = choose(measured, plan.microbatches, window.count)
        span_s = max(span_s, real.seconds)
    shared = choose(together.trace, shown.microbatches, window.count) if together is not None else window
    span_s = max(span_s, shared.seconds)
    devices, events = rows_of(shown, trace), window.events(trace)
    title, record = f"Predicted: {part}{window.describe()}", DrawnTrace(trace, window)
    found = [timeline(shown, record, events, span_s, title, lambda e: f"device {e.device}: {e.name}" in path)]
    if together is not None:
        title = f"Predicted {together.title}: {part}{shared.describe()}"
        found.append(timeline(shown, DrawnTrace(together.trace, shared), together.events(shared), span_s, title))
    ran = None
    busy = [(f"Predicted{f', {part[:-2]}' if part else ''}", utilization(events, window, devices))]
    if measured is not None and real is not None:
        ran = DrawnTrace(measured, real)
        title = f"Measured: {real.describe()}"
        happened = real.events(measured)
        found.append(timeline(plan, ran, happened, span_s, title))
        busy.append(("Measured", utilization(happened, real, devices)))
    return Drawings(
        window,
        tuple(found),
        memory_curves(record, ran, span_s, devices, _capacities(plan), summary.peak_memory_bytes),
        _known_memory(ran),
        tuple(busy),
        legend_of(drawing for _, drawing in busy),
        events,
        overlaps(summary.overlap, measured),
        staircase(plan, trace, measured, shown, sum(summary.utilization.values())),
        excerpt,
    )


def _capacities(plan: Plan) -> dict[int, float]:
    """Return the memory capacity of every device or tensor-parallel group, in bytes."""
    cluster = plan.group.cluster
    return {device: cluster.capacity_bytes(device) for device in range(cluster.devices)}


def _known_memory(measured: DrawnTrace | None) -> str:
    """Return "series", "peaks" or "": the kind of memory record that a run has."""
    if measured is None or not measured.trace.peak_memory_bytes():
        return ""
    return "series" if any(map(measured.has, measured.trace.memory)) else "peaks"


def render(template: str, **values: Any) -> str:
    """Fill a template of hocket/reporting/templates.

    HTML in values is escaped, except in `Markup`. Control characters are shown as escapes.
    """
    page = _environment().get_template(template).render(values, palette=Markup(stylesheet()), version=__version__)
    return printable(page, lines=True)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals["show_time"] = show_time
    return found


def _span_of(trace: Trace, path: set[str]) -> tuple[float, float] | None:
    """Find begin and end, in seconds, of a critical path in a trace.

    Arguments:
        path: names of its instructions, such as "device 0: forward 0 #1".

    Returns:
        None if the path is empty, or if the trace has none of its instructions.
    """
    if not path:
        return None
    wanted = {device_name.partition(": ")[2] for device_name in path}
    # Few events are on the path, so filter by index first and build names only for the rest.
    indices = {int(part) for name in wanted for part in _numbers(name)}
    near = [
        k
        for k, index in enumerate(trace.index.tolist())
        if index in indices and f"device {trace.lanes[trace.lane[k]][0]}: {trace.name(k)}" in path
    ]
    if not near:
        return None
    return float(trace.start_s[near].min()), float(trace.end_s[near].max())


def _numbers(name: str) -> list[str]:
    return [part[1:] for part in name.split() if part[:1] in "#u" and part[1:].isdigit()]

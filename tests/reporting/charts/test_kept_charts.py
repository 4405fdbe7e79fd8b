"""Charts of drawn figures, plans and traces, equal to those that are kept in charts.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from pathlib import Path

from hocket.errors import RefusedError
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict
from hocket.planning.search.make_plan import make_plan
from hocket.program.trace.trace import Trace
from hocket.reporting.charts.bars import legend_of, loss_curves, paired_bars, utilization
from hocket.reporting.charts.memory import memory_curves
from hocket.reporting.charts.staircase import staircase
from hocket.reporting.charts.svg import byte_ticks, log_ticks, num, show_bytes_short, show_tick, show_time, ticks
from hocket.reporting.charts.timeline import timeline
from hocket.reporting.charts.window import DrawnTrace, choose
from hocket.reporting.cluster_report.axis import Axis, lattice, show_long, span_of
from hocket.strategies.base.search_space import SearchSpace
from hocket.strategies.base.strategy import members, strategy
from tests.drawn import cluster, model
from tests.kept import check, page
from tests.program.trace.test_kept_traces import measured

FIGURES = 30
PAST = "marks, their number, the sum of their coordinates, their text:"


def marks(drawing: str) -> str:
    """Marks of a drawing with their first words, on one line."""
    return " | ".join(line[:80] for line in page(drawing).partition(PAST)[2].strip().splitlines())


def axes(draw: random.Random) -> Iterator[str]:
    """An axis with its ticks and its grid, and texts of its ends."""
    log, unit = draw.random() < 0.5, draw.choice(("time", "%", ""))
    values = [10 ** draw.uniform(-3, 5) for _ in range(draw.choice((1, 2, 5)))]
    low, high = span_of([*values, nan], log)
    across = Axis(low, high, 20.0, 320.0, unit, log, "drawn")
    yield f"{unit} {log}: {low:.9g} {high:.9g}, {across.marks(draw.randint(2, 7))}"
    drawn = "".join(lattice(across, across))
    yield f"  at {[num(across.at(one)) for one in (*values, low / 2, 2 * high)]}, {marks(f'<svg>{drawn}</svg>')}"
    yield f"  {show_long(high)} {show_tick(high / 3, high)} {show_time(low)} {show_bytes_short(high * 1e4)}"
    yield f"  {ticks(low, high, 5)} {byte_ticks(high * 1e4, 4)} {log_ticks(low, high)} {log_ticks(low, high, fine=True)}"


def bars(draw: random.Random) -> Iterator[str]:
    """Bars of two kinds and loss curves, some of them not known."""
    figures = [(f"row {k}", 10 ** draw.uniform(-4, 1), draw.choice((None, nan, draw.uniform(0, 3)))) for k in range(4)]
    yield f"bars: {marks(paired_bars(figures, 'drawn'))}"
    curves = {
        name: [draw.uniform(1.0, 9.0) for _ in range(draw.choice((0, 1, 5, 2100)))]
        for name in members()[: draw.randint(1, 4)]
    }
    yield f"losses: {marks(loss_curves(curves, draw.random() < 0.5))}"


def of_plan(draw: random.Random, name: str) -> Iterator[str]:
    """Pictures of a plan's predicted run, and of the run on another clock."""
    profile, there = model(draw, most_layers=5), cluster(draw, draw.choice([(2,), (3,), (2, 2)]))
    space = SearchSpace(profile, there, draw.choice((4, 6)), shard="none")
    offered = list(strategy(name).choices(space))[:40]
    if not offered:
        return
    plan = make_plan(space, name, draw.choice(offered))
    try:
        trace, _ = predict(plan, profile)
    except RefusedError as error:
        yield f"{name}: {error}"
        return
    yield f"{name}, {len(plan.stages)} stages, {plan.microbatches} microbatches"
    real = measured(draw, trace)
    real = replace(real, meta={key: value for key, value in real.meta.items() if key != "segments_s"})
    yield from pictures(draw, plan, trace, real)


def pictures(draw: random.Random, plan: Plan, trace: Trace, real: Trace) -> Iterator[str]:
    """Utilisation, staircase, memory and timeline."""
    windows = [choose(one, plan.microbatches, draw.choice((None, 1, 2))) for one in (trace, real)]
    records = [DrawnTrace(one, window) for one, window in zip((trace, real), windows, strict=True)]
    span_s = max(window.seconds for window in windows)
    for record in records:
        events = record.window.events(record.trace)
        yield f"  {record.window.describe()}: {len(events)} events, {record.window.seconds:.9g} s"
        used = utilization(events, record.window, trace.devices)
        yield f"  used: {marks(used)}; {legend_of([used])}"
        found = timeline(plan, record, events, span_s, "drawn", lambda event: event.index % 3 == 0)
        yield f"  {found.legend} {found.notes} {found.unit_s:.9g}; axis {marks(found.axis)}"
        for row in found.rows:
            yield f"    {row.label} {row.stages} {row.busy}: {marks(row.compute)}; {marks(row.network or '')}"
    stairs = staircase(plan, trace, real)
    if stairs is not None:
        yield f"  {stairs.sentence} {stairs.note} {stairs.table} {[marks(drawing) for _, drawing in stairs.drawings]}"
    capacity = {device: draw.choice((1e8, 1e9)) for device in trace.devices[1:]}
    for curve in memory_curves(records[0], records[1], span_s, trace.devices, capacity, {}):
        told = (curve.peak, curve.measured_peak, curve.share, curve.capacity, curve.limited)
        yield f"  {curve.device}: {told} {marks(curve.drawing)}"


def test_charts(update_golden: bool) -> None:
    """Axes, bars and curves of drawn figures; pictures of plans of each strategy."""
    lines = []
    for seed in range(FIGURES):
        draw = random.Random(f"chart {seed}")
        lines += [f"{seed}:", *axes(draw), *(bars(draw) if seed % 5 == 0 else ())]
    for name in members():
        for seed in range(2):
            lines += of_plan(random.Random(f"chart {name} {seed}"), name)
    check(Path(__file__).with_name("charts.txt"), "\n".join(lines) + "\n", update_golden)

"""Texts and metrics of a plan report: header, tiles, tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from hocket.planning.plan import Plan
from hocket.program.instruction import Kind
from hocket.program.program import StageShape
from hocket.program.trace.compare import Comparison
from hocket.program.trace.trace import Event, Trace
from hocket.program.trace.update_time import inner_gaps
from hocket.reporting.charts.svg import show_time
from hocket.reporting.charts.window import Window, batch_starts
from hocket.simulation.summary import Summary
from hocket.strategies.base.strategy import config, description, members, merged, strategy
from hocket.util.units import show_bytes, show_number, show_ranges, show_rate


@dataclass(frozen=True)
class Tile:
    """One key metric: name, value and remark."""

    name: str
    value: str
    remark: str = ""


@dataclass(frozen=True)
class Table:
    """Table of texts in a report.

    Attributes:
        right: indices of the columns of numbers, which are aligned to the right.
        shares: for each row, length of a bar in the last column, from 0 to 1; empty for no bars.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


def configuration(plan: Plan) -> str:
    """Return the replicas of each stage in the papers' notation, such as '15-1'."""
    stages = ((stage, merged(plan.strategy, len(stage.devices), plan.microbatches)) for stage in plan.stages)
    return config(tuple(StageShape(stage.devices, merged=many, wave=stage.wave) for stage, many in stages))


def plural(count: int, noun: str, ending: str = "s") -> str:
    """Format a count with its noun: '1 device', '4 devices'."""
    return f"{count:,} {noun}{'' if count == 1 else ending}"


def sentence(plan: Plan) -> str:
    """Describe the plan in one sentence."""
    used = plan.tensor * len({device for stage in plan.stages for device in stage.devices})
    again = sum(stage.recompute for stage in plan.stages)
    parts = (
        f"{plan.model} in {plural(len(plan.stages), 'stage')} on {plural(used, 'device')} of {plan.cluster.name}: "
        f"batches of {plural(plan.batch_size, 'sample')} as {plural(plan.microbatches, 'microbatch', 'es')} "
        f"of {'at most ' * (plan.microbatches * plan.microbatch_size > plan.batch_size)}{plan.microbatch_size}"
    )
    recompute = (
        f", {'every stage' if again == len(plan.stages) else plural(again, 'stage')} recomputed" if again else ""
    )
    return parts + recompute + "."


def about_strategy(plan: Plan) -> str:
    """Return the first paragraph of the strategy's docstring, and its source."""
    if plan.strategy not in members():
        return ""
    first = description(plan.strategy).replace("`", "")
    return f"{first} Source: {strategy(plan.strategy).paper}."


def chips(plan: Plan) -> tuple[str, ...]:
    """Describe the cluster and the plan's options, each in a short text."""
    types: dict[str, int] = {}
    for device in range(plan.cluster.devices):
        name = plan.cluster.node_of(device).device_type
        types[name] = types.get(name, 0) + 1
    found = [f"{count:,} × {name}" for name, count in types.items()]
    for level in plan.cluster.levels:
        shared = ", shared" if level.shared else ""
        rate = show_rate(level.bandwidth_bytes_per_s)
        found.append(f"{level.name}: {level.width} at {rate}{shared}, latency {show_time(level.latency_s)}")
    if plan.tensor > 1:
        how = (
            ", on slices of the sequence"
            if plan.sequence_parallel
            else ", stage boundaries sent in parts"
            if plan.slices
            else ""
        )
        found.append(f"groups of {plan.tensor} devices, one row each{how}")
    swaps = () if plan.swap is None else (plan.swap.describe(),)
    return (*found, *(f"{key} = {value}" for key, value in plan.options.items()), *swaps)


def measured_iteration_s(trace: Trace, microbatches: int) -> float | None:
    """Compute the mean iteration time in the second half of a measured trace.

    Arguments:
        microbatches: microbatches of a batch.

    Returns:
        Seconds; None if no segment between checkpoints has two iterations.
    """
    gaps = inner_gaps(np.array(batch_starts(trace, microbatches)), trace.segments_s)
    if not len(gaps):
        return None
    return float(gaps[(len(gaps) + 1) // 2 if len(gaps) > 2 else 0 :].mean())


def signed(error: float) -> str:
    """Format a relative difference as percent with its sign, such as '+1.5%'."""
    shown = f"{error:+.1%}"
    return "0.0%" if shown in ("+0.0%", "-0.0%") else shown


def tiles(plan: Plan, summary: Summary, measured: Trace | None) -> tuple[Tile, ...]:
    """Build the tiles of key metrics.

    Arguments:
        summary: the prediction.
        measured: trace of a run; None without one.
    """
    peak_device = max(summary.peak_memory_bytes, key=lambda d: (summary.peak_memory_bytes[d], -d), default=None)
    peak = summary.peak_memory_bytes[peak_device] if peak_device is not None else 0.0
    capacity = plan.group.cluster.capacity_bytes(peak_device) if peak_device is not None else 0.0
    versions = sorted(set(summary.weight_versions))
    how = "at most, in any timing" if any(stage.wave for stage in plan.stages) else "predicted"
    found = [
        Tile("iteration", show_time(summary.iteration_s), f"{plural(plan.batch_size, 'sample')}, predicted"),
        Tile("throughput", show_number(summary.samples_per_s), "samples/s, predicted"),
        Tile("bubble", f"{summary.bubble_fraction:.1%}", "idle by busy time, predicted"),
        Tile(
            "peak memory",
            show_bytes(peak),
            f"device {peak_device}, {how}" + (f", {peak / capacity:.1%} of capacity" if capacity else ""),
        ),
        Tile(
            "weight versions",
            "–".join(str(v) for v in ([versions[0], versions[-1]] if len(versions) > 1 else versions)),
            "at once, by stage",
        ),
        Tile(
            "sent",
            show_bytes(sum(summary.sent_bytes.values())),
            f"per iteration, {'between groups' if plan.tensor > 1 else 'all links'}",
        ),
        Tile("simulated", f"{summary.instructions:,}", f"instructions in {show_time(summary.wall_s)}"),
    ]
    real_s = measured_iteration_s(measured, plan.microbatches) if measured is not None else None
    held = max(measured.peak_memory_bytes().values(), default=None) if measured is not None else None
    if held is not None:
        error = f", prediction {signed(peak / held - 1)}" if held > 0 else ""
        at = next(k for k, tile in enumerate(found) if tile.name == "peak memory") + 1
        found.insert(at, Tile("measured peak", show_bytes(held), f"of the device that holds the most{error}"))
    if real_s is not None:
        error = signed(summary.iteration_s / real_s - 1) if real_s > 0 else ""
        found.insert(
            1, Tile("measured", show_time(real_s), f"an iteration; prediction {error}" if error else "an iteration")
        )
    return tuple(found)


def computing(summary: Summary) -> str:
    """Describe utilization, such as "devices compute 95.9% to 96.4% of the time"."""
    shares = [f"{share:.1%}" for share in sorted(summary.utilization.values())]
    ends = list(dict.fromkeys([*shares[:1], *shares[-1:]]))
    return f"devices compute {' to '.join(ends)} of the time"


def stage_table(plan: Plan, summary: Summary) -> Table:
    """Build the table of stages: devices, layers, weight versions, stashes, and more."""
    rows = []
    for s, stage in enumerate(plan.stages):
        first, last = (stage.layers[0], stage.layers[-1]) if stage.layers else ("", "")
        rows.append(
            (
                str(s),
                ranges(stage.devices),
                str(len(stage.layers)),
                first if first == last else f"{first} … {last}",
                "yes" if stage.recompute else "no",
                str(max(1, len(stage.buckets))),
                str(summary.weight_versions[s]) if s < len(summary.weight_versions) else "",
                str(summary.stashes[s]) if s < len(summary.stashes) else "",
            )
        )
    columns = ("stage", "devices", "layers", "from … to", "recompute", "buckets", "weight versions", "stashes at once")
    return Table(columns, tuple(rows), right=(0, 2, 5, 6, 7))


def traffic_table(plan: Plan, summary: Summary, events: Iterable[Event], window: Window) -> Table:
    """Build the table of used links, the links with the most bytes first.

    One column is the share of the window during which sends occupy the link.

    Arguments:
        events: events of the window.
    """
    busy: dict[str, float] = {}
    for event in events:
        if event.kind is Kind.SEND and event.lane.startswith("send>"):
            key = f"{event.device}>{event.lane[5:]}"
            seconds = max(0.0, min(event.end_s, window.end_s) - max(event.start_s, window.start_s))
            busy[key] = busy.get(key, 0.0) + seconds / window.seconds
    found = sorted(summary.sent_bytes_between.items(), key=lambda item: (-item[1], _pair(item[0])))
    most = max((size for _, size in found), default=1.0) or 1.0
    rows = []
    for pair, size in found:
        source, target = _pair(pair)
        level = plan.group.cluster.levels[plan.group.cluster.level_between(source, target)].name
        rate = size / summary.iteration_s if summary.iteration_s > 0 else 0.0
        share = f"{busy[pair]:.1%}" if pair in busy else "–"
        rows.append((f"{source} → {target}", level, show_bytes(size), show_rate(rate), share, ""))
    columns = ("from → to", "level", "per iteration", "mean rate", "sends take", "")
    return Table(columns, tuple(rows), right=(2, 3, 4), shares=tuple(size / most for _, size in found))


def level_table(plan: Plan, summary: Summary) -> Table:
    """Build the table of bytes sent per iteration, by level of the cluster's links."""
    rows = [(name, show_bytes(size)) for name, size in summary.sent_bytes.items()]
    if summary.group_bytes:
        rows.append((f"inside groups of {plan.tensor}", show_bytes(summary.group_bytes)))
    if summary.swapped_bytes:
        rows.append(("device ↔ host", show_bytes(summary.swapped_bytes)))
    return Table(("level", "per iteration"), tuple(rows), right=(1,))


def difference_tables(found: Comparison) -> tuple[tuple[str, Table], ...]:
    """Build tables of prediction against measurement.

    They show the parts of the error, means by kind and stage, memory peaks, and the largest differences.
    """
    why = parts_table(found)
    parts = (
        ("Means by kind and stage", (found.update, *found.kinds), show_time),
        ("Peak memory", found.memory, show_bytes),
        ("Instructions that differ most", found.largest, show_time),
    )
    columns = ("what", "predicted", "measured", "error", "times")
    tables = [("Why an update took more or less time", why)] if why is not None else []
    for name, rows, show in parts:
        cells = tuple(
            (
                r.what,
                _known(show, r.predicted),
                _known(show, r.measured),
                _known(signed, r.relative_error),
                f"{r.count:,}",
            )
            for r in rows
        )
        if cells:
            tables.append((name, Table(columns, cells, right=(1, 2, 3, 4))))
    return tuple(tables)


def parts_table(found: Comparison) -> Table | None:
    """Build the table of the prediction error in parts: pace, waits, model.

    None if the parts are unknown.
    """
    parts = found.parts
    if parts is None:
        return None
    cells = tuple((name, ("−" if s < 0 else "") + show_time(abs(s)), signed(share)) for name, s, share in parts.rows)
    return Table(("part", "added to an update", "error"), cells, right=(1, 2))


def _known(show: Callable[[float], str], value: float) -> str:
    return show(value) if isfinite(value) else "–"


def ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: '0–7, 12'."""
    return show_ranges(numbers, "–")


def _pair(key: str) -> tuple[int, int]:
    source, target = key.split(">")
    return int(source), int(target)

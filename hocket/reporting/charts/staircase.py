"""Staircase chart: number of computing devices over one steady iteration.

Prediction and measurement have the same axes.
"""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from hocket.planning.plan import Plan
from hocket.planning.predict.whole_batch import excerpt_text
from hocket.program.instruction import computes
from hocket.program.trace.busy_time import once
from hocket.program.trace.trace import KINDS, Trace
from hocket.program.trace.usage import COMPUTES
from hocket.reporting.charts.palette import MEANINGS, class_of, family_of
from hocket.reporting.charts.svg import num, svg, text, ticks
from hocket.reporting.charts.window import Window, choose
from hocket.reporting.plan_report.facts import Table, plural

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1120.0, 48.0, 990.0, 16.0, 206.0
MOST_STEPS = 600  # more steps are drawn as means over this many equal intervals
MOST_STAGES = 32  # with more stages, plateaus have no names
MOST_ROWS = 9  # rows of the table; with more numbers of devices, several share a row
DIGIT = 6.8  # width of one character of a name, in drawing units
_COMPUTES = tuple(k for k, kind in enumerate(KINDS) if kind in COMPUTES)
FAMILIES = ("f", "again", "b", "step")


@dataclass(frozen=True)
class Stairs:
    """Number of computing devices over time.

    Attributes:
        edges_s: edges of the intervals, from 0; shape (intervals + 1,).
        counts: computing devices by family of `FAMILIES`; shape (families, intervals).
        stage: the only stage that computes in each interval; -1 if several stages or none compute.
        binned: True if counts are means over equal intervals.
        shares: share of the iteration, by number of computing devices.
    """

    edges_s: np.ndarray
    counts: np.ndarray
    stage: np.ndarray
    binned: bool
    shares: dict[int, float]

    @property
    def mean(self) -> float:
        """Average number of computing devices."""
        return float(self.counts.sum(axis=0) @ np.diff(self.edges_s) / self.edges_s[-1])


@dataclass(frozen=True)
class Staircase:
    """Drawings with titles, a sentence, a legend, a table of the numbers, and a note."""

    drawings: tuple[tuple[str, Markup], ...]
    sentence: str
    legend: tuple[tuple[str, str], ...]
    table: Table
    note: str


def staircase(
    plan: Plan, trace: Trace, measured: Trace | None, shown: Plan | None = None, mean: float | None = None
) -> Staircase | None:
    """Draw the number of computing devices over an iteration.

    Arguments:
        trace: the predicted trace.
        measured: trace of a run; None without one.
        shown: the plan of `trace`: an excerpt of `plan`, or by default `plan`.
        mean: average number of computing devices over an iteration of `plan`. It is reported if an excerpt is drawn.

    Returns:
        None if no device computes in the iteration.
    """
    shown = shown or plan
    excerpt = excerpt_text(plan, shown)
    window = choose(trace, shown.microbatches, 1)
    found = stairs_of(trace, window)
    if found is None:
        return None
    real = None
    if measured is not None:
        real_window = choose(measured, plan.microbatches, 1)
        real = stairs_of(measured, real_window)
    used = len({device for stage in plan.stages for device in stage.devices})
    many = plural(used, "device") if plan.tensor == 1 else f"{used:,} groups of {plan.tensor} devices"
    there = plan.group.cluster.devices
    told = found.mean if not excerpt or mean is None else mean
    sentence = f"Of {many} that the plan uses{f' (the cluster has {there:,})' if there > used else ''}, {told:.3g} compute on average, predicted"
    if real is not None:
        sentence += f"; measured {real.mean:.3g}"
    if excerpt:
        sentence += (
            f". The drawing and its table are of an excerpt, {excerpt}, in which {found.mean:.3g} compute on average"
        )
    binned = found.binned or (real is not None and real.binned)
    both = [("Predicted", found)] + ([("Measured", real)] if real is not None else [])
    drawn = [f for k, f in enumerate(FAMILIES) if any(stairs.counts[k].any() for _, stairs in both)]
    span_s = max(float(stairs.edges_s[-1]) for _, stairs in both)
    return Staircase(
        tuple((name, _drawing(name, stairs, _StaircaseFrame(span_s, used * 1.06), used)) for name, stairs in both),
        f"{sentence}.",
        tuple((_class(family), MEANINGS[family]) for family in drawn),
        _table(found, real),
        f"there are more than {MOST_STEPS} steps; means over equal intervals are drawn" if binned else "",
    )


def stairs_of(trace: Trace, window: Window) -> Stairs | None:
    """Count the computing devices in a window of a trace; None if there are none."""
    compute = np.array([computes(lane) for _, lane in trace.lanes], dtype=bool)
    if not len(trace):
        return None
    compute = compute[trace.lane] & np.isin(trace.kind, _COMPUTES)  # a compute lane may also have loads and swaps
    own = compute & (trace.end_s > window.start_s) & (trace.start_s < window.end_s)
    own = np.flatnonzero(own & (trace.end_s > trace.start_s))
    if not len(own):
        return None
    begun_s, some = once(
        trace.device[own], trace.start_s[own], trace.end_s[own]
    )  # count a device with several waves once
    some &= begun_s < window.end_s  # after `once`, an event's remaining part may begin after the window
    own, begun_s = own[some], begun_s[some]
    start_s = np.maximum(begun_s, window.start_s) - window.start_s
    end_s = np.minimum(trace.end_s[own], window.end_s) - window.start_s
    edges = np.unique(np.concatenate(([0.0, window.seconds], start_s, end_s)))
    begin, stop = np.searchsorted(edges, start_s), np.searchsorted(edges, end_s)
    family, stage = _families(trace, own), trace.stage[own]
    counts = np.stack([_running(begin[family == k], stop[family == k], len(edges)) for k in range(len(FAMILIES))])
    only = _only_stage(begin, stop, stage, len(edges))
    lengths = np.bincount(counts.sum(axis=0), weights=np.diff(edges)) / window.seconds
    shares = {count: float(share) for count, share in enumerate(lengths) if share > 0}
    if len(edges) - 1 <= MOST_STEPS:
        return Stairs(edges, counts.astype(float), only, False, shares)
    even = np.linspace(0.0, window.seconds, MOST_STEPS + 1)
    area = np.concatenate((np.zeros((len(counts), 1)), np.cumsum(counts * np.diff(edges), axis=1)), axis=1)
    means = np.stack([np.diff(np.interp(even, edges, row)) for row in area]) / np.diff(even)
    middle = np.searchsorted(edges, (even[:-1] + even[1:]) / 2, side="right") - 1
    return Stairs(even, means, only[middle], True, shares)


def _families(trace: Trace, own: np.ndarray) -> np.ndarray:
    again = np.array([" again " in label for label in trace.labels], dtype=bool)[trace.label[own]]
    number = {family: k for k, family in enumerate(FAMILIES)}
    table = np.array(
        [[number.get(family_of(class_of(kind, 0, a)), number["step"]) for a in (False, True)] for kind in KINDS]
    )
    found: np.ndarray = table[trace.kind[own], again.astype(np.int64)]
    return found


def _running(begin: np.ndarray, stop: np.ndarray, edges: int) -> np.ndarray:
    """Count the running events in each interval.

    Arguments:
        begin, stop: index of the edge at which each event begins and ends.
        edges: number of edges; intervals lie between two edges.
    """
    change = np.bincount(begin, minlength=edges) - np.bincount(stop, minlength=edges)
    found: np.ndarray = np.cumsum(change)[:-1]
    return found


def _only_stage(begin: np.ndarray, stop: np.ndarray, stage: np.ndarray, edges: int) -> np.ndarray:
    """Return the only stage that computes in each interval; -1 for none or several.

    With a single stage, or more than MOST_STAGES, all are -1.

    Arguments:
        begin, stop: index of the edge at which each event begins and ends.
        stage: stage of each event.
        edges: number of edges.
    """
    stages = np.unique(stage)
    only = np.full(edges - 1, -1, dtype=np.int64)
    if not 1 < len(stages) <= MOST_STAGES:
        return only
    running = np.stack([_running(begin[stage == s], stop[stage == s], edges) > 0 for s in stages])
    alone = running.sum(axis=0) == 1
    only[alone] = stages[np.argmax(running[:, alone], axis=0)]
    return only


def _class(family: str) -> str:
    return f"{family}0" if family in ("f", "b") else family


@dataclass(frozen=True)
class _StaircaseFrame:
    """Scales of the axes of a staircase chart.

    Attributes:
        span_s: seconds at the right end of the time axis.
        high: number of devices at the top of the vertical axis.
    """

    span_s: float
    high: float

    def x(self, seconds: float) -> float:
        """Return the x coordinate of a time."""
        return LEFT + seconds / self.span_s * (RIGHT - LEFT)

    def y(self, devices: float) -> float:
        """Return the y coordinate of a number of devices."""
        return BOTTOM - devices / self.high * (BOTTOM - TOP)

    def steps(self, edges_s: np.ndarray, values: np.ndarray) -> list[tuple[float, float, float]]:
        """Return (left, right, y) of each interval; equal neighbours are merged."""
        ends = np.append(np.flatnonzero(np.diff(values) != 0), len(values) - 1)
        begins = np.append(0, ends[:-1] + 1)
        return [
            (self.x(float(edges_s[b])), self.x(float(edges_s[e + 1])), self.y(float(values[b])))
            for b, e in zip(begins.tolist(), ends.tolist(), strict=True)
        ]

    def area(self, edges_s: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
        """Return the path of the area between two step functions of time."""
        there, back = self.steps(edges_s, high), reversed(self.steps(edges_s, low))
        line = "".join(f"V{num(y)}H{num(right)}" for _, right, y in there)
        return f"M{num(LEFT)} {num(there[0][2])}{line}" + "".join(f"V{num(y)}H{num(left)}" for left, _, y in back) + "z"


def _drawing(name: str, found: Stairs, frame: _StaircaseFrame, used: int) -> Markup:
    size, unit = (1.0, "s") if frame.span_s >= 10 else (1e-3, "ms")
    parts = [text(4, 9, "devices", "tick")]
    for tick in ticks(0.0, float(used), min(used, 5)):
        if tick == int(tick):
            parts.append(f'<path class="grid" d="M{num(LEFT)} {num(frame.y(tick))}H{num(RIGHT)}"/>')
            parts.append(text(LEFT - 6, frame.y(tick) + 3.5, f"{tick:,g}", "tick", "end"))
    for tick in ticks(0.0, frame.span_s / size, 10):
        x = frame.x(tick * size)
        parts.append(f'<path class="grid" d="M{num(x)} {num(BOTTOM)}v4"/>')
        parts.append(text(x, BOTTOM + 16, f"{tick:,g}", "tick", "middle"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 32, f"{unit} into the iteration", "tick", "middle"))
    below = np.zeros(found.counts.shape[1])
    for family, row in zip(FAMILIES, found.counts, strict=True):
        if row.any():
            parts.append(f'<path class="{_class(family)}" d="{frame.area(found.edges_s, below, below + row)}"/>')
        below = below + row
    parts += _names(found, frame)
    y = frame.y(found.mean)
    parts.append(f'<path class="mean" d="M{num(LEFT)} {num(y)}H{num(RIGHT)}"/>')
    parts.append(text(RIGHT + 8, y + 4, f"{found.mean:.3g} on average", "strong"))
    told = f"{found.mean:.3g} of {used} on average"
    return svg(WIDTH, BOTTOM + 38, parts, f"{name}: devices that compute over one iteration", told)


def _names(found: Stairs, frame: _StaircaseFrame) -> list[str]:
    """Draw the name of a stage on each wide plateau where only this stage computes."""
    total, kinds = found.counts.sum(axis=0), np.argmax(found.counts, axis=0)
    same = (np.diff(found.stage) == 0) & (np.diff(kinds) == 0) & (np.diff(total) == 0)
    ends = np.append(np.flatnonzero(~same), len(total) - 1)
    begins = np.append(0, ends[:-1] + 1)
    parts = []
    for b, e in zip(begins.tolist(), ends.tolist(), strict=True):
        left, right = frame.x(float(found.edges_s[b])), frame.x(float(found.edges_s[e + 1]))
        name, top = f"stage {found.stage[b]}", frame.y(float(total[b]))
        if right - left <= len(name) * DIGIT:
            name = str(found.stage[b])
        if found.stage[b] >= 0 and right - left > len(name) * DIGIT and BOTTOM - top > 18:
            cls = f"l-{_class(FAMILIES[int(kinds[b])])}"
            at = top + 14
            if abs(at - 4 - frame.y(found.mean)) < 8 and BOTTOM - top > 32:  # keep clear of the average line
                at += 14
            parts.append(text((left + right) / 2, at, name, cls, "middle"))
    return parts


def _table(found: Stairs, real: Stairs | None) -> Table:
    """Build a table: share of an iteration by number of computing devices.

    Arguments:
        found, real: counts of the prediction, and of the measurement or None.
    """
    counts = sorted({*found.shares, *(real.shares if real is not None else ())}, reverse=True)
    each = -(-len(counts) // MOST_ROWS)
    groups = [counts[k : k + each] for k in range(0, len(counts), each)]
    rows = []
    for group in groups:
        name = f"{group[0]:,}" if len(group) == 1 else f"{group[-1]:,} to {group[0]:,}"
        shares = [sum(s.shares.get(c, 0.0) for c in group) for s in (found, real) if s is not None]
        rows.append((name, *(f"{share:.1%}" for share in shares)))
    columns = ("devices that compute", "of the iteration, predicted", *(("measured",) if real is not None else ()))
    return Table(columns, tuple(rows), right=tuple(range(len(columns))))

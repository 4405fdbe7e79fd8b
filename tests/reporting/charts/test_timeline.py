"""Timelines: every instruction of the window is there, once, at its place."""

import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest

from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.program.instruction import COMPUTE, Kind
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts import timeline as module
from hocket.reporting.charts.palette import PAINTS
from hocket.reporting.charts.timeline import Timeline, rows_of, timeline
from hocket.reporting.charts.timeline_rows import WIDTH
from hocket.reporting.charts.window import DrawnTrace, choose

CASES = [
    ("flush", {}),
    ("gpipe", {"recompute": True}),
    ("interleaved", {"chunks": 2}),
    ("pipedream", {}),
    ("two_bw", {}),
    ("flush", {"width": 2}),
]


def drawn(plan: Plan, trace: Trace, critical: Callable[[Event], bool] | None = None) -> tuple[Timeline, list[Event]]:
    """The timeline of the default window, and the events of that window."""
    window = choose(trace, plan.microbatches)
    events = window.events(trace)
    return timeline(plan, DrawnTrace(trace, window), events, window.seconds, "Predicted", critical), events


def paths(found: Timeline) -> Iterator[tuple[Element, list[tuple[float, float]]]]:
    """Every path of instructions with the (x, width) of its blocks."""
    for row in found.rows:
        for drawing in filter(None, (row.compute, row.network)):
            for e in ET.fromstring(drawing).findall(".//{*}path"):
                if e.get("class") in PAINTS:
                    boxes = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", e.get("d", ""))
                    yield e, [(float(x), float(w)) for x, w in boxes]


def names(found: Timeline) -> list[str]:
    """Return the names of all drawn instructions.

    An instruction has its own path or shares a path.
    """
    told = []
    for path, boxes in paths(found):
        if path.get("data-t") is None:
            told.append((path.findtext("{*}title") or "").split("\n")[0])
        else:
            indices = path.get("data-i", "").split()
            assert len(indices) == len(boxes)
            told += [path.get("data-t", "").replace("{}", index) for index in indices]
    return told


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("strategy", "options"), CASES)
def test_every_instruction_of_the_window_is_a_block(
    strategy: str, options: dict[str, Any], shared: bool, predicted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every instruction of the window has a block with its name.

    This holds if blocks share paths or not.
    """
    if shared:
        monkeypatch.setattr(module, "MOST_TOLD", 0)
    plan, trace, _ = predicted(4, 8, strategy, **options)
    found, events = drawn(plan, trace)
    assert len(events) > 50
    assert sorted(names(found)) == sorted(e.name for e in events)
    assert not found.notes


def test_blocks_lie_where_their_times_are(predicted: Callable[..., Any]) -> None:
    """Left edge and width are start and duration on the axis of the window."""
    plan, trace, _ = predicted()
    window = choose(trace, plan.microbatches)
    found, events = drawn(plan, trace)
    unit = WIDTH / window.seconds
    expected = {
        e.name: ((e.start_s - window.start_s) * unit, (e.end_s - e.start_s) * unit)
        for e in events
        if e.lane == COMPUTE and e.kind in (Kind.FORWARD, Kind.BACKWARD)
    }
    for path, [(x, width), *_] in paths(found):
        name = (path.findtext("{*}title") or "").split("\n")[0]
        if name in expected:
            assert (x, width) == pytest.approx(expected[name], abs=0.011)


def test_a_crowd_is_drawn_together_and_said(predicted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeline with few blocks loses no instruction.

    The counts add up, and a note explains the merged blocks.
    """
    monkeypatch.setattr(module, "MOST_TOLD", 0)
    monkeypatch.setattr(module, "MOST_BLOCKS", {"compute": 20, "network": 1000})
    plan, trace, _ = predicted()
    found, events = drawn(plan, trace)
    alone = sum(len(path.get("data-i", "").split()) for path, _ in paths(found))
    together = 0
    for row in found.rows:
        counts = set(re.findall(r'data-n="(\d+)"', row.compute))
        assert len(counts) <= 1
        together += sum(map(int, counts))
    assert alone + together == len(events)
    assert together > 0
    assert any("drawn together" in note for note in found.notes)


def test_the_critical_path_is_outlined(predicted: Callable[..., Any]) -> None:
    """Each instruction of the critical path in the window has an outline.

    Without a path there are no outlines.
    """
    plan, trace, summary = predicted()
    path = set(summary.critical_path)
    window = choose(trace, plan.microbatches)

    def critical(event: Event) -> bool:
        return f"device {event.device}: {event.name}" in path

    found, events = drawn(plan, trace, critical)
    outlines = "".join(
        "".join(re.findall(r'class="path" d="([^"]*)"', r.compute + (r.network or ""))) for r in found.rows
    )
    assert outlines.count("M") == sum(critical(e) for e in events) > 0
    assert found.critical
    assert not drawn(plan, trace)[0].critical
    assert window.seconds > 0


def test_numbers_of_microbatches_stand_in_blocks(predicted: Callable[..., Any]) -> None:
    """Wide blocks show the number of their microbatch at once.

    On a device with several chunks, the label begins with the stage.
    """
    plan, trace, _ = predicted()
    found, _ = drawn(plan, trace)
    shown = re.findall(r'<text class="t1 l-b0"[^>]*>(\d+)</text>', found.rows[3].compute)
    assert len(shown) == 8 * choose(trace, plan.microbatches).count
    plan, trace, _ = predicted(2, 2, "interleaved", chunks=2)
    shown = re.findall(r'<text class="t1 l-b[01]"[^>]*>(\d+:\d+)</text>', drawn(plan, trace)[0].rows[0].compute)
    assert {label.split(":")[0] for label in shown} == {"0", "2"}


def test_many_devices_leave_out_replicas_and_say_so() -> None:
    """A plan with many devices shows the maximum number of rows and a note.

    Of 300 replicas of two stages, the first replicas of both stages are shown.
    """
    stages = (PlanStage(("a",), tuple(range(150))), PlanStage(("b",), tuple(range(150, 300))))
    cluster = Cluster("lab", (Level("server", 300, 1e9),), device_type="v100-16gb")
    plan = Plan("flush", "model", 150, 1, stages, cluster)
    trace = Trace.of([Event(d, COMPUTE, "forward 0 #0", Kind.FORWARD, 0, 0, 0.0, 1.0) for d in range(300)])
    rows = rows_of(plan, trace)
    assert len(rows) == module.MOST_ROWS
    assert {0, 1, 150, 151} <= set(rows)
    assert any("172 more devices" in note for note in drawn(plan, trace)[0].notes)


def test_the_legend_names_what_is_there_and_nothing_else(predicted: Callable[..., Any]) -> None:
    """The legend names only the kinds that the timeline contains.

    Recomputation appears only if the plan recomputes, and all-reduce only if stages have replicas.
    """

    def legend(*args: Any, **options: Any) -> set[str]:
        plan, trace, _ = predicted(*args, **options)
        return {meaning for _, meaning in drawn(plan, trace)[0].legend}

    plain = legend()
    assert {"forward", "backward", "send", "receive"} <= plain
    assert legend(4, 8, "gpipe", recompute=True) - plain == {"forward again (recompute)"}
    assert legend(width=2) - plain == {"sum or gather over replicas"}


def test_a_drawing_unit_has_the_seconds_of_the_axis(predicted: Callable[..., Any]) -> None:
    """The page computes times under the cursor from the seconds of one drawing unit."""
    plan, trace, _ = predicted()
    found, _ = drawn(plan, trace)
    assert found.unit_s * WIDTH == pytest.approx(choose(trace, plan.microbatches).seconds)

"""Comparison of a predicted and a measured trace."""

from math import isnan, nan

import pytest

from hocket.program.instruction import Kind
from hocket.program.trace.chrome import parse_trace, trace_json
from hocket.program.trace.compare import ComparedFigure, compare
from hocket.program.trace.trace import Event, Trace
from hocket.program.trace.update_time import update_s


def run(forward_s: float, step_s: float, count: int) -> Trace:
    """A device that runs forwards and steps in turn."""
    events, now = [], 0.0
    for k in range(count):
        events.append(Event(0, "compute", f"forward 0 #{k}", Kind.FORWARD, 0, k, now, now + forward_s))
        now += forward_s
        events.append(Event(0, "compute", f"step 0 u{k}", Kind.STEP, 0, k, now, now + step_s))
        now += step_s
    return Trace.of(events, {0: [(0.0, 100.0 * forward_s)]})


def test_update_seconds() -> None:
    """Seconds between updates are from the later half; nan without two updates."""
    assert update_s(run(2.0, 1.0, 6)) == pytest.approx(3.0)
    assert update_s(run(2.0, 1.0, 2)) == pytest.approx(3.0)
    assert isnan(update_s(run(2.0, 1.0, 1)))
    slow_start = Trace.of([*run(1.0, 0.0, 5).events, Event(0, "compute", "step 0 u9", Kind.STEP, 0, 9, 5.0, 6.0)])
    assert update_s(slow_start) == pytest.approx(1.0)


def test_rows_say_what_differs() -> None:
    """Rows: medians by kind and stage, largest single differences, memory, update."""
    found = compare(run(2.0, 0.5, 3), run(1.6, 0.5, 4), largest=2)
    assert (found.update.predicted, found.update.measured) == (pytest.approx(2.5), pytest.approx(2.1))
    kinds = {row.what: row for row in found.kinds}
    assert kinds["forward 0"].relative_error == pytest.approx(0.25)
    assert kinds["forward 0"].count == 4
    assert kinds["step 0"].relative_error == pytest.approx(0.0)
    assert [row.what for row in found.largest] == ["device 0: forward 0 #0", "device 0: forward 0 #1"]
    assert [(row.predicted, row.measured) for row in found.memory] == [(200.0, 160.0)]
    assert (found.only_predicted, found.only_measured) == (0, 0)
    assert (found.later_predicted, found.later_measured) == (0, 2)
    assert found.rows[0] is found.update
    assert len(found.rows) == 1 + 2 + 1 + 2


def test_measured_peaks_are_in_the_meta() -> None:
    """Measured peaks of memory come from the meta, and invalid ones are left out.

    A run measures only each device's peak, which is compared with the predicted one.
    """
    meta = {"peak_memory_bytes": {"0": 250, "7": 1, "x": 2, "1": "much"}}
    measured = parse_trace(trace_json(Trace.of(run(2.0, 0.5, 3).events, meta=meta)))
    (row,) = compare(run(2.0, 0.5, 3), measured).memory
    assert (row.what, row.predicted, row.measured) == ("memory of device 0", 200.0, 250.0)
    assert row.relative_error == pytest.approx(-0.2)
    assert measured.peak_memory_bytes() == {0: 250.0, 7: 1.0}
    odd = Trace.of((), meta={"peak_memory_bytes": [1]})
    assert odd.peak_memory_bytes() == {}


def test_groups_are_compared_as_devices() -> None:
    """Tensor-parallel groups are compared as devices.

    A measured run of groups of two has a track for each rank. The first rank stands for the group.
    """
    events = [
        Event(device, "compute", f"forward {device // 2} #0", Kind.FORWARD, device // 2, 0, 0.0, 2.0 + device)
        for device in range(4)
    ]
    peaks = {str(device): 10 * device + 1 for device in range(4)}
    measured = Trace.of(events, meta={"tensor": 2, "peak_memory_bytes": peaks})
    predicted = Trace.of(
        [Event(g, "compute", f"forward {g} #0", Kind.FORWARD, g, 0, 0.0, 1.0) for g in range(2)],
        {0: [(0.0, 5.0)], 1: [(0.0, 6.0)]},
    )
    found = compare(predicted, measured)
    assert (found.only_predicted, found.only_measured) == (0, 0)
    assert {row.what: (row.predicted, row.measured) for row in found.kinds} == {
        "forward 0": (1.0, 2.0),
        "forward 1": (1.0, 4.0),
    }
    assert [(row.predicted, row.measured) for row in found.memory] == [(5.0, 11.0), (6.0, 31.0)]
    assert predicted.by_group() is predicted


def test_recomputation_has_a_row_of_its_own() -> None:
    """A recomputed forward has a separate row."""
    events = [
        Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 0.0, 1.0),
        Event(0, "compute", "forward again 0 #0", Kind.FORWARD, 0, 0, 1.0, 3.0),
    ]
    rows = compare(Trace.of(events), Trace.of(events[:1])).kinds
    assert [(row.what, row.predicted) for row in rows] == [("forward 0", 1.0), ("forward again 0", 2.0)]
    assert isnan(rows[1].measured)
    assert rows[1].count == 0


def test_nothing_measured_has_no_error() -> None:
    """A relative error needs two figures that are not negligible."""
    for row in (
        ComparedFigure("x", 0.0, 1.0),
        ComparedFigure("x", 1e-9, 1.0),
        ComparedFigure("x", nan, 1.0),
        ComparedFigure("x", 1.0, nan),
        ComparedFigure("x", 0.0, 0.0),
    ):
        assert isnan(row.relative_error)
    assert isnan(ComparedFigure("x", 1.0, 0.0).relative_error)
    assert compare(Trace.of(()), Trace.of(())).kinds == ()


def test_what_one_trace_lacks_is_not_what_comes_later() -> None:
    """A missing instruction is counted apart from later ones.

    It is missing in the middle, or the other trace has none of its kind.
    """
    whole, holed = run(1.0, 0.5, 6), run(1.0, 0.5, 4)
    holed = Trace.of([e for e in holed.events if e.name not in ("forward 0 #1", "step 0 u0")])
    found = compare(holed, whole)
    assert (found.only_predicted, found.only_measured, found.later_predicted, found.later_measured) == (0, 2, 0, 4)
    other = Event(0, "load", "load 0 #9", Kind.LOAD, 0, 9, 0.0, 1.0)
    back = compare(Trace.of([*whole.events, other]), holed)
    assert (back.only_predicted, back.only_measured, back.later_predicted, back.later_measured) == (3, 0, 4, 0)


def test_a_checkpoint_is_no_time_of_an_update() -> None:
    """Gaps between segments do not count as time of an update.

    Without two updates in any segment there is no figure.
    """
    events, now = [], 0.0
    starts = []
    for segment in range(3):
        starts.append(now)
        for k in range(4):
            events.append(
                Event(0, "compute", f"step 0 u{4 * segment + k}", Kind.STEP, 0, 4 * segment + k, now, now + 2.0)
            )
            now += 2.0
        now += 100.0
    told = parse_trace(trace_json(Trace.of(events, meta={"segments_s": starts})))
    assert told.segments_s == tuple(starts)
    assert update_s(told) == pytest.approx(2.0)
    assert update_s(Trace.of(events)) > 10
    alone = {"segments_s": [event.start_s + 1.0 for event in events]}
    assert isnan(update_s(Trace.of(events, meta=alone)))
    assert Trace.of((), meta={"segments_s": "soon"}).segments_s == ()


def test_a_part_of_a_trace() -> None:
    """A part has the events that start in it, and the memory until its end."""
    trace = run(2.0, 1.0, 3)
    part = trace.part(2.0, 6.0)
    assert [e.name for e in part.events] == ["step 0 u0", "forward 0 #1", "step 0 u1"][: len(part.events)]
    assert [e.name for e in part.events] == [e.name for e in trace.events if 2.0 <= e.start_s < 6.0]
    assert len(part.memory[0][0]) == 1

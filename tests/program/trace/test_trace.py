"""Traces: columns, events, and the text form that viewers open."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InputError
from hocket.program.instruction import Kind
from hocket.program.trace.chrome import parse_trace, read_trace, save_trace, trace_json
from hocket.program.trace.trace import Event, Trace

EVENTS = (
    Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 0.0, 1 / 3),
    Event(0, "send>1", "send 0 #0 act.0>1#0", Kind.SEND, 0, 0, 1 / 3, 0.7),
    Event(1, "receive<0", "receive 0 #0 act.0>1#0", Kind.RECEIVE, 0, 0, 1 / 3, 0.7),
    Event(1, "compute", "forward 1 #0", Kind.FORWARD, 1, 0, 0.7, 0.9),
    Event(1, "compute", "step 1 u0", Kind.STEP, 1, 0, 0.9, 0.9),
)
MEMORY = {0: [(0.0, 100.0), (0.1, 150.0)], 1: [(0.0, 7.0), (0.0, 9.0), (1 / 3, 8.5)]}


def trace() -> Trace:
    """Two devices, five events."""
    return Trace.of(EVENTS, MEMORY, {"source": "measured", "steps": 3})


def test_events_come_back_as_they_went_in() -> None:
    """Columns preserve all properties of the events."""
    found = trace()
    assert found.events == EVENTS
    assert len(found) == 5
    assert found.devices == (0, 1)
    assert found.end == 0.9
    assert found.name(1) == "send 0 #0 act.0>1#0"
    assert found.device.tolist() == [0, 0, 1, 1, 1]
    assert found.peak_memory_bytes() == {0: 150.0, 1: 9.0}


def test_text_and_back(tmp_path: Path) -> None:
    """`from_json` is the inverse of `to_json`, to the last bit, also through a file."""
    found = trace()
    assert parse_trace(trace_json(found)) == found
    save_trace(found, tmp_path / "t.json")
    assert read_trace(tmp_path / "t.json") == found
    empty = Trace.of(())
    assert parse_trace(trace_json(empty)) == empty
    assert empty.end == 0.0


def test_traces_differ_when_anything_does() -> None:
    """Traces differ if events, memory or meta differ."""
    assert trace() != Trace.of(EVENTS[1:], MEMORY, trace().meta)
    assert trace() != Trace.of(EVENTS, {0: MEMORY[0]}, trace().meta)
    assert trace() != Trace.of(EVENTS, MEMORY)
    assert trace() != "trace"


def test_a_background_job_has_a_thread_of_its_own() -> None:
    """Viewers find its spans in microseconds; reading gives the seconds back."""
    found = replace(trace(), background={1: np.array([[0.25, 0.5], [0.6, 0.7]])})
    assert parse_trace(trace_json(found)) == found
    shown = [one for one in json.loads(trace_json(found))["traceEvents"] if one.get("cat") == "background"]
    assert [(one["pid"], one["ts"], one["dur"]) for one in shown] == [
        (1, 250_000.0, 250_000.0),
        (1, 600_000.0, pytest.approx(100_000.0)),
    ]


def test_what_viewers_find() -> None:
    """Viewers find processes, threads, microseconds, counters and arrows.

    A process is a device, a thread is a lane, a counter is memory, and an arrow leads from send to receive.
    """
    data = json.loads(trace_json(trace()))
    events = data["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert names == {"device 0", "device 1", "compute", "send>1", "receive<0"}
    first = next(e for e in events if e["ph"] == "X")
    assert (first["name"], first["ts"], first["pid"]) == ("forward 0 #0", 0.0, 0)
    assert first["dur"] == pytest.approx(1e6 / 3)
    start, finish = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert [(s["id"], s["pid"], f["id"], f["pid"]) for s, f in zip(start, finish, strict=True)] == [(1, 0, 1, 1)]
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == 0] == [100.0, 150.0]
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert len(threads) == 4


def test_an_end_before_its_start_is_refused() -> None:
    """An event with an end before its start is refused."""
    with pytest.raises(InputError, match="backward 1"):
        Trace.of([Event(0, "compute", "backward 1 #0", Kind.BACKWARD, 1, 0, 2.0, 1.0)])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda data: data.pop("traceEvents"), "trace"),
        (lambda data: data.update(traceEvents={}), "trace: traceEvents"),
        (lambda data: data.pop("otherData"), "otherData"),
        (lambda data: data["otherData"].update(format="other"), "otherData.format"),
        (lambda data: data["otherData"].pop("meta"), "otherData.meta"),
        (lambda data: data["traceEvents"][-1].pop("pid"), "traceEvents."),
        (lambda data: data["traceEvents"].append(7), "traceEvents."),
        (lambda data: data["traceEvents"][-1].update(pid=10**30), "traceEvents."),
        (
            lambda data: next(e for e in data["traceEvents"] if e["ph"] == "X")["args"].update(stage=10**30),
            "traceEvents.",
        ),
        (
            lambda data: next(e for e in data["traceEvents"] if e["ph"] == "X")["args"].update(index=-(10**30)),
            "traceEvents.",
        ),
        (lambda data: data["traceEvents"].append({"ph": "X", "pid": 0, "tid": 99}), "traceEvents."),
    ],
)
def test_foreign_files_are_refused(change: object, place: str) -> None:
    """Files that hocket did not write are refused, with the place."""
    data = json.loads(trace_json(trace()))
    change(data)  # type: ignore[operator]
    with pytest.raises(InputError) as error:
        parse_trace(json.dumps(data))
    assert place in error.value.place


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        ("{", "t.json, line 1", "an end inside the document"),
        ("# Hocket\n\nA text.\n", "t.json, line 1", "'# Hocket'"),
        ("", "t.json", "an empty file"),
        ("strategy: flush\nstages: []\n", "t.json", "what seems to be a plan"),
        ('{"layers": [], "tensors": []}', "t.json", "what seems to be a profile"),
        ("[]", "t.json", "a list"),
        ("7", "t.json", "a number"),
        (b"\xce", "t.json", "byte 0xce at 0"),
    ],
)
def test_no_trace_is_refused(text: str | bytes, place: str, found: str) -> None:
    """For a file that is not a trace, the error says what it seems to be.

    It also names the commands that write a trace.
    """
    with pytest.raises(InputError) as error:
        parse_trace(text, "t.json")
    assert (error.value.place, error.value.found) == (place, found)
    assert error.value.expected.startswith("a trace")
    assert "hocket simulate PLAN --trace FILE" in error.value.next_step
    assert "hocket train JOB PLAN --trace FILE" in error.value.next_step

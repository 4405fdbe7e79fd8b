"""Tests of the measured trace."""

from pathlib import Path

from hocket.program.instruction import Kind
from hocket.run.board import Board
from hocket.run.measured import met, write_trace
from hocket.trace.trace import Event, Trace


def test_a_transfer_begins_when_both_sides_are_ready() -> None:
    """A receive that was posted early, and a send that was, begin with the later of the two; compute stays."""
    early_receive = Event(1, "receive<0", "receive 0 #0 act.0>1#0", Kind.RECEIVE, 0, 0, 0.0, 5.0)
    late_send = Event(0, "send>1", "send 0 #0 act.0>1#0", Kind.SEND, 0, 0, 4.0, 5.0)
    early_send = Event(1, "send>0", "send 0 #0 grad.0>1#0", Kind.SEND, 0, 0, 6.0, 9.0)
    late_receive = Event(0, "receive<1", "receive 0 #0 grad.0>1#0", Kind.RECEIVE, 0, 0, 8.0, 9.0)
    forward = Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 1.0, 4.0)
    found = met([early_receive, late_send, early_send, late_receive, forward])
    assert [event.start_s for event in found] == [4.0, 4.0, 8.0, 8.0, 1.0]
    assert all(event.end_s >= event.start_s for event in found)


def test_the_trace_knows_the_measured_peaks(tmp_path: Path) -> None:
    """What each device held at most stands in the trace's meta, beside what the trace is of; nothing else is left there."""
    event = Event(3, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 1.0, 4.0)
    write_trace(tmp_path / "trace.json", [event], Board(None, 0, 1), {"source": "measured"}, 3, 12345)
    found = Trace.read(tmp_path / "trace.json")
    assert found.meta == {"source": "measured", "peak_memory_bytes": {"3": 12345}}
    assert [(e.start_s, e.end_s) for e in found.events] == [(0.0, 3.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]

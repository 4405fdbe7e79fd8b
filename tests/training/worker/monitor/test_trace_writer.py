"""Tests of the measured trace."""

from pathlib import Path

from hocket.program.instruction import Instruction, Kind
from hocket.program.program import Program, StageShape
from hocket.program.trace.chrome import read_trace
from hocket.program.trace.trace import Event
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.progress.recording import Recording
from hocket.strategies.base.strategy import compile_strategy
from hocket.training.worker.monitor.trace_writer import met, write_trace

PROGRAM: Program = compile_strategy("data_parallel", (StageShape(devices=(3,), batch=True),), 1, {})
FORWARD = Instruction(Kind.FORWARD, 0, 0, 3, "compute")


def recorded(most: int, *segments: list[tuple[float, float]]) -> Recording:
    """Return a recording of device 3 with forwards in the given segments.

    Each segment has one period.
    """
    found = Recording(PROGRAM, 3, most)
    for times in segments:
        found.add([(FORWARD, *each) for each in times], 1)
    return found


def test_a_transfer_begins_when_both_sides_are_ready() -> None:
    """A transfer begins when both sides are ready.

    This is the later start of its send and its receive. Compute events are unchanged.
    """
    early_receive = Event(1, "receive<0", "receive 0 #0 act.0>1#0", Kind.RECEIVE, 0, 0, 0.0, 5.0)
    late_send = Event(0, "send>1", "send 0 #0 act.0>1#0", Kind.SEND, 0, 0, 4.0, 5.0)
    early_send = Event(1, "send>0", "send 0 #0 grad.0>1#0", Kind.SEND, 0, 0, 6.0, 9.0)
    late_receive = Event(0, "receive<1", "receive 0 #0 grad.0>1#0", Kind.RECEIVE, 0, 0, 8.0, 9.0)
    forward = Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 1.0, 4.0)
    found = met([early_receive, late_send, early_send, late_receive, forward])
    assert [event.start_s for event in found] == [4.0, 4.0, 8.0, 8.0, 1.0]
    assert [event.end_s for event in found] == [5.0, 5.0, 9.0, 9.0, 4.0]
    assert all(event.end_s >= event.start_s for event in found)


def test_a_transfer_begins_behind_the_one_before_it_and_ends_when_either_side_knows() -> None:
    """A transfer begins after the previous one and ends at the first known end.

    Both transfers are posted at once. The first receive is polled late, and the second begins at the end of the first.
    """
    events = [
        Event(0, "send>1", "send 0 #0 act.0>1#0", Kind.SEND, 0, 0, 1.0, 3.0),
        Event(0, "send>1", "send 0 #1 act.0>1#1", Kind.SEND, 0, 1, 1.5, 5.0),
        Event(1, "receive<0", "receive 0 #0 act.0>1#0", Kind.RECEIVE, 0, 0, 0.0, 8.0),
        Event(1, "receive<0", "receive 0 #1 act.0>1#1", Kind.RECEIVE, 0, 1, 0.0, 9.0),
    ]
    assert [(e.start_s, e.end_s) for e in met(events)] == [(1.0, 3.0), (3.0, 5.0), (1.0, 3.0), (3.0, 5.0)]


def test_members_of_groups_meet_their_counterparts() -> None:
    """Members of groups exchange data with their counterparts.

    In groups of two, device 0 sends to device 2, and device 1 to device 3. The transfers have the same name but
    different times.
    """
    events = [
        Event(device, lane, f"{kind} 0 #0 act.0>1#0", kind, 0, 0, start_s + device % 2 * 10, end_s + device % 2 * 10)
        for device in range(4)
        for lane, kind, start_s, end_s in (
            [("send>1", Kind.SEND, 4.0, 5.0)] if device < 2 else [("receive<0", Kind.RECEIVE, 0.0, 6.0)]
        )
    ]
    found = [(e.device, e.start_s, e.end_s) for e in met(events, members=2)]
    assert found == [(0, 4.0, 5.0), (1, 14.0, 15.0), (2, 4.0, 5.0), (3, 14.0, 15.0)]


def test_the_trace_knows_the_measured_peaks(tmp_path: Path) -> None:
    """The trace's meta has the measured memory peak of each device.

    It also has the meta given by the caller. No other file is left.
    """
    recording = recorded(100, [(1.0, 4.0)])
    write_trace(tmp_path / "trace.json", recording, KVExchange(None, 0, 1), {"source": "measured"}, 12345)
    found = read_trace(tmp_path / "trace.json")
    assert found.meta == {"source": "measured", "peak_memory_bytes": {"3": 12345}}
    assert [(e.start_s, e.end_s) for e in found.events] == [(0.0, 3.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_the_trace_knows_what_a_device_held_while_it_was_looked_at(tmp_path: Path) -> None:
    """The trace has the recorded memory curve of a device.

    Its times are on the clock of the events. A sample before the first event is left out. The peak is the run's
    peak, not the maximum of the curve.
    """
    course = [(0.5, 1.0), (1.0, 2.0), (2.5, 9.0)]
    write_trace(tmp_path / "t.json", recorded(9, [(1.0, 4.0)]), KVExchange(None, 0, 1), {}, 12, course)
    found = read_trace(tmp_path / "t.json")
    assert {d: [row.tolist() for row in series] for d, series in found.memory.items()} == {3: [[0.0, 1.5], [2.0, 9.0]]}
    assert found.peak_memory_bytes() == {3: 12.0}


def test_the_trace_is_of_all_segments(tmp_path: Path) -> None:
    """The trace contains all segments, with continued numbering.

    It has the start of each segment. A single segment has no such entry.
    """
    write_trace(
        tmp_path / "t.json", recorded(9, [(2.0, 3.0)], [(5.0, 6.0)], [(9.0, 9.5)]), KVExchange(None, 0, 1), {}, 1
    )
    found = read_trace(tmp_path / "t.json")
    assert [(e.name, e.start_s) for e in found.events] == [
        ("forward 0 #0", 0.0),
        ("forward 0 #1", 3.0),
        ("forward 0 #2", 7.0),
    ]
    assert found.segments_s == (0.0, 3.0, 7.0)
    assert "left_out" not in found.meta
    write_trace(tmp_path / "one.json", recorded(9, [(2.0, 3.0)]), KVExchange(None, 0, 1), {}, 1)
    assert "segments_s" not in read_trace(tmp_path / "one.json").meta


def test_of_a_long_run_the_end_is_kept(tmp_path: Path) -> None:
    """Only the end of a long run is kept.

    Older events are counted, not kept. The truncated segment begins with the trace.
    """
    recording = recorded(3, [(0.0, 1.0)], [(2.0, 3.0), (4.0, 5.0)], [(6.0, 7.0), (8.0, 9.0)])
    write_trace(tmp_path / "t.json", recording, KVExchange(None, 0, 1), {}, 1)
    found = read_trace(tmp_path / "t.json")
    assert [e.start_s for e in found.events] == [0.0, 2.0, 4.0]
    assert found.segments_s == (0.0, 2.0)
    assert found.meta["left_out"] == 2

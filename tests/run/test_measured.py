"""Tests of the measured trace."""

from hocket.program.instruction import Kind
from hocket.run.measured import met
from hocket.trace.trace import Event


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

"""Bringing instructions together where there are too many."""

from hypothesis import given
from hypothesis import strategies as st

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.trace.trace import Event
from hocket.reporting.charts.merge_events import blocks_of, smallest_s


@st.composite
def lanes(draw: st.DrawFn) -> list[Event]:
    """Draw the successive instructions of one lane.

    Some have gaps between them, and some have a duration of 0.
    """
    found, now = [], 0.0
    for m in range(draw(st.integers(0, 60))):
        now += draw(st.sampled_from([0.0, 0.0, 0.01, 3.0]))
        length = draw(st.sampled_from([0.0, 0.01, 0.1, 1.0]))
        found.append(Event(0, COMPUTE, f"forward 0 #{m}", Kind.FORWARD, 0, m, now, now + length))
        now += length
    return found


@given(lanes(), st.sampled_from([0.0, 0.05, 0.5, 5.0]))
def test_no_event_is_lost_or_moved(events: list[Event], smallest: float) -> None:
    """Blocks contain all events in order.

    A block lasts from the start of its first event to the latest end of its events.
    """
    blocks = blocks_of(events, smallest)
    assert [e for block in blocks for e in block.events] == events
    for block in blocks:
        assert (block.start_s, block.end_s) == (block.events[0].start_s, max(e.end_s for e in block.events))
        assert len(block.events) == 1 or all(e.end_s - e.start_s < smallest for e in block.events)


@given(lanes())
def test_without_a_limit_every_event_is_its_own_block(events: list[Event]) -> None:
    """A limit of zero brings nothing together."""
    assert [block.events for block in blocks_of(events, 0.0)] == [(e,) for e in events]


def test_the_limit_grows_until_all_fit() -> None:
    """A thousand instructions become at most fifty blocks; fifty stay separate."""
    events = [Event(0, COMPUTE, f"forward 0 #{m}", Kind.FORWARD, 0, m, m * 1.0, m + 1.0) for m in range(1000)]
    limit = smallest_s([events], 50, 0.1, 1000.0)
    assert 1 <= len(blocks_of(events, limit)) <= 50
    assert smallest_s([events[:50]], 50, 0.1, 1000.0) == 0

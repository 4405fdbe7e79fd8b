"""Merge short events of a lane, so that a drawing has a bounded number of blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hocket.program.trace.trace import Event


@dataclass(frozen=True)
class MergedEvents:
    """One or more adjacent events of a lane that are drawn as one."""

    start_s: float
    end_s: float
    events: tuple[Event, ...]


def blocks_of(events: Sequence[Event], smallest_s: float) -> list[MergedEvents]:
    """Group the events of one lane into blocks to draw.

    Adjacent events shorter than `smallest_s` seconds are merged into blocks of about that length. With 0, every event
    is a block of its own.

    Arguments:
        events: events of the lane, in time order.
    """
    found: list[MergedEvents] = []
    run: list[Event] = []

    def close() -> None:
        if run:
            found.append(MergedEvents(run[0].start_s, max(e.end_s for e in run), tuple(run)))
            run.clear()

    for event in events:
        if event.end_s - event.start_s >= smallest_s > 0 or smallest_s == 0:
            close()
            found.append(MergedEvents(event.start_s, event.end_s, (event,)))
            continue
        if run and (event.start_s - run[-1].end_s > smallest_s or run[-1].end_s - run[0].start_s >= smallest_s):
            close()
        run.append(event)
    close()
    return found


def smallest_s(lanes: Iterable[Sequence[Event]], most: int, finest_s: float, span_s: float) -> float:
    """Find the least duration of an event that is drawn as a block of its own.

    Shorter events are merged (`blocks_of`), so that all lanes together have at most `most` blocks.

    Arguments:
        lanes: events of each lane, in time order.
        finest_s: first duration to try, in seconds.
        span_s: the search ends at the first duration above this; there may then be more than `most` blocks.

    Returns:
        Seconds; 0 if every event can be a block of its own.
    """
    lanes = list(lanes)
    smallest = 0.0
    while sum(len(blocks_of(lane, smallest)) for lane in lanes) > most:
        smallest = smallest * 1.5 or finest_s
        if smallest > span_s:
            break
    return smallest

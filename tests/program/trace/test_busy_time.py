"""Busy seconds: overlaps count once, waiting does not count, iterations are whole."""

import numpy as np
import pytest

from hocket.program.instruction import Kind
from hocket.program.trace.busy_time import active_s, once
from hocket.program.trace.trace import Event, Trace


def event(kind: Kind, index: int, start_s: float, end_s: float, device: int = 0, lane: str = "compute") -> Event:
    """One instruction of stage 0."""
    return Event(device, lane, f"{kind} 0 #{index}", kind, 0, index, start_s, end_s)


def iteration(index: int, at_s: float) -> list[Event]:
    """An iteration of ten seconds.

    Forward and backward overlap with a message that arrives and a sum. The step ends the iteration.
    """
    return [
        event(Kind.LOAD, index, at_s, at_s + 1),
        event(Kind.FORWARD, index, at_s + 1, at_s + 3),
        event(Kind.SEND, index, at_s + 2, at_s + 4, lane="send>1"),
        event(Kind.BACKWARD, index, at_s + 5, at_s + 7),
        event(Kind.ALL_REDUCE, index, at_s + 6, at_s + 9, lane="reduce@0,1"),
        event(Kind.STEP, index, at_s + 9, at_s + 10),
        # The other device is there for the sum from the beginning, and waits.
        event(Kind.ALL_REDUCE, index, at_s, at_s + 9, device=1, lane="reduce@0,1"),
    ]


def test_what_happens_at_once_counts_once_and_waiting_not() -> None:
    """Overlapping events count once, and waiting does not count.

    The first device is busy for three seconds of forward and message, and five from the backward to the step. The other
    device is busy for three seconds of the sum.
    """
    events = [e for k in range(4) for e in iteration(k, 10.0 * k)]
    assert active_s(Trace.of(events)) == pytest.approx({0: 8.0, 1: 3.0})


def test_a_single_iteration_is_the_whole_trace() -> None:
    """A single iteration is the whole trace: no earlier update marks its start."""
    assert active_s(Trace.of(iteration(0, 5.0))) == pytest.approx({0: 8.0, 1: 3.0})


def test_between_segments_nothing_is_counted() -> None:
    """Time between two segments does not count.

    A checkpoint lies between the second and the third iteration, and something that is not training runs there.
    """
    events = [e for k, at in enumerate((0.0, 10.0, 100.0, 110.0)) for e in iteration(k, at)]
    events.append(event(Kind.SEND, 9, 30.0, 90.0, lane="send>1"))
    assert active_s(Trace.of(events, meta={"segments_s": [0.0, 100.0]})) == pytest.approx({0: 8.0, 1: 3.0})


def test_each_moment_of_a_device_counts_once() -> None:
    """Each moment of a device counts once, for the lane with the earliest instruction.

    Instructions overlap, or one is inside another.
    """
    device = np.array([0, 0, 0, 1, 0])
    start_s, end_s = np.array([0.0, 1.0, 4.0, 1.0, 1.5]), np.array([2.0, 3.0, 5.0, 2.0, 1.8])
    begun_s, some = once(device, start_s, end_s)
    assert some.tolist() == [True, True, True, True, False]
    assert begun_s[some].tolist() == [0.0, 2.0, 4.0, 1.0]

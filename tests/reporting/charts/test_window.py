"""Choice of the drawn part of a trace."""

from collections.abc import Callable
from typing import Any

import pytest

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.trace.trace import Event, Trace
from hocket.reporting.charts.window import MOST_ITERATIONS, batch_starts, choose


def made(batches: int, microbatches: int = 2, device: int = 0) -> Trace:
    """Return a trace of one device that runs batch after batch.

    It starts at 100 s. Each forward and each backward takes one second.
    """
    events = []
    for m in range(batches * microbatches):
        for k, kind in enumerate((Kind.FORWARD, Kind.BACKWARD)):
            begin = 100.0 + 2 * m + k
            events.append(Event(device, COMPUTE, f"{kind} 0 #{m}", kind, 0, m, begin, begin + 1))
    return Trace.of(events)


def test_batches_start_with_their_first_forward() -> None:
    """Two microbatches of two seconds each make a batch of four seconds."""
    assert batch_starts(made(3), 2) == [100.0, 104.0, 108.0]


@pytest.mark.parametrize(("batches", "first", "count"), [(1, 0, 1), (2, 0, 1), (3, 1, 1), (4, 1, 2), (9, 3, 3)])
def test_the_window_is_whole_iterations_out_of_the_middle(batches: int, first: int, count: int) -> None:
    """The window omits the first and last iteration if there are others.

    It has at most MOST_ITERATIONS.
    """
    window = choose(made(batches), 2)
    assert (window.first, window.count, window.total) == (first, count, batches)
    assert (window.start_s, window.seconds) == (100.0 + 4 * first, 4.0 * count)
    assert count <= MOST_ITERATIONS


def test_crowded_iterations_are_drawn_singly() -> None:
    """Two hundred blocks an iteration leave no room for a second."""
    assert choose(made(9, 100), 100).count == 1


def test_a_span_that_matters_is_inside() -> None:
    """The window ends with the iteration in which the span ends."""
    window = choose(made(9), 2, count=1, around_s=(117.0, 119.5))
    assert window.start_s <= 117.0
    assert window.end_s >= 119.5


def test_a_span_in_the_last_iteration_is_inside_too() -> None:
    """The window then ends with the span, not with an iteration."""
    window = choose(made(9), 2, around_s=(132.5, 134.0))
    assert (window.start_s, window.end_s) == (124.0, 134.0)
    assert (window.first, window.count) == (6, 3)


def test_the_events_are_those_that_run_in_it() -> None:
    """The events of a window are the instructions that run in it.

    Here they are two instructions for each of two microbatches. Neighbouring instructions that only touch the window
    are left out.
    """
    trace = made(5)
    window = choose(trace, 2, count=1)
    assert [e.name for e in window.events(trace)] == [
        f"{kind} 0 #{m}" for m in (2 * window.first, 2 * window.first + 1) for kind in ("forward", "backward")
    ]


def test_an_empty_trace_has_a_window() -> None:
    """An empty trace has a window of one second."""
    window = choose(Trace.of([]), 4)
    assert window.seconds == 1
    assert window.events(Trace.of([])) == []


def test_it_says_what_it_shows(predicted: Callable[..., Any]) -> None:
    """The description counts iterations from 1.

    It names a steady state only after the first iteration.
    """
    assert choose(made(4), 2).describe() == "iterations 2 to 3 of 4, the steady state"
    assert choose(made(2), 2).describe() == "iteration 1 of 2"
    assert choose(made(1), 2).describe() == "the whole trace, one iteration"
    plan, trace, _ = predicted()
    assert choose(trace, plan.microbatches).total == len(batch_starts(trace, plan.microbatches))


def test_of_a_run_with_checkpoints_a_segment_is_drawn() -> None:
    """The window of a run with checkpoints lies in the longest segment.

    The numbers of its iterations count from the start of the run.
    """
    events, starts, batch = [], [], 0
    for begin, batches in ((0.0, 2), (1000.0, 5), (2000.0, 3)):
        starts.append(begin)
        for k in range(2 * batches):
            m = 2 * batch + k
            events.append(Event(0, COMPUTE, f"forward 0 #{m}", Kind.FORWARD, 0, m, begin + k, begin + k + 1))
        batch += batches
    trace = Trace.of(events, meta={"segments_s": starts})
    window = choose(trace, 2)
    assert (window.start_s, window.end_s) == (1002.0, 1008.0)
    assert (window.first, window.count, window.total) == (3, 3, 10)
    assert window.describe() == "iterations 4 to 6 of 10, the steady state"
    assert choose(trace, 2, 9).count == 5

"""Replay of a run without waits for cores: the ends of its events."""

from collections.abc import Callable

import numpy as np
import pytest

from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace
from hocket.program.trace.without_queues import ends_without_waits
from tests.program.trace.schedules import Waits, pipeline, replicas

UPDATES = 6
Run = Callable[..., Trace]


@pytest.mark.parametrize("run", [pipeline, replicas])
def test_without_waits_nothing_moves(run: Run) -> None:
    """A run without waits stays the same, to the last bit."""
    trace = run(UPDATES)
    assert ends_without_waits(trace).tolist() == trace.end_s.tolist()


@pytest.mark.parametrize("run", [pipeline, replicas])
@pytest.mark.parametrize(
    "waits",
    [
        {(0, "forward 0 #2"): 0.7},
        {(0, "backward 0 #4"): 3.0},
        {(0, "step 0 u1"): 0.4, (1, "backward 1 #5"): 1.5, (1, "backward 0 #3"): 0.9},
        {(0, f"{kind} 0 #{k}"): 0.1 * (k + 1) for kind in ("forward", "backward") for k in range(8)},
    ],
)
def test_what_is_left_is_the_run_that_had_none(run: Run, waits: Waits) -> None:
    """Removing waits gives the run that had none.

    Waits are on one device or on both, and made other instructions wait as well.
    """
    waited, without = run(UPDATES, waits), run(UPDATES)
    assert waited.queued_s.sum() > 0
    ends = dict(zip(names(waited), ends_without_waits(waited), strict=True))
    for name, end_s in zip(names(without), without.end_s, strict=True):
        assert ends[name] == pytest.approx(end_s), name


def test_a_wait_in_a_bubble_costs_nothing() -> None:
    """A wait in a bubble moves only its own event.

    The last stage waits for a core while its message is still on its way.
    """
    events = [
        Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 0.0, 4.0),
        Event(1, "compute", "step 1 u0", Kind.STEP, 1, 0, 0.0, 2.0, 1.0),
        Event(0, "send>1", "send 0 #0 act.0>1#0", Kind.SEND, 0, 0, 4.0, 5.0),
        Event(1, "receive<0", "receive 0 #0 act.0>1#0", Kind.RECEIVE, 0, 0, 4.0, 5.0),
        Event(1, "compute", "forward 1 #0", Kind.FORWARD, 1, 0, 5.0, 6.0),
    ]
    assert ends_without_waits(Trace.of(events)).tolist() == [4.0, 1.0, 5.0, 5.0, 6.0]


def test_a_sum_that_began_inside_a_backward_moves_with_it() -> None:
    """A sum that began half-way through a backward stays half-way.

    The second sum waits for the first on its lane, and keeps its length.
    """
    events = [
        Event(0, "compute", "backward 0 #0", Kind.BACKWARD, 0, 0, 0.0, 4.0, 2.0),
        Event(0, "reduce@0", "all_reduce 0 u0 sum.0u0b0", Kind.ALL_REDUCE, 0, 0, 2.0, 5.0),
        Event(0, "reduce@0", "all_reduce 0 u0 sum.0u0b1", Kind.ALL_REDUCE, 0, 0, 5.0, 6.0),
        Event(0, "compute", "step 0 u0", Kind.STEP, 0, 0, 6.0, 7.0),
    ]
    assert ends_without_waits(Trace.of(events)).tolist() == [2.0, 4.0, 5.0, 6.0]


def test_no_event_ends_before_what_it_waited_for() -> None:
    """No event ends before the events that it waited for, for any length of waits."""
    events = [
        Event(0, "compute", "forward 0 #0", Kind.FORWARD, 0, 0, 0.0, 1.0),
        Event(0, "compute", "step 0 u0", Kind.STEP, 0, 0, 1.0, 2.0, 50.0),
    ]
    assert ends_without_waits(Trace.of(events)).tolist() == [1.0, 1.0]
    assert ends_without_waits(Trace.of(())).tolist() == np.zeros(0).tolist()


def names(trace: Trace) -> list[tuple[int, str, str]]:
    """Description of each event, in the trace's own order."""
    return [(*trace.lanes[trace.lane[k]], trace.name(k)) for k in range(len(trace))]

"""Gradient sums beside backwards, found in a trace by the names of its events."""

import pytest

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.trace.overlap import summed_backward, updates_with_sums, usual
from hocket.program.trace.trace import Event, Trace

LANE = "reduce@0,1"


def update(number: int, begin_s: float, slow: float = 1.0) -> list[Event]:
    """Two microbatches on device 0 and the events after them.

    There are 4 s of the last backward, two sums of 3 s, a norm and a step.
    """
    m, u = 2 * number, number
    sums = [(begin_s + 3, begin_s + 3 + 3 * slow), (begin_s + 3 + 3 * slow, begin_s + 3 + 6 * slow)]
    end_s = sums[1][1]
    return [
        Event(0, COMPUTE, f"backward 0 #{m}", Kind.BACKWARD, 0, m, begin_s - 4, begin_s),
        Event(0, COMPUTE, f"backward 0 #{m + 1}", Kind.BACKWARD, 0, m + 1, begin_s, begin_s + 4),
        *(
            Event(0, LANE, f"all_reduce 0 u{u} sum.0u{u}b{b}", Kind.ALL_REDUCE, 0, u, start_s, stop_s)
            for b, (start_s, stop_s) in enumerate(sums)
        ),
        Event(0, COMPUTE, f"forward 1 #{m}", Kind.FORWARD, 1, m, begin_s + 4.5, begin_s + 5.5),
        Event(0, LANE, f"all_reduce 0 u{u} norm.0u{u}", Kind.ALL_REDUCE, 0, u, end_s, end_s + 0.5),
        Event(0, COMPUTE, f"step 0 u{u}", Kind.STEP, 0, u, end_s + 0.5, end_s + 1),
    ]


def test_a_sum_is_hidden_where_the_device_computes() -> None:
    """A sum is hidden while its device computes, also by other computation.

    Seconds count from the last backward's start. A norm's sum is not a gradient sum.
    """
    found = summed_backward(Trace.of(update(0, 100.0)), (2,), 0, 0)
    assert found is not None
    assert [(p.microbatch, p.start_s, p.end_s) for p in found.pieces] == [(1, 0.0, 4.0)]
    assert [(s.bucket, s.start_s, s.end_s, s.hidden_s) for s in found.sums] == [(0, 3.0, 6.0, 2.0), (1, 6.0, 9.0, 0.0)]
    assert found.others == ((4.5, 5.5),)
    assert (found.start_s, found.seconds, found.backward_s, found.sums_s, found.exposed_s) == (
        100.0,
        9.0,
        4.0,
        6.0,
        4.0,
    )


def test_of_a_run_the_median_of_the_later_half_is_usual() -> None:
    """The usual update of a run is the median of its later half.

    Of six updates, the first three do not count; of the others, with 9, 12 and 30 s, the middle one is used.
    """
    slowness = [5.0, 5.0, 5.0, 5.0, 1.0, 1.5]
    trace = Trace.of(e for n, slow in enumerate(slowness) for e in update(n, 100.0 * n + 10, slow))
    assert list(updates_with_sums(trace, 0)) == list(range(6))
    found = usual(trace, (2,), 0)
    assert found is not None
    assert (found.update, found.seconds) == (5, 12.0)


@pytest.mark.parametrize("left", [Kind.BACKWARD, Kind.ALL_REDUCE])
def test_what_was_not_kept_is_not_made_up(left: Kind) -> None:
    """Without backwards, sums or the device, the result is None."""
    trace = Trace.of(e for e in update(0, 10.0) if e.kind is not left)
    assert summed_backward(trace, (2,), 0, 0) is None
    assert usual(trace, (2,), 0) is None
    assert usual(trace, (2,), 1) is None
    assert usual(Trace.of([]), (2,), 0) is None

"""Tests of steps, periods and segments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.runtime.progress.segments import RunSegment, SegmentCounts, last_step, segments, stop_in

# As compiled programs are: the prologue holds whole periods.
PACES = st.builds(
    lambda stride, periods, microbatches: SegmentCounts(stride * periods, stride, microbatches),
    st.integers(1, 12),
    st.integers(0, 6),
    st.integers(1, 12),
)


def test_a_synchronous_program_has_a_period_a_step() -> None:
    """A synchronous program has one period for each step.

    A period is a batch, so nothing is rounded.
    """
    pace = SegmentCounts(admitted=0, stride=4, microbatches=4)
    found = list(segments(pace, 10, 20, 4))
    assert found == [RunSegment(10, 4, 0, 4), RunSegment(14, 4, 4, 4), RunSegment(18, 2, 8, 2)]


def test_an_asynchronous_program_is_rounded_up() -> None:
    """The steps of an asynchronous program are rounded up.

    PipeDream 2-1 admits 4 microbatches, and then 2 in each period. With 3 microbatches in a step, only even numbers of
    steps are possible.
    """
    pace = SegmentCounts(admitted=4, stride=2, microbatches=3)
    assert [pace.steps(periods) for periods in range(6)] == [None, 2, None, None, 4, None]
    assert list(segments(pace, 0, 1, None)) == [RunSegment(0, 2, 0, 1)]
    assert list(segments(pace, 0, 3, None)) == [RunSegment(0, 4, 0, 4)]


@given(PACES, st.integers(0, 50), st.integers(1, 60), st.none() | st.integers(1, 20))
def test_segments_follow_each_other_and_hold_whole_steps(
    pace: SegmentCounts, start: int, more: int, every: int | None
) -> None:
    """Segments follow each other and have whole steps.

    Each segment has a number of steps that the program can express. Together they reach the end.
    """
    found = list(segments(pace, start, start + more, every))
    step, period = start, 0
    for segment in found:
        assert (segment.first_step, segment.first_period) == (step, period)
        assert pace.steps(segment.periods) == segment.steps
        assert segment.steps >= min(every or more, start + more - step)
        step, period = segment.end_step, segment.end_period
    assert step >= start + more
    assert found[-1].first_step < start + more
    assert last_step(pace, start, start + more, every) == step
    assert last_step(pace, start, start, every) == start


@given(PACES, st.integers(0, 50), st.integers(1, 60), st.none() | st.integers(1, 20), st.integers(1, 20))
def test_segments_end_where_something_follows(
    pace: SegmentCounts, start: int, more: int, every: int | None, evaluates: int
) -> None:
    """Segments end for checkpoints and for evaluations, each at the first possible step from where it is due.

    An evaluation is due at each multiple of a number of steps, also after a resume, and at the end. Without
    evaluations there are none, and checkpoints are due as before.
    """
    found = list(segments(pace, start, start + more, every, evaluates))
    for segment in found:
        due = segment.end_step // evaluates > segment.first_step // evaluates
        assert segment.evaluates == (due or segment is found[-1])
        assert segment.saves or segment.evaluates
    assert found[-1].saves
    assert last_step(pace, start, start + more, every, evaluates) == found[-1].end_step
    assert all(not one.evaluates and one.saves for one in segments(pace, start, start + more, every))
    saved = start
    for segment in found[:-1]:
        assert segment.saves == (every is not None and segment.end_step - saved >= every)
        saved = segment.end_step if segment.saves else saved


@given(PACES, st.integers(1, 40), st.integers(0, 200), st.integers(0, 300))
def test_a_stop_never_cuts_a_step(pace: SegmentCounts, steps: int, first_period: int, stop_at: int) -> None:
    """A stop never cuts a step.

    The segment ends with a whole step, not before the requested period and not after its own end.
    """
    periods = pace.periods_for(steps)
    segment = RunSegment(0, pace.steps(periods) or 0, first_period, periods)
    found = stop_in(pace, segment, stop_at)
    assert found <= periods
    assert pace.steps(found) is not None
    assert first_period + found >= min(stop_at, segment.end_period)


def test_a_program_that_cannot_end_with_a_step() -> None:
    """A program that cannot end with a whole step is refused.

    An odd prologue before even periods never gives whole steps of two.
    """
    with pytest.raises(InputError, match="expected a number of periods with whole steps of 2 microbatches"):
        SegmentCounts(admitted=1, stride=2, microbatches=2).periods_for(3)

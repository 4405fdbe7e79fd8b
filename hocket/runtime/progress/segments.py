"""Steps, periods and segments: convert a number of steps to runs of a program.

A step is `plan.batch_size` samples, that is `microbatches` microbatches. A run of a program is a segment: prologue,
some periods, epilogue. An asynchronous pipeline cannot be cut in the middle, because its stages have weights of
different versions. It is drained at the end of a segment. Checkpoints are possible only there. In the next segment the
update rule starts again from version 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from hocket.errors import InputError


@dataclass(frozen=True)
class SegmentCounts:
    """Counts of a program and its plan: microbatches, periods and steps.

    Attributes:
        admitted: microbatches that prologue and epilogue admit.
        stride: microbatches that each period admits.
        microbatches: microbatches of one step.
    """

    admitted: int
    stride: int
    microbatches: int

    def steps(self, periods: int) -> int | None:
        """Number of steps in a segment of `periods` periods; None if it ends in a step."""
        whole, rest = divmod(self.admitted + periods * self.stride, self.microbatches)
        return None if rest else whole

    def periods_from(self, periods: int) -> int:
        """Find the least number of periods, at least `periods`, that gives whole steps.

        Raises:
            InputError: no number of periods gives whole steps.
        """
        # Microbatches modulo a step repeat after this many periods, so later periods need not be tried.
        for more in range(lcm(self.stride, self.microbatches) // self.stride):
            if self.steps(periods + more) is not None:
                return periods + more
        found = f"a program of {self.admitted} microbatches and then {self.stride} in each period"
        expected = f"a number of periods with whole steps of {self.microbatches} microbatches"
        raise InputError("plan", found, expected, "Change the number of microbatches.")

    def periods_for(self, steps: int) -> int:
        """Find the least number of periods that gives whole steps, at least `steps`."""
        missing = steps * self.microbatches - self.admitted
        return self.periods_from(max(0, -(-missing // self.stride)))


@dataclass(frozen=True)
class RunSegment:
    """One run of the program.

    Attributes:
        first_step: number of steps trained before this segment.
        steps: number of steps trained in this segment.
        first_period: number of periods completed before this segment, in all segments since the launch.
        periods: number of periods in this segment.
        saves: True if a checkpoint follows the segment.
        evaluates: True if an evaluation follows the segment.
    """

    first_step: int
    steps: int
    first_period: int
    periods: int
    saves: bool = True
    evaluates: bool = False

    @property
    def end_step(self) -> int:
        """Number of steps trained at the segment's end."""
        return self.first_step + self.steps

    @property
    def end_period(self) -> int:
        """Number of periods completed at the segment's end, since the launch."""
        return self.first_period + self.periods


def segments(
    pace: SegmentCounts, start: int, end: int, every: int | None, evaluates: int | None = None
) -> Iterator[RunSegment]:
    """Yield consecutive segments that train from step `start` to step `end`.

    A segment is one run of the program: prologue, periods, epilogue. It ends with a whole step. The last segment may
    end after step `end`: prologue, epilogue and whole periods together may train more steps than are left.

    Arguments:
        start: number of steps that are already trained.
        end: number of steps to train in total.
        every: least number of steps between two checkpoints; None for a checkpoint at the end only.
        evaluates: number of steps that the steps of evaluations are multiples of, as far as the program allows; None
            for no evaluations. There is one at the end.
    """
    step, period, save = start, 0, start + (every or end - start)
    while step < end:
        evaluate = (step // evaluates + 1) * evaluates if evaluates else end
        periods = pace.periods_for(min(save, evaluate, end) - step)
        steps = pace.steps(periods)
        assert steps is not None
        first, first_period, step, period = step, period, step + steps, period + periods
        saves, ends = step >= save, step >= end
        yield RunSegment(
            first, steps, first_period, periods, saves or ends, evaluates is not None and (ends or step >= evaluate)
        )
        if saves:
            save = step + (every or end - step)


def last_step(pace: SegmentCounts, start: int, end: int, every: int | None, evaluates: int | None = None) -> int:
    """Return the end of the last segment that `segments` yields with the same arguments; `start` without segments."""
    if not pace.admitted and pace.stride == pace.microbatches:  # a period is a step, so no segment is longer than asked
        return max(start, end)
    last = start
    for segment in segments(pace, start, end, every, evaluates):
        last = segment.end_step
    return last


def stop_in(pace: SegmentCounts, segment: RunSegment, stop_at: int) -> int:
    """Compute how many periods of a segment run before a requested stop.

    Arguments:
        stop_at: requested number of periods, in all segments since the launch.

    Returns:
        Periods of this segment. The stop is moved to the end of a step, but not beyond the segment's end.
    """
    return min(segment.periods, pace.periods_from(max(0, stop_at - segment.first_period)))

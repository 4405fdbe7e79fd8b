"""Steps, periods and segments: turns a number of steps into runs of a program.

Rules of this file: numbers only. A step is `plan.batch_size` samples, that is `microbatches` microbatches. A run of a
program is a segment: prologue, some periods, epilogue. An asynchronous pipeline cannot be cut in the middle (its weights
are at different versions everywhere), so it is drained at the end of a segment; only there can a checkpoint be made, and
with the next segment its declared update rule starts again from version 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from hocket.errors import InputError


@dataclass(frozen=True)
class SegmentCounts:
    """Counts of a program and its plan: microbatches, periods and steps.

    Attributes:
        admitted: microbatches that the prologue admits; stride: that each period admits.
        microbatches: of one step.
    """

    admitted: int
    stride: int
    microbatches: int

    def steps(self, periods: int) -> int | None:
        """Whole steps in a segment of so many periods; None when it ends inside a step."""
        whole, rest = divmod(self.admitted + periods * self.stride, self.microbatches)
        return None if rest else whole

    def periods_from(self, periods: int) -> int:
        """The least number of periods from this one on that ends with a whole step.

        Raises:
            InputError: there is none.
        """
        # Microbatches modulo a step repeat after so many periods: if none of these fits, none ever does.
        for more in range(lcm(self.stride, self.microbatches) // self.stride):
            if self.steps(periods + more) is not None:
                return periods + more
        found = f"{self.admitted} microbatches and then {self.stride} a period"
        raise InputError("plan", found, f"whole steps of {self.microbatches}", "Change the number of microbatches.")

    def periods_for(self, steps: int) -> int:
        """The least number of periods with at least so many steps, and whole ones."""
        missing = steps * self.microbatches - self.admitted
        return self.periods_from(max(0, -(-missing // self.stride)))


@dataclass(frozen=True)
class RunSegment:
    """One run of the program.

    Attributes:
        first_step: steps trained before it; steps: trained in it.
        first_period: periods completed before it, over all segments since the launch; periods: completed in it.
    """

    first_step: int
    steps: int
    first_period: int
    periods: int

    @property
    def end_step(self) -> int:
        """Steps trained when it is over."""
        return self.first_step + self.steps

    @property
    def end_period(self) -> int:
        """Periods completed when it is over."""
        return self.first_period + self.periods


def segments(pace: SegmentCounts, start: int, end: int, every: int | None) -> Iterator[RunSegment]:
    """Yield segments from step `start` to at least `end`.

    Each has at least `every` steps. None gives one segment.
    """
    step, period = start, 0
    while step < end:
        periods = pace.periods_for(min(every or end - step, end - step))
        steps = pace.steps(periods)
        assert steps is not None
        yield RunSegment(step, steps, period, periods)
        step, period = step + steps, period + periods


def stop_in(pace: SegmentCounts, segment: RunSegment, stop_at: int) -> int:
    """Number of a segment's periods to run before the run ends.

    The run ends after `stop_at` periods in all.

    Later than asked for where that would cut a step; never later than the segment was going to end anyway.
    """
    return min(segment.periods, pace.periods_from(max(0, stop_at - segment.first_period)))

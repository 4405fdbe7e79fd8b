"""Progress observer: receives the reports of one worker's engine (observer.py).

It writes the worker's progress page, reports losses, measures periods, and decides when to stop. It is called for every
instruction, so a call takes a few microseconds. A call blocks only to wait for the watcher's stop (heartbeat.py). This
file does not import torch.
"""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from hocket.profiling.measure.core_time import CoreClock
from hocket.program.instruction import COMPUTE, SWAPS, Instruction
from hocket.program.program import Program
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState
from hocket.runtime.progress.segments import RunSegment, SegmentCounts, stop_in

_KEPT_PERIODS = 4096
# The first measured periods of a process are slower: they allocate memory and fill caches. The others are warm.
_COLD_PERIODS = 2


class Watched:
    """Observer that writes the worker's progress, measures its periods and decides when it stops.

    A segment is one run of the program: prologue, some periods, epilogue.

    Attributes:
        pace: microbatches of a period, of a step, and outside of the periods.
        limit: number of periods after which the current segment ends.
        report_norm: callback for norm events; none are reported without it.
        stopped: True if the run ends with this segment because a stop was requested.
    """

    def __init__(
        self,
        progress: Heartbeat,
        report: Callable[[dict[str, Any]], None],
        program: Program,
        number: int,
        pace: SegmentCounts,
        clock: CoreClock | None = None,
    ) -> None:
        """Create the observer of device `number` of a program.

        Arguments:
            progress: the worker's progress page.
            report: callback for loss events.
            pace: see Attributes.
            clock: clock that also tells the compute thread's waits for a CPU core; the system's by default.
        """
        self._progress, self._report, self.pace = progress, report, pace
        self._clock, self._left_out = clock or CoreClock(), 0
        self._batch = program.rule.batch
        self._segment = RunSegment(0, 0, 0, 0)
        self._stop_at: int | None = None
        self.report_norm: Callable[[dict[str, Any]], None] | None = None
        self.limit = 0
        self.stopped = self._replays = False
        # A period begins with its first compute instruction, shifted by the period. The epilogue's instance ends the
        # last period.
        first = next(iter(program.period.get((number, COMPUTE), ())), None)
        self._mark = _kind_of(first) if first else None
        self._mark_index = first.index if first else 0
        self._mark_stride = program.shifted(first, 1).index - first.index if first else 1
        self._begun: int | None = None
        self._last_s = self._queued_s = 0.0
        self._period_s: deque[float] = deque(maxlen=_KEPT_PERIODS)
        self._waited_s: deque[float] = deque(maxlen=_KEPT_PERIODS)  # wait for a core, in each period
        self._measured = 0

    def begin(self, segment: RunSegment, cold: int = 0) -> None:
        """Begin to observe a segment.

        Arguments:
            cold: number of its first periods that are not measured, because something else ran in this process before.
        """
        self._segment, self._begun, self.limit = segment, None, segment.periods
        self._left_out = min(cold, segment.periods - 1)
        if self._stop_at is not None:
            self._stop(self._stop_at)

    def again(self, segment: RunSegment) -> None:
        """Prepare for a segment that replays a step.

        A replay is not reported, not measured, and not stopped.
        """
        self._segment, self.limit, self._mark, self._replays = segment, segment.periods, None, True

    def end(self) -> None:
        """End the segment, and measure its last period if that is still open.

        A period usually ends when its first instruction comes again. The epilogue may begin with another instruction.
        """
        if self._begun is not None and self._begun == self.limit - 1:
            self._period(self.limit)

    # -- what the engine calls

    def waits(self, instruction: Instruction) -> None:
        """Record that the compute lane waits for the inputs of an instruction."""
        self._progress.at(instruction, self._step(instruction), instruction.index, WorkerState.WAITING)
        if self._mark is not None:
            self._look(instruction)

    def runs(self, instruction: Instruction) -> None:
        """Record that an instruction starts."""
        self._progress.at(instruction, self._step(instruction), instruction.index, WorkerState.RUNNING)
        if self._mark is not None:
            self._look(instruction)

    def goes_on(self, periods: int) -> bool:
        """True to run another period; heartbeat.py describes how workers agree to stop."""
        if self._replays:
            return periods < self.limit
        self._progress.periods = self._segment.first_period + periods
        if self._stop_at is None and self._progress.hold:
            self._stop_at = self._progress.wait_for_stop()
            self._stop(self._stop_at)
        return periods < self.limit

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Report the loss of a microbatch as an event, unless the segment is a replay."""
        if self._replays:
            return
        step = self._segment.first_step + microbatch // self.pace.microbatches
        self._report({
            "event": "loss", "step": step, "microbatch": microbatch % self.pace.microbatches,
            "sum": value * weight, "weight": weight, "samples": samples,
        })  # fmt: skip

    def norm(self, step: int, value: float) -> None:
        """Report the gradient norm of a step (from 0) as an event, unless the segment is a replay."""
        if not self._replays and self.report_norm is not None:
            self.report_norm({"event": "norm", "step": step, "norm": value})

    # -- what the worker asks for

    @property
    def warm_steps(self) -> float:
        """Number of steps in the warm periods: all measured periods but the first two."""
        return max(0, self._measured - _COLD_PERIODS) * self.pace.stride / self.pace.microbatches

    @property
    def iteration_s(self) -> float | None:
        """Median time of one step's microbatches over warm periods, in seconds.

        Without warm periods (see `warm_steps`) it is the median over all periods. None if no period was measured.
        """
        found = self._warm(self._period_s)
        return median(found) * self.pace.microbatches / self.pace.stride if found else None

    @property
    def queued_share(self) -> float:
        """Share of the warm periods' time for which compute waited for a CPU core, 0 to 1.

        Without warm periods (see `warm_steps`) it is the share of all periods.
        """
        took_s = sum(self._warm(self._period_s))
        return min(1.0, sum(self._warm(self._waited_s)) / took_s) if took_s else 0.0

    def _warm(self, times: deque[float]) -> list[float]:
        found = list(times)
        return found[max(0, _COLD_PERIODS - (self._measured - len(found))) :] or found

    def _stop(self, stop_at: int) -> None:
        segment = self._segment
        self.limit = stop_in(self.pace, segment, stop_at)
        self.stopped = segment.first_period + self.limit >= stop_at

    def _look(self, instruction: Instruction) -> None:
        if _kind_of(instruction) == self._mark:
            period, rest = divmod(instruction.index - self._mark_index, self._mark_stride)
            if rest == 0 and period >= 0 and (self._begun is None or period == self._begun + 1):
                self._period(period)

    def _period(self, number: int) -> None:
        now_s, queued_s = self._clock.now(), self._clock.queued()
        if self._begun is not None and self._left_out > 0:
            self._left_out -= 1
        elif self._begun is not None:
            self._period_s.append(now_s - self._last_s)
            self._waited_s.append(max(0.0, queued_s - self._queued_s))
            self._measured += 1
        self._begun, self._last_s, self._queued_s = number, now_s, queued_s

    def _step(self, instruction: Instruction) -> int:
        microbatch = instruction.index
        if instruction.counts_updates:
            microbatch *= self._batch[instruction.stage]
        return self._segment.first_step + microbatch // self.pace.microbatches


def _kind_of(instruction: Instruction) -> tuple[object, ...]:
    """Return a key shared by instructions that differ only in their index.

    Swaps of weights and swaps of stashes have different keys.
    """
    swapped = instruction.writes[0] if instruction.kind in SWAPS else None
    what = (swapped.what, swapped.part, swapped.copy) if swapped else ()
    return instruction.kind, instruction.stage, instruction.again, *what

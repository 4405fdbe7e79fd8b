"""Window: the part of a trace that a report draws.

A run mostly repeats itself. The window shows a few iterations (batches) from the middle, after the pipeline's warm-up.
An iteration begins with the first forward of its batch. If a run was drained for checkpoints, all iterations come from
one segment between checkpoints.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hocket.program.instruction import Kind
from hocket.program.trace.trace import KINDS, Event, Trace

MOST_ITERATIONS = 3
MOST_PER_ROW = 100  # forwards and backwards of one device; more would leave no room for their numbers


@dataclass(frozen=True)
class Window:
    """A span of time with some iterations (batches) of a trace.

    Attributes:
        start_s, end_s: the span, on the trace's clock.
        first: index of the first iteration, from 0.
        count: number of iterations in the window.
        total: number of iterations in the trace.
    """

    start_s: float
    end_s: float
    first: int
    count: int
    total: int

    @property
    def seconds(self) -> float:
        """Length of the window, in seconds."""
        return self.end_s - self.start_s

    def events(self, trace: Trace) -> list[Event]:
        """Return the events that overlap the window, sorted by start."""
        inside = (trace.start_s < self.end_s) & ((trace.end_s > self.start_s) | (trace.start_s >= self.start_s))
        found = []
        for k in np.flatnonzero(inside).tolist():
            (device, lane), kind = trace.lanes[trace.lane[k]], KINDS[trace.kind[k]]
            stage, index, when = (
                int(trace.stage[k]),
                int(trace.index[k]),
                (float(trace.start_s[k]), float(trace.end_s[k])),
            )
            found.append(Event(device, lane, trace.name(k), kind, stage, index, *when))
        return sorted(found, key=lambda e: (e.start_s, e.device, e.lane, e.end_s, e.name))

    def describe(self) -> str:
        """Describe the window, such as "iteration 3 of 8, the steady state"."""
        if self.count >= self.total:
            return "the whole trace" if self.total != 1 else "the whole trace, one iteration"
        which = (
            f"iteration {self.first + 1}"
            if self.count == 1
            else f"iterations {self.first + 1} to {self.first + self.count}"
        )
        return f"{which} of {self.total}" + (", the steady state" if self.first else "")


@dataclass(frozen=True)
class DrawnTrace:
    """A trace and the window of it that is drawn."""

    trace: Trace
    window: Window

    def has(self, device: int) -> bool:
        """True if the memory record of a device reaches into the window."""
        series = self.trace.memory.get(device)
        return series is not None and float(series[0][-1]) >= self.window.start_s


def batch_starts(trace: Trace, microbatches: int) -> list[float]:
    """Return the start of the first forward of each batch, in batch order."""
    forward = trace.kind == KINDS.index(Kind.FORWARD)
    batches, which = np.unique(trace.index[forward] // microbatches, return_inverse=True)
    starts = np.full(len(batches), np.inf)
    np.minimum.at(starts, which, trace.start_s[forward])
    return [float(s) for s in starts]


def choose(
    trace: Trace, microbatches: int, count: int | None = None, around_s: tuple[float, float] | None = None
) -> Window:
    """Choose the iterations to draw.

    Arguments:
        microbatches: microbatches of a batch.
        count: number of iterations; by default as many as stay readable, at most MOST_ITERATIONS.
        around_s: begin and end of a time span to include, such as that of a critical path. By default the middle of
            the trace is chosen.
    """
    if trace.segments_s and around_s is None:
        return _within_a_segment(trace, microbatches, count)
    starts = batch_starts(trace, microbatches)
    begin, end = float(trace.start_s.min(initial=trace.end)), trace.end
    end = end if end > begin else begin + 1.0
    total = max(1, len(starts))
    if count is None:
        long = np.isin(trace.kind, [KINDS.index(Kind.FORWARD), KINDS.index(Kind.BACKWARD)])
        busiest = int(np.bincount(trace.device[long]).max(initial=1))
        count = max(1, min(MOST_PER_ROW * total // busiest, MOST_ITERATIONS, total - 2))
    if count >= total:
        return Window(begin, end, 0, total, total)
    # Avoid the last iteration, in which the pipeline drains, and the first if there is another.
    last = total - 1 - count
    first = min(max(1, (total - count) // 2), last)
    if around_s is not None and around_s[1] > starts[-1] + 1e-9 * end:
        # The last iterations of an asynchronous run begin while it is still in steady state. Show them up to the span's
        # end.
        first = min(total - count, max(0, sum(start <= around_s[0] for start in starts) - 1))
        return Window(starts[first], around_s[1], first, total - first, total)
    if around_s is not None:
        ending = sum(start < around_s[1] - 1e-9 * end for start in starts)
        first = min(max(0, ending - count), last)
    return Window(starts[first], starts[first + count], first, count, total)


def _within_a_segment(trace: Trace, microbatches: int, count: int | None) -> Window:
    """Choose iterations of a run with checkpoints, in the middle of a longest segment."""
    edges = [*trace.segments_s, float("inf")]
    parts = [trace.part(start_s, end_s) for start_s, end_s in pairwise(edges)]
    lengths = [len(batch_starts(part, microbatches)) for part in parts]
    longest = [k for k, length in enumerate(lengths) if length == max(lengths)]
    chosen = longest[len(longest) // 2]
    part = parts[chosen]
    inner = choose(replace(part, meta={}), microbatches, count)
    return replace(inner, first=inner.first + sum(lengths[:chosen]), total=sum(lengths))

"""Window: the part of a trace that a report draws.

A whole run is mostly repetition. What is drawn is a few iterations (batches) out of the middle, where a pipeline has
filled; an iteration begins when the first forward of its batch begins. Where a run was drained for checkpoints, they are
out of one of its segments.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hocket.program.instruction import Kind
from hocket.program.trace.trace import KINDS, Event, Trace

MOST_ITERATIONS = 3
MOST_PER_ROW = 100  # forwards and backwards of one device that leave room for their numbers


@dataclass(frozen=True)
class Window:
    """A span of time, and which iterations it shows: `first` to `first + count - 1` of `total`."""

    start_s: float
    end_s: float
    first: int
    count: int
    total: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s

    def events(self, trace: Trace) -> list[Event]:
        """Events in the window, at least in part, by start."""
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
        """Iterations of the window, for people."""
        if self.count >= self.total:
            return "the whole trace" if self.total != 1 else "the whole trace, one iteration"
        which = (
            f"iteration {self.first + 1}"
            if self.count == 1
            else f"iterations {self.first + 1} to {self.first + self.count}"
        )
        return f"{which} of {self.total}" + (", the steady state" if self.first else "")


def batch_starts(trace: Trace, microbatches: int) -> list[float]:
    """Begin of the first forward of each batch, in batch order."""
    forward = trace.kind == KINDS.index(Kind.FORWARD)
    batches, which = np.unique(trace.index[forward] // microbatches, return_inverse=True)
    starts = np.full(len(batches), np.inf)
    np.minimum.at(starts, which, trace.start_s[forward])
    return [float(s) for s in starts]


def choose(
    trace: Trace, microbatches: int, count: int | None = None, around_s: tuple[float, float] | None = None
) -> Window:
    """The iterations to draw: `count` of them, or up to MOST_ITERATIONS that stay readable.

    Arguments:
        around_s: a span that should be seen, such as a critical path's; out of the middle when there is none.
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
    # Never the last iteration alone (the pipeline empties in it), and not the first where there is another.
    last = total - 1 - count
    first = min(max(1, (total - count) // 2), last)
    if around_s is not None and around_s[1] > starts[-1] + 1e-9 * end:
        # An asynchronous run's last iterations begin while it is still steady: up to the end of the span, they are shown.
        first = min(total - count, max(0, sum(start <= around_s[0] for start in starts) - 1))
        return Window(starts[first], around_s[1], first, total - first, total)
    if around_s is not None:
        ending = sum(start < around_s[1] - 1e-9 * end for start in starts)
        first = min(max(0, ending - count), last)
    return Window(starts[first], starts[first + count], first, count, total)


def _within_a_segment(trace: Trace, microbatches: int, count: int | None) -> Window:
    """Iterations to draw of a run with checkpoints: the middle of its longest segment."""
    edges = [*trace.segments_s, float("inf")]
    parts = [trace.part(start_s, end_s) for start_s, end_s in pairwise(edges)]
    lengths = [len(batch_starts(part, microbatches)) for part in parts]
    longest = [k for k, length in enumerate(lengths) if length == max(lengths)]
    chosen = longest[len(longest) // 2]
    part = parts[chosen]
    inner = choose(replace(part, meta={}), microbatches, count)
    return replace(inner, first=inner.first + sum(lengths[:chosen]), total=sum(lengths))

"""Seconds between two updates of a trace, optionally with its events moved."""

from collections.abc import Sequence
from math import inf, nan

import numpy as np

from hocket.program.instruction import Kind
from hocket.program.trace.trace import KINDS, Trace

_STEP = KINDS.index(Kind.STEP)


def predicted_update_s(trace: Trace) -> float:
    """Seconds between two updates of a predicted run.

    If only an excerpt of a long batch was simulated, the seconds of the whole batch are in
    `meta["whole_iteration_s"]`, because updates in the excerpt follow each other sooner.
    """
    told = trace.meta.get("whole_iteration_s")
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 < told < inf:
        return float(told)
    return update_s(trace)


def update_s(trace: Trace, moved_s: np.ndarray | None = None) -> float:
    """Mean seconds between two updates, over the later half of each stage's updates.

    Between two segments of a run, a checkpoint is made. That time does not count.

    Arguments:
        moved_s: ends of the events to measure between, in place of the trace's own, in seconds; shape (events,). The
            trace's own ends still select and order the updates.

    Returns:
        nan if no stage has two updates in a segment.
    """
    steps = trace.kind == _STEP
    ends_s = trace.end_s[steps]
    ours_s = ends_s if moved_s is None else moved_s[steps]
    gaps = []
    places = np.stack([trace.device[steps], trace.stage[steps]], axis=1)
    for place in np.unique(places, axis=0):
        own = np.flatnonzero((places == place).all(axis=1))
        own = own[np.argsort(ends_s[own], kind="stable")]
        found = inner_gaps(ends_s[own], trace.segments_s, ours_s[own])
        if len(found):
            gaps.append(found[len(found) // 2 if len(found) > 1 else 0 :].mean())
    return float(np.mean(gaps)) if gaps else nan


def inner_gaps(moments_s: np.ndarray, segments_s: Sequence[float], moved_s: np.ndarray | None = None) -> np.ndarray:
    """Seconds from each moment to the next, without gaps between segments.

    Arguments:
        moments_s: moments, ascending.
        segments_s: starts of the segments, ascending.
        moved_s: other times of the moments, to measure instead. The segments follow from `moments_s`.
    """
    segment = np.searchsorted(np.asarray(segments_s, dtype=float), moments_s, side="right")
    found: np.ndarray = np.diff(moments_s if moved_s is None else moved_s)[np.diff(segment) == 0]
    return found

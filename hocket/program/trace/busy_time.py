"""Busy time: seconds in which a device computes, or takes part in a transfer.

Rules of this file: simulated and measured traces are counted alike. Waiting is not work: a transfer begins when all
ranks of it have arrived. Work of the host (loads) does not count.
"""

from collections import defaultdict

import numpy as np

from hocket.program.instruction import COLLECTIVES, Kind
from hocket.program.trace.trace import KINDS, Trace

_WORK = tuple(k for k, kind in enumerate(KINDS) if kind not in (Kind.LOAD, Kind.DROP))
_STEP = KINDS.index(Kind.STEP)
_MEETINGS = tuple(k for k, kind in enumerate(KINDS) if kind in COLLECTIVES)


def active_s(trace: Trace) -> dict[int, float]:
    """Busy seconds of each device in one iteration.

    Overlapping events count once. The result is the mean over the later half of the iterations. An iteration ends with
    the last step of its update, on any device. If no segment of the run (see `Trace.segments_s`) has two such ends,
    the whole trace is one iteration.
    """
    windows = iterations(trace)
    start_s = met(trace)
    found: dict[int, float] = {}
    device, works = trace.device, np.isin(trace.kind, _WORK)
    for one in trace.devices:
        own = works & (device == one)
        spans = joined(start_s[own], trace.end_s[own])
        inside = [np.minimum(spans[1], end) - np.maximum(spans[0], begin) for begin, end in windows]
        found[one] = sum(float(np.maximum(each, 0.0).sum()) for each in inside) / len(windows)
    return found


def once(device: np.ndarray, start_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shorten events so that those of one device do not overlap.

    Each moment counts for the event of the device that began first.

    Arguments:
        device, start_s, end_s: device, start and end of each event; shape (events,).

    Returns:
        The time from which each event counts until its end, and True if it counts at all.
    """
    begun_s, some = start_s.astype(float), end_s > start_s
    for one in np.unique(device):
        own = np.flatnonzero(device == one)
        own = own[np.lexsort((end_s[own], start_s[own]))]
        over_s = np.maximum.accumulate(np.append(-np.inf, end_s[own]))[:-1]  # end of all events that began before
        begun_s[own] = np.maximum(start_s[own], over_s)
        some[own] = end_s[own] > begun_s[own]
    return begun_s, some


def iterations(trace: Trace) -> list[tuple[float, float]]:
    """(start, end) in seconds of the iterations in the later half of a run.

    The whole run is one iteration if no segment has two ends of updates.
    """
    whole = all_iterations(trace)
    return whole[len(whole) // 2 :] or [(float(trace.start_s.min(initial=0.0)), trace.end)]


def all_iterations(trace: Trace) -> list[tuple[float, float]]:
    """(start, end) of each iteration in seconds, from one update's end to the next.

    The first iteration of each segment is left out.
    """
    steps = trace.kind == _STEP
    index, end_s = trace.index[steps], trace.end_s[steps]
    ends = np.array([end_s[index == u].max() for u in np.unique(index)])
    segment = np.searchsorted(np.asarray(trace.segments_s, dtype=float), ends, side="right")
    return [(float(a), float(b)) for a, b, same in zip(ends, ends[1:], np.diff(segment) == 0, strict=False) if same]


def met(trace: Trace) -> np.ndarray:
    """Start of each event in seconds; of a collective, when its last rank arrives."""
    start_s = trace.start_s.copy()
    groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for event in np.flatnonzero(np.isin(trace.kind, _MEETINGS)).tolist():
        groups[trace.lanes[trace.lane[event]][1], int(trace.label[event]), int(trace.index[event])].append(event)
    for events in groups.values():
        start_s[events] = np.minimum(start_s[events].max(), trace.end_s[events])
    return start_s


def joined(start_s: np.ndarray, end_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Union of time spans, as starts and ends of the fewest spans without overlap.

    Arguments:
        start_s, end_s: start and end of each span.
    """
    order = np.argsort(start_s, kind="stable")
    start_s, end_s = start_s[order], np.maximum.accumulate(end_s[order])
    first = np.ones(len(start_s), dtype=bool)
    first[1:] = start_s[1:] > end_s[:-1]
    return start_s[first], end_s[np.append(first[1:], True)] if len(first) else end_s

"""Replay of a measured run as if no worker had waited for a core.

The replay gives the end that each event would have had.

Rules of this file: only the trace is known, not the program. A transfer is a message or a collective ("sum"). The
events that an event waited for are derived from when it began:

- An event of a compute lane begins after the previous event of its lane. It also begins after messages and sums of its
  device that ended before it began and that belong to the same microbatch or update. If another event of its device
  (such as another wave's instruction) ended after the previous event of its lane and before this event began, it
  waited for the last such end as well.
- A message or sum is posted by its device's compute lane. It begins as long after the start of that lane's instruction
  as it did in the run, scaled with the instruction's length if the instruction was running. If it began when the
  transfer before it on its lane ended, it begins after that transfer. For a message, the sender decides.
- The seconds from the arrival of the last rank of a transfer to its end stay as they were.
- The seconds from the latest end that an event waited for to its start stay as they were.

An event's `queued_s` is removed between the latest end that it waited for and its own end.
"""

from bisect import bisect_right, insort
from collections import defaultdict

import numpy as np

from hocket.program.instruction import COLLECTIVES, Kind, computes
from hocket.program.trace.trace import KINDS, Trace

_RECEIVE, _SEND = KINDS.index(Kind.RECEIVE), KINDS.index(Kind.SEND)
_COLLECTIVE = frozenset(KINDS.index(kind) for kind in COLLECTIVES)
_TIGHT_S = 2e-4  # a transfer that begins sooner than this after the previous one on its lane waited for that one


def ends_without_waits(trace: Trace) -> np.ndarray:
    """End of each event in seconds, in a replay without waits for cores.

    Waits for cores that other processes used are removed. Waits for threads of the same process stay.

    Returns:
        Array of shape (events,).
    """
    replay = _Replay(trace)
    for event in np.lexsort((trace.end_s, trace.start_s)).tolist():
        replay.take(event)
    return np.array([replay.end(event) for event in range(len(trace))])


class _Replay:
    def __init__(self, trace: Trace) -> None:
        self._start, self._end = trace.start_s.tolist(), trace.end_s.tolist()
        self._queued, self._kind = trace.queued_s.tolist(), trace.kind.tolist()
        self._lane, self._lanes = trace.lane.tolist(), trace.lanes
        self._computes = [computes(lane) for _, lane in trace.lanes]
        self._last: dict[int, int] = {}  # last event of each lane
        self._computed: dict[int, int] = {}  # the compute event of each device that began last
        self._over: dict[int, list[tuple[float, int]]] = defaultdict(
            list
        )  # ends of the events that have begun on each device, ascending
        self._begun: dict[int, float] = {}
        self._ended: dict[int, float] = {}  # ends of events that are not transfers
        self._members = self._transfers(trace)
        self._about = [self._counted(trace, event) for event in range(len(trace))]
        self._came: dict[tuple[int, str], list[int]] = defaultdict(
            list
        )  # transfers of a device, by microbatch or update

    def _transfers(self, trace: Trace) -> dict[int, list[int]]:
        """For each event of a transfer, all events of the same transfer.

        A transfer is a message or a sum. If its other events are not in the trace, the event is alone.
        """
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for event, kind in enumerate(self._kind):
            if kind in (_SEND, _RECEIVE):
                groups["message", trace.name(event).partition(" ")[2]].append(event)
            elif kind in _COLLECTIVE:
                groups["sum", self._lanes[self._lane[event]][1], trace.name(event)].append(event)
        return {event: group for group in groups.values() for event in group}

    def _counted(self, trace: Trace, event: int) -> str:
        """Text for the microbatch ("#3") or update ("u3") of an event.

        Examples: "#3" for "forward 0 #3", "u3" for "step 0 u3".
        """
        index = int(trace.index[event])
        return f"u{index}" if f" u{index}" in trace.name(event) else f"#{index}"

    def take(self, event: int) -> None:
        """Replay one event. Events come in the order of their starts."""
        lane = self._lane[event]
        device = self._lanes[lane][0]
        before = self._last.get(lane)
        if event in self._members:
            self._begun[event] = self._posted(event, device, before)
            self._came[device, self._about[event]].append(event)
        else:
            waited = [before] if before is not None else []
            came = self._came[device, self._about[event]]
            waited += [one for one in came if self._end[one] <= self._start[event]]
            last = self._ended_last(device, event)
            if last is not None and (before is None or self._end[last] > self._end[before]):
                waited.append(last)
            free_s = max((self.end(one) for one in waited), default=0.0)
            was_s = min(self._start[event], max((self._end[one] for one in waited), default=0.0))
            # Waits count from the end of the lane's previous event, so they are never longer than this span.
            self._ended[event] = free_s + max(0.0, self._end[event] - was_s - self._queued[event])
            self._begun[event] = min(free_s + self._start[event] - was_s, self._ended[event])
        self._last[lane] = event
        if self._computes[lane]:
            self._computed[device] = event
        insort(self._over[device], (self._end[event], event))

    def end(self, event: int) -> float:
        """End of an event in the replay, in seconds."""
        if event not in self._members:
            return self._ended[event]
        there = [one for one in self._members[event] if one in self._begun]
        was_s = max(self._start[one] for one in there)
        return max(self._begun[one] for one in there) + max(0.0, self._end[event] - was_s)

    def _ended_last(self, device: int, event: int) -> int | None:
        """Latest of the device's events that ended before an event began, or None."""
        over = self._over[device]
        at = bisect_right(over, (self._start[event], len(self._start)))
        return over[at - 1][1] if at else None

    def _posted(self, event: int, device: int, before: int | None) -> float:
        """Start of a transfer for one of its ranks, in seconds of the replay.

        Arguments:
            event: the rank's event of the transfer.
            before: previous event of its lane; None without one.
        """
        if before is not None and self._end[before] > self._start[event]:
            before = None
        free_s = self.end(before) if before is not None else 0.0
        if self._kind[event] == _RECEIVE and len(self._members[event]) > 1:
            return free_s  # posted long before
        by = self._computed.get(device)
        if by is None:
            return max(free_s, self._start[event])
        if before is not None and self._start[event] - self._end[before] < _TIGHT_S:
            return max(self._begun[by], free_s + self._start[event] - self._end[before])
        since_s, took_s = self._start[event] - self._start[by], self._end[by] - self._start[by]
        now_s = self._ended[by] - self._begun[by]
        moved_s = since_s / took_s * now_s if since_s < took_s else now_s + since_s - took_s
        return max(free_s, self._begun[by] + moved_s)

"""Runs with times that follow from the seconds of their instructions.

So the effect of waits is known by construction.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hocket.program.instruction import Kind
from hocket.program.trace.trace import Event, Trace

Waits = Mapping[tuple[int, str], float]  # by device and name of an instruction
NONE: Waits = MappingProxyType({})


class Device:
    """A compute lane that is free from some moment on."""

    def __init__(self, number: int, waits: Waits, events: list[Event], pace: float) -> None:
        self.number, self.free_s = number, 0.0
        self._waits, self._events, self._pace = waits, events, pace

    def run(self, kind: Kind, name: str, stage: int, index: int, seconds: float, after_s: float = 0.0) -> float:
        """Run an instruction after the previous one and a moment; return its end."""
        start_s, queued_s = max(self.free_s, after_s), self._waits.get((self.number, name), 0.0)
        self.free_s = start_s + seconds * self._pace + queued_s
        self._events.append(Event(self.number, "compute", name, kind, stage, index, start_s, self.free_s, queued_s))
        return self.free_s


def pipeline(updates: int, waits: Waits = NONE, pace: float = 1.0, send_s: float = 0.25) -> Trace:
    """GPipe with two stages and two microbatches in an update.

    Forwards take 1 s, backwards 2 s, steps 0.5 s. Messages go between the stages.
    """
    events: list[Event] = []
    first, last = Device(0, waits, events, pace), Device(1, waits, events, pace)
    link_s = {">": 0.0, "<": 0.0}

    def sent(source: int, what: str, index: int, ready_s: float) -> float:
        way, target = ("><"[source], 1 - source)
        start_s = max(ready_s, link_s[way])
        link_s[way] = start_s + send_s * pace
        for device, kind, lane in ((source, Kind.SEND, f"send>{target}"), (target, Kind.RECEIVE, f"receive<{source}")):
            name = f"{kind} 0 #{index} {what}.0>1#{index}"
            events.append(Event(device, lane, name, kind, 0, index, start_s, link_s[way]))
        return link_s[way]

    for update in range(updates):
        pair = (2 * update, 2 * update + 1)
        there = [sent(0, "act", k, first.run(Kind.FORWARD, f"forward 0 #{k}", 0, k, 1.0)) for k in pair]
        for k, at_s in zip(pair, there, strict=True):
            last.run(Kind.FORWARD, f"forward 1 #{k}", 1, k, 1.0, at_s)
        back = [sent(1, "grad", k, last.run(Kind.BACKWARD, f"backward 1 #{k}", 1, k, 2.0)) for k in pair]
        for k, at_s in zip(pair, back, strict=True):
            first.run(Kind.BACKWARD, f"backward 0 #{k}", 0, k, 2.0, at_s)
        for device in (first, last):
            device.run(Kind.STEP, f"step {device.number} u{update}", device.number, update, 0.5)
    return Trace.of(events)


def replicas(updates: int, waits: Waits = NONE, pace: float = 1.0, sum_s: float = 0.5) -> Trace:
    """Two replicas with a gradient sum.

    A forward takes 1 s, a backward 2 s, a step 0.5 s. The sum begins when both replicas have arrived.
    """
    events: list[Event] = []
    devices = [Device(number, waits, events, pace) for number in range(2)]
    for update in range(updates):
        ends = []
        for d, device in enumerate(devices):
            index = 2 * update + d
            device.run(Kind.FORWARD, f"forward 0 #{index}", 0, index, 1.0)
            ends.append(device.run(Kind.BACKWARD, f"backward 0 #{index}", 0, index, 2.0))
        over_s = max(ends) + sum_s * pace
        for d, device in enumerate(devices):
            name = f"all_reduce 0 u{update} sum.0u{update}b0"
            events.append(Event(d, "reduce@0,1", name, Kind.ALL_REDUCE, 0, update, ends[d], over_s))
            device.run(Kind.STEP, f"step 0 u{update}", 0, update, 0.5, over_s)
    return Trace.of(events)

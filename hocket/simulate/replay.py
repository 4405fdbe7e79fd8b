"""Replay: a run once more, with a background job in the gaps of its devices and beside its layers.

Rules of this file: nodes, their order and what they wait for are those of the lowered program, so that what is late on one device
makes the others late; who gets what of a device says cost/contention.py (`Collocation`). A compute instruction goes on layer by
layer. What moves on links takes as long as it did in the run without a background: where it shared them with other messages it may
share them with others now, which is not seen; neither is memory. Collectives are slowed by a background on any of their devices.
Ties are broken by (time, launches last, order of scheduling): at one moment the foreground goes first.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

import numpy as np

from hocket.cost.background import Background
from hocket.cost.contention import Collocation
from hocket.cost.demand import Work
from hocket.program.instruction import COLLECTIVES
from hocket.simulate.outcome import Outcome
from hocket.simulate.unrolled import Unrolled

Operator = tuple[int, int, int]
"""Signature of a node, its class of samples, and which of its layers (0 of a collective)."""

_AT, _BEHIND = 0, 1  # of two events at one moment: what ends, then launches that begin
COLLECTIVE = "collective"
"""What of `Replay.lost_s` no launch is named for."""
SOON_S = 1e-9  # from room on a device to the launch that takes it: rounding makes shorter gaps, which are none


@dataclass
class _Device:
    """A device that runs a background: the layer of the foreground that it computes, and the launch that is on it."""

    number: int
    node: int = -1
    works: tuple[Work, ...] = ()
    node_s: float = 0.0
    at: int = 0
    began: float = 0.0
    left: float = 0.0
    demand: float = 0.0
    rate: float = 1.0
    place: int = 0
    queued: int = 0
    share: float = 0.0
    work: float = 0.0
    speed: float = 0.0
    launched: float = 0.0
    since: float = 0.0
    due: tuple[float, float] = (inf, inf)
    version: int = 0
    asked: bool = False
    collectives: set[int] = field(default_factory=set)
    log: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass
class _Collective:
    """A collective in motion."""

    devices: tuple[int, ...]
    left: float
    since: float
    began: float
    rate: float = 1.0
    version: int = 0


class Replay:
    """One replay.

    Attributes:
        start, end, cause: of every node, as in an Outcome.
        seen: by operator, seconds that it took and seconds that it takes alone.
        lost_s: seconds by which the foreground's layers took longer, of all devices, by the kind of the launch that was there; and by
            "collective" those of its collectives, whatever the launch. What waits for them is not counted.
    """

    def __init__(
        self,
        outcome: Outcome,
        background: Background,
        rules: Collocation,
        devices: Iterable[int],
        paused: frozenset[Operator] = frozenset(),
    ) -> None:
        self.outcome, self.rules, self.paused = outcome, rules, paused
        self.nodes = Unrolled(outcome.layout, outcome.costs)
        job = background.divided(rules.launch_s)
        self.job = job if rules.beside else job.alone()
        own = [d for d in outcome.program.devices if d in set(devices)]
        # Each begins at another place of its step, so that devices that do the same are not disturbed all at once.
        count = len(self.job.launches)
        self.devices = {d: _Device(d, place=k * count // len(own)) for k, d in enumerate(own)}
        self.waits = outcome.layout.structure[2].tolist()
        self.seconds = (outcome.end_s - outcome.start_s).tolist()
        self.start, self.end, self.cause = outcome.start_s.tolist(), outcome.end_s.tolist(), outcome.cause.tolist()
        self.seen: dict[Operator, list[float]] = {}
        self.lost_s: defaultdict[str, float] = defaultdict(float)
        self._heap: list[tuple[float, int, int, int, int, int]] = []
        self._order = self._finished = 0
        self._moving: dict[int, _Collective] = {}

    def run(self) -> None:
        """Play it to its end."""
        self._begin([n for n, waits in enumerate(self.waits) if waits == 0], 0.0)
        for device in self.devices.values():
            self._ask(device, 0.0)
        while self._finished < len(self.seconds):
            now, turn, _, node, number, version = heappop(self._heap)
            if turn == _BEHIND:
                self._launch(self.devices[number], now)
            elif node >= 0:
                if number < 0 or (node in self._moving and version == self._moving[node].version):
                    self._end(node, now)
            elif version == self.devices[number].version:
                self._due(self.devices[number], now)
        for device in self.devices.values():
            if device.share > 0 and device.launched < now:
                self._advance(device, now)
                alone = self.job.launches[device.place].seconds
                device.log.append((device.launched, now, alone - device.work))

    def _push(self, at: float, turn: int, node: int, number: int, version: int) -> None:
        self._order += 1
        heappush(self._heap, (at, turn, self._order, node, number, version))

    # Nodes of the foreground

    def _begin(self, ready: list[int], now: float) -> None:
        """Let nodes begin that wait for nothing, and all that follows from those that take no time."""
        while ready:
            n = ready.pop(0)
            self.start[n] = now
            one, seconds = self.nodes.instruction(n), self.seconds[n]
            device = self.devices.get(one.device)
            if seconds <= 0:
                ready += self._finish(n, now)
            elif one.kind in COLLECTIVES and any(d in self.devices for d in one.group):
                members = tuple(d for d in one.group if d in self.devices)
                self._moving[n] = _Collective(members, seconds, now, now)
                for d in members:
                    self.devices[d].collectives.add(n)
                self._pace(n, now)
            elif device is not None and self.nodes.computes(n):
                self._advance(device, now)
                device.node, device.node_s, device.at = n, seconds, -1
                device.works = self.nodes.works(n)
                self._next_work(device, now)
            else:
                self._push(now + seconds, _AT, n, -1, 0)

    def _finish(self, n: int, now: float) -> list[int]:
        """A node is over; what waits for nothing else now."""
        self.end[n] = now
        self._finished += 1
        found = []
        for to in self.nodes.successors(n):
            self.waits[to] -= 1
            if self.waits[to] == 0:
                self.cause[to] = n
                found.append(to)
        return found

    def _end(self, n: int, now: float) -> None:
        """A transfer or a collective is over."""
        one = self._moving.pop(n, None)
        if one is not None:
            self._saw(n, 0, now - one.began, self.seconds[n])
            self.lost_s[COLLECTIVE] += now - one.began - self.seconds[n]
        self._begin(self._finish(n, now), now)
        for d in one.devices if one is not None else ():
            self.devices[d].collectives.discard(n)
            self._ask(self.devices[d], now)

    def _pace(self, n: int, now: float) -> None:
        """Give a collective its rate, beside the launches that are on its devices."""
        one = self._moving[n]
        one.left -= (now - one.since) * one.rate
        one.since = now
        disturbed = any(self.devices[d].share > 0 for d in one.devices)
        one.rate = 1 / self.rules.collective_slowdown if disturbed else 1.0
        one.version += 1
        self._push(now + max(0.0, one.left) / one.rate, _AT, n, 0, one.version)

    # A device

    def _saw(self, n: int, at: int, took_s: float, alone_s: float) -> None:
        seen = self.seen.setdefault((*self.nodes.kind(n), at), [0.0, 0.0])
        seen[0] += took_s
        seen[1] += alone_s

    def _advance(self, device: _Device, now: float) -> None:
        """Count what was done since the last look."""
        passed = now - device.since
        if device.node >= 0:
            device.left -= passed * device.rate
            if device.share > 0:
                self.lost_s[self.job.launches[device.place].kind] += passed * (1 - device.rate)
        if device.share > 0:
            device.work -= passed * device.speed
        device.since = now

    def _settle(self, device: _Device, now: float) -> None:
        """New rates, and when the first of the two ends."""
        needs = device.demand if device.node >= 0 else 0.0
        device.rate, ends, launch_ends = 1.0, inf, inf
        if device.share > 0:
            need = self.job.launches[device.place].demand
            preferred = self.rules.priority and device.queued == self.rules.outstanding
            device.share = max(device.share, min(need, 1 - needs)) if preferred else need
            device.rate, device.speed = self.rules.rates(needs, need, device.share if preferred else None)
            launch_ends = now + max(0.0, device.work) / device.speed
        if device.node >= 0 and device.rate > 1e-9:
            ends = now + max(0.0, device.left) / device.rate
        device.due = (ends, launch_ends)
        device.version += 1
        if min(device.due) < inf:
            self._push(min(device.due), _AT, -1, device.number, device.version)

    def _due(self, device: _Device, now: float) -> None:
        """A layer, a launch, or both are over."""
        ends, launch_ends = device.due
        self._advance(device, now)
        ready: list[int] = []
        if launch_ends <= now:
            self._launch_over(device, now)
        if ends <= now:
            work = device.works[device.at]
            self._saw(device.node, device.at, now - device.began, work.fraction * device.node_s)
            if device.at + 1 < len(device.works):
                self._next_work(device, now)
            else:
                n, device.node = device.node, -1
                ready = self._finish(n, now)
        self._begin(ready, now)
        self._settle(device, now)
        self._ask(device, now)

    def _next_work(self, device: _Device, now: float) -> None:
        """The next layer of the device's instruction."""
        device.at += 1
        work = device.works[device.at]
        device.left, device.demand, device.began = work.fraction * device.node_s, work.demand, now
        self._settle(device, now)
        self._ask(device, now)

    # Launches of the background

    def _ask(self, device: _Device, now: float) -> None:
        """See whether a launch can begin, as soon as all else that happens now has happened."""
        if device.share <= 0 and not device.asked:
            device.asked = True
            self._push(now + SOON_S, _BEHIND, -1, device.number, 0)

    def _launch(self, device: _Device, now: float) -> None:
        """Begin a launch, if it may and if the foreground leaves something over."""
        device.asked = False
        if not self._may(device):
            return
        need = self.job.launches[device.place].demand
        share = min(need, 1 - (device.demand if device.node >= 0 else 0.0)) if self.rules.priority else need
        if share >= min(need, self.rules.least_share):
            self._advance(device, now)
            device.queued = self.rules.outstanding
            self._put(device, share, now)
            self._disturb(device, now)
            self._settle(device, now)

    def _may(self, device: _Device) -> bool:
        """Whether a launch may begin beside what is there."""
        if any((*self.nodes.kind(n), 0) in self.paused for n in device.collectives):
            return False
        if device.node < 0:
            return True
        return self.rules.beside and (*self.nodes.kind(device.node), device.at) not in self.paused

    def _put(self, device: _Device, share: float, now: float) -> None:
        device.share, device.work, device.launched = share, self.job.launches[device.place].seconds, now

    def _launch_over(self, device: _Device, now: float) -> None:
        """A launch has ended; those that were given to the device together with it follow at once."""
        device.log.append((device.launched, now, self.job.launches[device.place].seconds))
        device.place = (device.place + 1) % len(self.job.launches)
        device.queued -= 1
        if device.queued > 0:
            self._put(device, self.job.launches[device.place].demand, now)
            return
        device.share = 0.0
        self._disturb(device, now)

    def _disturb(self, device: _Device, now: float) -> None:
        for n in device.collectives:
            self._pace(n, now)

    def outcome_of(self) -> Outcome:
        """The run as it came out; its changes of memory are not known any more."""
        none = (np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))
        start, end, cause = np.array(self.start), np.array(self.end), np.array(self.cause, dtype=np.int64)
        return replace(self.outcome, start_s=start, end_s=end, cause=cause, records=none)

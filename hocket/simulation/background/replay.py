"""Replay of a run with a background job in idle times and beside layers.

Nodes, their order and their dependencies are those of the lowered program (engine/lower.py), so that a delay on one
device delays the others. The background job submits launches: pieces of work that run to their end on one device.

- Shares of a device: cost/contention.py (`Collocation`, `Ceiling`).
- Compute instructions: they proceed layer by layer.
- Links, cores, and devices with several compute lanes: they are shared as in the simulation (engine/sharing.py).
- Collectives: a launch on any of their devices slows them down.
- Memory: it is not simulated again.
- Ties: at the same time, begins of launches come last; other events have the order in which they were scheduled. So
  the foreground goes first.

A replay without progress ends with an InternalError (`_patience`).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from hocket.cost.background.background import Background
from hocket.cost.contention import Ceiling, Collocation
from hocket.errors import InternalError
from hocket.program.instruction import COLLECTIVES
from hocket.simulation.engine.shared_device import Motion, SharedDevice
from hocket.simulation.engine.sharing import ResourceLoads
from hocket.simulation.engine.unrolled import Unrolled
from hocket.simulation.result import SimulationResult

Operator = tuple[int, int, int]
"""Signature of a node, its number of samples, and the index of a layer in the node (0 for a collective)."""

_AT, _BEHIND = 0, 1  # order of events at the same time: first ends of nodes and launches, then begins of launches
COLLECTIVE = "collective"
"""Key of `BackgroundReplay.lost_s` for the lost seconds of collectives."""
SOON_S = 1e-9  # seconds after which a launch uses room that appears; shorter gaps come from rounding and are ignored
_SHOWN = 8  # maximum number of running nodes that an error message lists


class BackgroundReplay:
    """One replay of a run with a background job.

    Attributes:
        start: start of every node, in seconds.
        end: end of every node, in seconds.
        cause: for every node, the node that ended last of all that it waited for; -1 for none.
        seen: by operator, its seconds over the run, and what they would have been without launches.
        lost_s: seconds that layers of the foreground lost in all lanes, by kind of the launch; and under "collective"
            the seconds that collectives lost to launches of any kind. Waiting times of other instructions are not
            included.
    """

    def __init__(
        self,
        outcome: SimulationResult,
        background: Background,
        rules: Collocation,
        devices: Iterable[int],
        paused: frozenset[Operator] = frozenset(),
    ) -> None:
        self.outcome, self.rules, self.paused = outcome, rules, paused
        self.nodes, self.shares = Unrolled(outcome.layout, outcome.costs), ResourceLoads(outcome.layout, outcome.costs)
        job = background.divided(rules.launch_s)
        self.job = job if rules.beside else job.alone()
        own = [d for d in outcome.program.devices if d in set(devices)]
        used = self.nodes.utilization(outcome)
        # Each device begins at another launch of the background's step, so that launches do not disturb equal devices
        # at the same time.
        count = len(self.job.launches)
        self.devices = {
            d: SharedDevice(d, self.job, rules, Ceiling.of(used[d], self.job.utilization), k * count // len(own))
            for k, d in enumerate(own)
        }
        self.waits = outcome.layout.structure[2].tolist()
        nodes = len(self.waits)
        self._late_s = outcome.late_s.tolist() or [0.0] * nodes
        self.start, self.end, self.cause = [0.0] * nodes, [0.0] * nodes, outcome.cause.tolist()
        self.seen: dict[Operator, list[float]] = {}
        self.lost_s: defaultdict[str, float] = defaultdict(float)
        self._heap: list[tuple[float, int, int, int, int, int]] = []
        self._order = self._finished = 0
        self._moving: dict[int, Motion] = {}
        self._patience_s, self._progress_s = self._patience(), 0.0

    def run(self) -> None:
        """Replay to the end of the foreground.

        Raises:
            InternalError: the foreground makes no progress: no node runs, or a running node does not end.
        """
        self._begin([n for n, waits in enumerate(self.waits) if waits == 0], 0.0)
        for device in self.devices.values():
            self._ask(device, 0.0)
        now = 0.0
        while self._finished < len(self.waits):
            if not self._moving or not self._heap or self._heap[0][0] - self._progress_s > self._patience_s:
                raise self._stuck(now)
            now, turn, _, node, number, version = heappop(self._heap)
            if turn == _BEHIND:
                self._launch(self.devices[number], now)
            elif node < 0:
                if version == self.devices[number].version:
                    self._launch_over(self.devices[number], now)
            elif node in self._moving and version == self._moving[node].version:
                self._progress_s = now
                self._over(self._moving[node], now)
        for device in self.devices.values():
            device.stop(now)

    def _push(self, at: float, turn: int, node: int, number: int, version: int) -> None:
        self._order += 1
        heappush(self._heap, (at, turn, self._order, node, number, version))

    # Nodes of the foreground

    def _begin(self, ready: list[int], now: float) -> None:
        """Begin nodes that are ready.

        A node without duration ends at once, and its successors begin if they are ready.
        """
        while ready:
            n = ready.pop(0)
            self.start[n] = now
            shares = self.shares.shares(n)
            latency_s = self._late_s[n] + self.shares.latency_s[n] + (0.0 if shares else self.shares.work_s[n])
            if latency_s <= 0 and not shares:
                ready += self._finish(n, now)
                continue
            one = self._moving[n] = Motion(n, self._members(n), now, began=now, left=latency_s)
            if one.devices and self.nodes.computes(n):
                one.works = self.nodes.works(n)
                self._layer(one, 0, now)
                continue
            for d in one.devices:
                self.devices[d].collectives[n] = one
            if latency_s > 0:
                self._pace(one, now)
            else:
                self._flow(one, now)

    def _members(self, n: int) -> tuple[int, ...]:
        """Devices with a background job on which a node runs.

        Only collectives and compute instructions count. The result is empty for all other nodes.
        """
        one = self.nodes.instruction(n)
        if one.kind in COLLECTIVES:
            return tuple(d for d in one.group if d in self.devices)
        return (one.device,) if self.nodes.computes(n) and one.device in self.devices else ()

    def _flow(self, one: Motion, now: float) -> None:
        """End the latency of a node: from now on it shares links."""
        one.phase, one.left, one.since = 1, self.shares.work_s[one.node], now
        self._repace(self.shares.enter(one.node), now)

    def _layer(self, one: Motion, at: int, now: float) -> None:
        """Begin a layer of a compute instruction.

        Arguments:
            at: index of the layer in the instruction.
        """
        device = self.devices[one.devices[0]]
        one.at, one.left, one.lost_s = at, one.works[at].fraction * self.shares.work_s[one.node], 0.0
        one.began = one.since = now
        device.layers[one.node] = one
        if one.phase == 0 and self.shares.shares(one.node):
            one.phase = 1
            self._repace([n for n in self.shares.enter(one.node) if n != one.node], now)
        self._settle(device, now)
        self._ask(device, now)

    def _over(self, one: Motion, now: float) -> None:
        """End the latency or the current layer of a node, or the node itself."""
        n = one.node
        if one.computes:
            self._advance(one, now)
            self._saw(one, now)
            if one.at + 1 < len(one.works):
                self._layer(one, one.at + 1, now)
                return
        elif one.phase == 0 and self.shares.shares(n):
            self._advance(one, now)
            self._flow(one, now)
            return
        elif one.devices:
            self._advance(one, now)
            self._saw(one, now)
        del self._moving[n]
        for d in one.devices:
            self.devices[d].layers.pop(n, None)
            self.devices[d].collectives.pop(n, None)
        if one.phase == 1:
            self._repace(self.shares.leave(n), now)
        self._begin(self._finish(n, now), now)
        for d in one.devices:
            if one.computes:
                self._settle(self.devices[d], now)
            self._ask(self.devices[d], now)

    def _finish(self, n: int, now: float) -> list[int]:
        """End a node; return its successors that can begin now."""
        self.end[n] = now
        self._finished += 1
        found = []
        for to in self.nodes.successors(n):
            self.waits[to] -= 1
            if self.waits[to] == 0:
                self.cause[to] = n
                found.append(to)
        return found

    def _repace(self, nodes: list[int], now: float) -> None:
        for n in nodes:
            self._pace(self._moving[n], now)

    def _pace(self, one: Motion, now: float) -> None:
        """Set the rate of a running node, from shared resources and concurrent launches."""
        self._advance(one, now)
        one.pace = self._slowed(one)
        one.rate = one.pace * (self.shares.rate(one.node) if one.phase == 1 else 1.0)
        one.version += 1
        if one.rate > 1e-9:
            self._push(now + max(0.0, one.left) / one.rate, _AT, one.node, -1, one.version)

    def _slowed(self, one: Motion) -> float:
        """Rate of a node, relative to its rate without launches."""
        if one.computes:
            return self.devices[one.devices[0]].pace
        disturbed = any(self.devices[d].busy for d in one.devices)
        return 1 / self.rules.collective_slowdown if disturbed else 1.0

    def _advance(self, one: Motion, now: float) -> None:
        """Subtract the work that a node has done since its last update."""
        passed = now - one.since
        one.left -= passed * one.rate
        one.since = now
        lost_s = passed * (1 - one.pace)
        if lost_s > 0:
            one.lost_s += lost_s
            self.lost_s[self.devices[one.devices[0]].launch.kind if one.computes else COLLECTIVE] += lost_s

    def _saw(self, one: Motion, now: float) -> None:
        seen = self.seen.setdefault((*self.nodes.kind(one.node), one.at), [0.0, 0.0])
        seen[0] += now - one.began
        seen[1] += now - one.began - one.lost_s

    # Launches of the background

    def _settle(self, device: SharedDevice, now: float) -> None:
        """Update the rates of the launch on a device and of the layers beside it."""
        device.advance(now)
        ends = device.settle(now)
        for one in list(device.layers.values()):
            self._pace(one, now)
        if device.busy:
            self._push(ends, _AT, -1, device.number, device.version)

    def _ask(self, device: SharedDevice, now: float) -> None:
        """Schedule an attempt to begin a launch, after all other events of this time."""
        if not device.busy and not device.asked:
            device.asked = True
            self._push(now + SOON_S, _BEHIND, -1, device.number, 0)

    def _launch(self, device: SharedDevice, now: float) -> None:
        """Begin the next launch, if the rules allow it and the foreground leaves room."""
        device.asked = False
        if self._may(device) and (share := device.room()) > 0:
            device.begin(share, now)
            self._disturb(device, now)
            self._settle(device, now)

    def _may(self, device: SharedDevice) -> bool:
        """True if a launch may begin beside the running work."""
        there = (*device.collectives.values(), *device.layers.values())
        if any((*self.nodes.kind(one.node), one.at) in self.paused for one in there):
            return False
        return self.rules.beside or not device.layers

    def _launch_over(self, device: SharedDevice, now: float) -> None:
        """End a launch; the launches that were queued with it follow at once."""
        device.advance(now)
        for one in device.layers.values():
            self._advance(one, now)
        if device.end(now):
            self._disturb(device, now)
        self._settle(device, now)
        self._ask(device, now)

    def _disturb(self, device: SharedDevice, now: float) -> None:
        for one in list(device.collectives.values()):
            self._pace(one, now)

    # Bounds

    def _patience(self) -> float:
        """Maximum number of seconds until the next latency, layer or node ends.

        A layer can be stopped completely only by launches that are on its device when it begins. These are the
        launches of one queue (`Collocation.outstanding`), each with at least half of the least share. Beside launches
        that begin later, a layer has at least half of its pace (`Collocation.rates`). A collective has the pace that
        `Collocation.collective_slowdown` leaves. All nodes have at least their least share of links and cores
        (`ResourceLoads.least_rate`).
        """
        rules = self.rules
        slowest = max(2 * rules.compute_slowdown, rules.collective_slowdown)
        longest_s = max(launch.seconds for launch in self.job.launches)
        blocked_s = 2 * rules.outstanding * longest_s * rules.compute_slowdown / rules.least_share
        alone = [
            (a + b, work) for a, b, work in zip(self._late_s, self.shares.latency_s, self.shares.work_s, strict=True)
        ]
        least = (self.shares.least_rate(n) if self.shares.shares(n) else 1.0 for n in range(len(self.waits)))
        nodes_s = max((a + work / rate for (a, work), rate in zip(alone, least, strict=True)), default=0.0)
        return blocked_s + slowest * nodes_s + 2 * SOON_S

    def _stuck(self, now: float) -> InternalError:
        """Error for a replay without progress; the message describes its state."""
        moving = [f"{self.nodes.instruction(n).name} (node {n})" for n in list(self._moving)[:_SHOWN]]
        launched = [str(d) for d, device in self.devices.items() if device.busy]
        first = next((n for n, waits in enumerate(self.waits) if waits > 0), -1)
        waiting = f"; {self.nodes.instruction(first).name} (node {first}) waits" if first >= 0 else ""
        return InternalError(
            f"{self.outcome.program.name} with a background job makes no progress at {now:.6g} s, after "
            f"{now - self._progress_s:.3g} s: {self._finished} of {len(self.waits)} nodes have ended; "
            f"in motion: {', '.join(moving) or 'nothing'}{waiting}; "
            f"launches on devices: {', '.join(launched) or 'none'}"
        )

    def outcome_of(self) -> SimulationResult:
        """Result of the replay; it has no records of memory."""
        none = (np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))
        start, end, cause = np.array(self.start), np.array(self.end), np.array(self.cause, dtype=np.int64)
        return replace(self.outcome, start_s=start, end_s=end, cause=cause, records=none)

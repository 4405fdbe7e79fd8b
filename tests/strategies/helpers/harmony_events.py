"""Reference model of an iteration of Harmony, with a queue for each lane.

An event begins after the event before it in its queue, and after all events that it names. The two ends of a peer
transfer begin together. All numbers are read layer by layer from the profile, without prefix sums, and share no code
with the model under test.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np

from hocket.strategies.swapping.costs import DirectionCosts, LayerProfile, Server
from hocket.strategies.swapping.tuner import Mode

Name = tuple[object, ...]


@dataclass
class Event:
    """Seconds in a queue (device, lane), after other events.

    `peer` is the other end of a transfer.
    """

    queue: tuple[int, str]
    seconds: float
    after: list[Name]
    peer: Name | None = None


@dataclass
class Play:
    """Events, in the order in which they join their queues."""

    events: dict[Name, Event] = field(default_factory=dict)
    queues: dict[tuple[int, str], list[Name]] = field(default_factory=dict)

    def add(
        self, name: Name, device: int, lane: str, seconds: float, after: list[Name], peer: Name | None = None
    ) -> None:
        """Add an event at the end of its queue."""
        assert name not in self.events
        self.events[name] = Event((device, lane), seconds, after, peer)
        self.queues.setdefault((device, lane), []).append(name)

    def seconds(self) -> float:
        """End of the last event; infinite if events wait for each other."""
        before = {b: a for queue in self.queues.values() for a, b in pairwise(queue)}
        next_of = dict.fromkeys(self.queues, 0)
        ends: dict[Name, float] = {}
        moved = True
        while moved:
            moved = False
            for key, queue in self.queues.items():
                while next_of[key] < len(queue):
                    name = queue[next_of[key]]
                    waits = []
                    for one in (name, self.events[name].peer):
                        if one is not None:
                            waits += self.events[one].after + ([before[one]] if one in before else [])
                    if any(wait not in ends for wait in waits):
                        break
                    ends[name] = max((ends[wait] for wait in waits), default=0.0) + self.events[name].seconds
                    next_of[key] += 1
                    moved = True
        return max(ends.values()) if len(ends) == len(self.events) else inf


def layer_s(way: DirectionCosts, size: int, layer: int) -> float:
    """Seconds of one layer."""
    return float(np.interp(size, way.sizes, way.seconds[:, layer]))


def iteration_s(
    profile: LayerProfile, server: Server, batch: int, mode: Mode, ahead: int, forward: list[int], back: int, backward: list[int]
) -> float:  # fmt: skip
    """Seconds of an iteration.


    Arguments:
        ahead: microbatch size of forwards.
        forward: ends of forward packs from 0 on; the last is the start of the last backward pack.
        back: microbatch size of backwards.
        backward: ends of backward packs from 0 on.
    """
    alone, layers = mode is Mode.DATA, profile.layers
    samples = batch // server.devices if alone else batch
    tasks = [("forward", a, e) for a, e in pairwise(forward)]
    tasks += [("backward", a, e) for a, e in reversed(list(pairwise(backward)))]
    used = server.devices if alone else min(server.devices, len(tasks))
    swap, host = server.swap_bytes_per_s / used, server.host_bytes_per_s / used
    device = [0 if alone else t % server.devices for t in range(len(tasks))]
    begins = {a: t for t, (way, a, _) in enumerate(tasks) if way == "backward"}
    stashed = [a for a in begins if begins[a] != len(forward) - 1]  # all but the last pack's
    through_host = not alone and ahead != back
    source = [((j + 1) * back - 1) // ahead for j in range(samples // back)]

    def border(size: int, layer: int) -> float:
        return size * float(profile.input_bytes[layer]) if layer < layers else 0.0

    def handed(t: int, layer: int, then: int) -> float:
        return 0.0 if device[t] == device[then] else 2 * border(back, layer) / host

    play = Play()
    for t, (way, a, e) in enumerate(tasks):
        d, span = device[t], range(a, e)
        left = t - (1 if alone else server.devices)
        loaded = sum(profile.weights_bytes[layer] for layer in span) / swap
        play.add(("weights", t), d, "in", loaded, [("free", left)] if left >= 0 else [])
        last_pack = e == layers
        size = ahead if way == "forward" else back
        cuts = [a, *(layer for layer in range(a + 1, e) if layer in stashed and way == "forward"), e]
        final = len(cuts) - 2
        for i in range(samples // size):
            gate: list[Name] = [("weights", t)]
            if i:
                gate = [("compute", t, i - 1, 0 if way == "backward" else final)]
                if alone and way == "forward":
                    gate = [("output", t, i - 1)]
                elif alone and a:
                    gate = [("gradient", t, i - 1)]
            x, x_name = border(size, a), ("input", t, i)
            if way == "backward" and not last_pack:
                play.add(x_name, d, "in", x / swap, [("stash", a, i), *gate])
            elif a == 0:
                play.add(x_name, d, "in", x / swap, gate)
            elif alone:
                play.add(x_name, d, "in", x / swap, [("output", t - 1, i if way == "forward" else source[i]), *gate])
            elif way == "backward" and through_host:
                play.add(x_name, d, "in", x / swap, [("message", i), *gate])
            else:
                play.add(x_name, d, "peer in", x / server.peer_bytes_per_s, gate, ("output", t - 1, i))
            first = [x_name, *([("weights", t)] if i == 0 else [])]
            done: Name = ("compute", t, i, final)
            if way == "forward":
                for s, (p, q) in enumerate(pairwise(cuts)):
                    kept: list[Name] = [("out", p, i)] if p in stashed else []
                    play.add(("compute", t, i, s), d, "compute", sum(layer_s(profile.forward, size, k) for k in range(p, q)),
                             (first if s == 0 else []) + kept)  # fmt: skip
                    if kept:
                        play.add(
                            kept[0], d, "out", border(size, p) / swap, [x_name if s == 0 else ("compute", t, i, s - 1)]
                        )
                        for j in (j for j, whole in enumerate(source) if whole == i):
                            play.add(("stash", p, j), d, "host", 0.0 if alone else handed(t, p, begins[p]), kept)
                y = border(size, e)
                if alone:
                    play.add(("output", t, i), d, "out", y / swap, [done])
                elif through_host and t == len(forward) - 2:
                    play.add(("output", t, i), d, "out", y / swap, [done])
                    for j in (j for j, whole in enumerate(source) if whole == i):
                        play.add(("message", j), d, "host", handed(t, e, t + 1), [("output", t, i)])
                else:
                    play.add(("output", t, i), d, "peer out", y / server.peer_bytes_per_s, [done], ("input", t + 1, i))
                continue
            again = sum(layer_s(profile.forward, size, k) for k in span)
            play.add(("again", t, i), d, "compute", again, first)
            behind: list[Name] = [] if last_pack else [("gradient in", t, i)]
            if behind:
                y = border(size, e)
                if alone:
                    play.add(behind[0], d, "in", y / swap, [("gradient", t - 1, i), ("again", t, i)])
                else:
                    play.add(
                        behind[0], d, "peer in", y / server.peer_bytes_per_s, [("again", t, i)], ("gradient", t - 1, i)
                    )
            play.add(done, d, "compute", sum(layer_s(profile.backward, size, k) for k in span) - again, behind)
            if a and alone:
                play.add(("gradient", t, i), d, "out", x / swap, [done])
            elif a:
                play.add(
                    ("gradient", t, i), d, "peer out", x / server.peer_bytes_per_s, [done], ("gradient in", t + 1, i)
                )
        if way == "forward":
            free: list[Name] = [("output", t, samples // size - 1)] if alone else []
            play.add(("free", t), d, "compute", server.freeing_s, free)
            continue
        summed: list[Name] = [("compute", t, samples // size - 1, 0)]
        if alone and used > 1:
            ring_s = 2 * (used - 1) / used * loaded * swap / server.peer_bytes_per_s
            play.add(("sum", t), d, "compute", ring_s, [("gradient", t, samples // size - 1)] if a else summed)
            summed = [("sum", t)]
        play.add(("weight gradients", t), d, "out", loaded, summed)
        play.add(("free", t), d, "compute", server.freeing_s, [("weight gradients", t)])
        play.add(("step", t), d, "host", sum(profile.step_s[layer] for layer in span), [("weight gradients", t)])
    return play.seconds()

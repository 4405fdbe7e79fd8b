"""Bounds: seconds that no iteration of a choice can be below and bytes that it needs at least, without compiling it.

Rules of this file: never above what the simulation gives, so that a search may leave out what a bound excludes; it knows
no strategy by name, only its declared rule and its microbatches in flight. What is bounded:

- a device runs its own stages' forwards, backwards and steps;
- between a batch's first forward and its update lies the way to the farthest stage and back, where there is a flush;
- a stage with w microbatches in flight takes, for every w, the way from there to the end and back (Little's law);
- an update waits for its all-reduce, and the forward that reads its version waits for the update;
- links carry one message's bytes at a time, the cores of a host one second of compute each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, lcm

import numpy as np

from hocket.cost.compute import Columns, step_s
from hocket.cost.contention import Resource, collective_uses, host_of, transfer_uses
from hocket.cost.model import CostModel
from hocket.cost.transfer import collective
from hocket.passes.borders import StageCut, stage_shapes
from hocket.program.instruction import Kind
from hocket.program.program import StageShape
from hocket.strategies._choices import Choice, Situation
from hocket.strategies._common import complete, strategy


@dataclass(frozen=True)
class _Run:
    """A run of layers at one microbatch size: seconds of whole and of the smallest microbatches, and bytes."""

    forward_s: float
    backward_s: float
    least_forward_s: float
    least_backward_s: float
    step_s: float
    behind_s: float  # of the backward, after the last gradient of weights is made
    stash_bytes: float
    held_bytes: float  # weights, optimizer state and buffers
    gradients_bytes: tuple[float, ...]  # by layer


@dataclass(frozen=True)
class _Stages:
    """One choice's stages as arrays; shape (stages,), borders (stages - 1,)."""

    runs: tuple[_Run, ...]
    microbatches: int
    forward_s: np.ndarray
    backward_s: np.ndarray
    again_s: np.ndarray
    widths: np.ndarray
    factors: np.ndarray

    @cached_property
    def batch_s(self) -> np.ndarray:
        """Forwards and backwards of a whole batch, by stage, on one device."""
        least_s = np.array([r.least_forward_s + r.least_backward_s for r in self.runs])
        least_s += np.where(self.again_s > 0, [r.least_forward_s for r in self.runs], 0.0)
        whole_s = self.forward_s + self.backward_s + self.again_s
        found: np.ndarray = ((self.microbatches - 1) * whole_s + least_s) * self.factors
        return found

    @cached_property
    def busiest_s(self) -> np.ndarray:
        """The same for the replica that has most to do."""
        whole_s = (self.forward_s + self.backward_s + self.again_s) * self.factors
        share = -(-self.microbatches // self.widths)
        less_s = self.microbatches * whole_s - self.batch_s
        # The smaller microbatch may lie on the one replica that has one more than the others.
        alone = (self.widths == 1) | (self.microbatches % self.widths == 1)
        found: np.ndarray = np.maximum(share * whole_s - np.where(alone, less_s, 0.0), (share - 1) * whole_s)
        return found


class Bounds:
    """Bounds for the choices of one situation. Figures that choices share are worked out once."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._columns = Columns(situation.profile)
        everything = StageCut(tuple(range(len(situation.profile.layers))), tuple(range(situation.cluster.devices)))
        costs = CostModel(situation.profile, situation.cluster, (everything,), (1,))
        self._factors = [costs.factor(d) for d in range(situation.cluster.devices)]
        self._runs: dict[tuple[int, tuple[int, ...]], _Run] = {}
        self._stages: dict[tuple[int, int], tuple[tuple[StageCut, ...], _Stages]] = {}
        self._quick: dict[tuple[int, int], float] = {}
        self._shapes: dict[int, tuple[tuple[StageCut, ...], tuple[StageShape, ...]]] = {}
        self._borders: dict[tuple[int, int], tuple[tuple[StageCut, ...], np.ndarray, np.ndarray]] = {}
        self._loads: dict[tuple[tuple[int, ...], ...], tuple[list[Resource], np.ndarray, np.ndarray]] = {}
        self._rings: dict[tuple[tuple[int, ...], float], float] = {}

    # Seconds

    def quick_s(self, choice: Choice) -> float:
        """Compute alone: the busiest device."""
        key = (id(choice.stages), choice.microbatch_size)
        if key not in self._quick:
            stages = self._of(choice)
            self._quick[key] = max(_by_device(choice, stages.batch_s / stages.widths).values())
        return self._quick[key]

    def shapes(self, choice: Choice) -> tuple[StageShape, ...]:
        """What a program must know of the choice's stages; strategies share many."""
        key = id(choice.stages)
        if key not in self._shapes:
            self._shapes[key] = (choice.stages, stage_shapes(self._situation.profile, choice.stages))
        return self._shapes[key][1]

    def seconds(self, name: str, shapes: tuple[StageShape, ...], choice: Choice) -> float:
        """Everything that the head of this file lists. The strategy must support the choice."""
        stages, member = self._of(choice), strategy(name)
        options = complete(name, choice.options)
        rule = member.rule(shapes, stages.microbatches, options)
        waiting = member.in_flight(shapes, stages.microbatches, options)
        forth_s, back_s = self._message_s(choice)
        tail_s, anywhere_s, ring_s = self._tails(choice, stages)
        updates = np.array([stages.microbatches / batch for batch in rule.batch])
        step_s = np.array([run.step_s for run in stages.runs]) * stages.factors
        found = [
            _little_s(stages, waiting, forth_s, back_s),
            float((updates * ring_s).max()),
            self._links_s(choice, stages, updates),
        ]
        if rule.synchronous and rule.batch[0] == stages.microbatches:
            found.append(self._flushed_s(choice, stages, forth_s, back_s, (tail_s, anywhere_s), step_s))
        else:
            found.append(self._busy_s(choice, stages.batch_s / stages.widths + updates * step_s))
            ways_s = _ways_s(stages, forth_s, back_s)
            found.append(float((updates * (ways_s + tail_s) / (np.array(rule.delay) + 1)).max()))
        return max(found)

    def _of(self, choice: Choice) -> _Stages:
        key = (id(choice.stages), choice.microbatch_size)
        kept = self._stages.get(key)
        if kept is None:
            batch, size = self._situation.batch_size, choice.microbatch_size
            runs = tuple(self._run(cut.layers, size) for cut in choice.stages)
            forward_s = np.array([run.forward_s for run in runs])
            again = np.array([cut.recompute for cut in choice.stages])
            stages = _Stages(
                runs,
                ceil(batch / size),
                forward_s,
                np.array([run.backward_s for run in runs]),
                np.where(again, forward_s, 0.0),
                np.array([len(cut.devices) for cut in choice.stages]),
                np.array([min(self._factors[d] for d in cut.devices) for cut in choice.stages]),
            )
            kept = self._stages[key] = (choice.stages, stages)  # the first keeps the identity from being given anew
        return kept[1]

    def _run(self, layers: tuple[int, ...], size: int) -> _Run:
        found = self._runs.get((size, layers))
        if found is None:
            batch, profile, index = self._situation.batch_size, self._situation.profile, list(layers)
            last = batch - (ceil(batch / size) - 1) * size
            full, least = self._columns.at(min(size, batch)), self._columns.at(last)
            own = [self._weights(i) for i in index]
            first = next((k for k, (_, gradients) in enumerate(own) if gradients > 0), len(index))
            backward = full.backward_s[index]
            found = self._runs[size, layers] = _Run(
                float(full.forward_s[index].sum()),
                float(backward.sum()),
                float(least.forward_s[index].sum()),
                float(least.backward_s[index].sum()),
                step_s(profile, layers),
                float(backward[:first].sum()),
                float(full.stash_bytes[index].sum()),
                sum(held for held, _ in own) + sum(profile.layers[i].buffers_bytes for i in index),
                tuple(gradients for _, gradients in own),
            )
        return found

    def _weights(self, layer: int) -> tuple[float, float]:
        """Bytes of a layer's weights with their optimizer state, and of their gradients; of shared ones none."""
        one = self._situation.profile.layers[layer]
        if not one.parameters:
            return one.weights_bytes + one.optimizer_bytes, one.gradients_bytes
        own = [self._columns.parameters[name] for name in one.parameters if name not in self._shared]
        return sum(w + o for w, _, o in own), sum(g for _, g, _ in own)

    @cached_property
    def _shared(self) -> frozenset[str]:
        names = [name for layer in self._situation.profile.layers for name in set(layer.parameters)]
        return (
            frozenset(name for name in set(names) if names.count(name) > 1)
            if len(set(names)) < len(names)
            else frozenset()
        )

    def _busy_s(self, choice: Choice, stage_s: np.ndarray) -> float:
        """The busiest device, and the busiest host."""
        seconds = _by_device(choice, stage_s)
        cluster = self._situation.cluster
        most = max(seconds.values())
        if cluster.host_cores is not None:
            hosts: dict[Resource, float] = {}
            for device, each in seconds.items():
                host = host_of(cluster, device)
                hosts[host] = hosts.get(host, 0.0) + each
            most = max(most, max(hosts.values()) / cluster.host_cores)
        return most

    def _flushed_s(
        self,
        choice: Choice,
        stages: _Stages,
        forth_s: np.ndarray,
        back_s: np.ndarray,
        tails_s: tuple[np.ndarray, np.ndarray],
        step_s: np.ndarray,
    ) -> float:
        """A batch between two flushes: into a device, what it runs, out again, and the update where the way began."""
        tail_s, anywhere_s = tails_s
        count = len(stages.runs)
        into_s, out_s, root = np.zeros(count), np.zeros(count), np.zeros(count, dtype=int)
        for s in range(count):
            if s and forth_s[s - 1] >= 0 and back_s[s - 1] >= 0:
                run, factor = stages.runs[s - 1], stages.factors[s - 1]
                into_s[s] = into_s[s - 1] + run.least_forward_s * factor + forth_s[s - 1]
                out_s[s] = out_s[s - 1] + run.least_backward_s * factor + back_s[s - 1]
                root[s] = root[s - 1]
            else:
                root[s] = s
        hosted: dict[tuple[int, ...], list[int]] = {}
        for s, cut in enumerate(choice.stages):
            hosted.setdefault(cut.devices, []).append(s)
        most = 0.0
        for own in hosted.values():
            busy_s = (
                float(stages.busiest_s[own].sum())
                if len(own) == 1
                else float((stages.batch_s / stages.widths)[own].sum())
            )
            if len(own) == 1:
                # Another replica may be the busiest in the next batch: then only the all-reduce keeps them together.
                turns = stages.microbatches % len(choice.stages[own[0]].devices)
                most = max(most, busy_s + float((anywhere_s if turns else tail_s)[own[0]]))
            if len({int(root[s]) for s in own}) == 1:
                way_s = float(into_s[own].min() + out_s[own].min())
                most = max(most, way_s + busy_s + float(anywhere_s[root[own[0]]]))
        return max(most, self._busy_s(choice, stages.batch_s / stages.widths + step_s))

    def _tails(self, choice: Choice, stages: _Stages) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of every stage: seconds from its last backward to the end of the update, on the device of that backward and on
        any of its replicas (below 0 where gradients are complete before the backward is); seconds of its all-reduces."""
        tails, anywhere, rings = [], [], []
        for cut, run, factor in zip(choice.stages, stages.runs, stages.factors.tolist(), strict=True):
            ring = self._rings_s(cut, run)
            exposed = max(ring[-1] - run.behind_s * factor, sum(ring) - run.backward_s * factor) if ring else 0.0
            tails.append(max(0.0, exposed) + run.step_s * factor)
            anywhere.append(exposed + run.step_s * factor)
            rings.append(sum(ring))
        return np.array(tails), np.array(anywhere), np.array(rings)

    def _rings_s(self, cut: StageCut, run: _Run) -> list[float]:
        """Seconds of the all-reduce of each bucket."""
        if len(cut.devices) == 1:
            return []
        position = {layer: k for k, layer in enumerate(cut.layers)}
        found = []
        for bucket in cut.buckets or (cut.layers,):
            size = sum(run.gradients_bytes[position[layer]] for layer in bucket)
            key = (cut.devices, size)
            if key not in self._rings:
                self._rings[key] = sum(collective(self._situation.cluster, Kind.ALL_REDUCE, cut.devices, size))
            found.append(self._rings[key])
        return found

    def _message_s(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds of a microbatch's activations to the next stage, and of their gradients back; -1 where none go."""
        forth, back = self._border_bytes(choice)
        _, _, fastest = self._load(tuple(cut.devices for cut in choice.stages))
        seconds = [np.where(size > 0, fastest[:, 0] + size * fastest[:, 1], -1.0) for size in (forth, back)]
        return seconds[0], seconds[1]

    def _border_bytes(self, choice: Choice, least: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of activations and of gradients between each stage and the next; of the smallest microbatch or a whole one."""
        key = (id(choice.stages), 2 * choice.microbatch_size + least)
        kept = self._borders.get(key)
        if kept is None:
            batch, size = self._situation.batch_size, choice.microbatch_size
            samples = batch - (ceil(batch / size) - 1) * size if least else min(size, batch)
            count = len(choice.stages)
            stage_of = np.zeros(len(self._situation.profile.layers), dtype=int)
            for s, cut in enumerate(choice.stages):
                stage_of[list(cut.layers)] = s
            tensor, source, target, gradient = self._edges
            first, second = stage_of[source], stage_of[target]
            go = second == first + 1
            # A tensor that several layers of the next stage read is sent once.
            tensor, first, at = tensor[go], first[go], np.flatnonzero(go)
            once = np.concatenate(([True], np.diff(tensor) > 0)) if len(tensor) else np.zeros(0, dtype=bool)
            tensor, first, at = tensor[once], first[once], at[once]
            sizes = self._columns.at(samples).tensor_bytes[tensor]
            forth = np.bincount(first, weights=sizes, minlength=count)[: count - 1]
            back = np.bincount(first, weights=sizes * gradient[at], minlength=count)[: count - 1]
            kept = self._borders[key] = (choice.stages, forth, back)
        return kept[1], kept[2]

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Every reading of a tensor by a layer: tensor, source, target, whether a gradient comes back."""
        rows = [
            (index, tensor.source, target, tensor.gradient)
            for index, tensor in enumerate(self._situation.profile.tensors)
            for target in tensor.targets
            if tensor.source >= 0
        ]
        table = np.array(rows, dtype=int).reshape(len(rows), 4)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3]

    def _load(self, devices: tuple[tuple[int, ...], ...]) -> tuple[list[Resource], np.ndarray, np.ndarray]:
        """What one microbatch loads on average between neighbouring stages on these devices.

        Returns:
            the links; seconds of each for a byte forth and a byte back over each border, shape (2, links, borders); the
            least latency and seconds a byte of each border, shape (borders, 2).
        """
        if devices not in self._loads:
            cluster, borders = self._situation.cluster, len(devices) - 1
            number: dict[Resource, int] = {}
            entries: list[tuple[int, int, int, float]] = []
            fastest = np.zeros((borders, 2))
            for border in range(borders):
                here, there = devices[border], devices[border + 1]
                turns = lcm(len(here), len(there))
                pairs = [(here[m % len(here)], there[m % len(there)]) for m in range(turns)]
                far = [pair for pair in pairs if pair[0] != pair[1]]
                links = [cluster.link_between(*pair) for pair in far]
                if len(far) == len(pairs):
                    fastest[border] = min(x.latency_s for x in links), min(1 / x.bandwidth_bytes_per_s for x in links)
                for pair, link in zip(far, links, strict=True):
                    for way, hop in enumerate((pair, pair[::-1])):
                        for use in transfer_uses(cluster, (hop,)):
                            if use.governed:
                                row = number.setdefault(use.resource, len(number))
                                entries.append((way, row, border, 1 / turns / link.bandwidth_bytes_per_s))
            table = np.zeros((2, len(number), borders))
            for way, row, border, seconds in entries:
                table[way, row, border] += seconds
            self._loads[devices] = (list(number), table, fastest)
        return self._loads[devices]

    def _links_s(self, choice: Choice, stages: _Stages, updates: np.ndarray) -> float:
        """The busiest link."""
        resources, table, _ = self._load(tuple(cut.devices for cut in choice.stages))
        forth, back = self._border_bytes(choice, least=False)
        # The last microbatch of a batch may be smaller: it is left out.
        seconds = (stages.microbatches - 1) * (table[0] @ forth + table[1] @ back)
        load = dict(zip(resources, seconds.tolist(), strict=True))
        cluster = self._situation.cluster
        for cut, run, count in zip(choice.stages, stages.runs, updates.tolist(), strict=True):
            if len(cut.devices) > 1:
                size = sum(run.gradients_bytes)
                flow_s = count * collective(cluster, Kind.ALL_REDUCE, cut.devices, size).flow_s
                for use in collective_uses(cluster, cut.devices):
                    if use.governed:
                        load[use.resource] = load.get(use.resource, 0.0) + flow_s
        return max(load.values(), default=0.0)

    # Bytes

    def peak_bytes(self, name: str, shapes: tuple[StageShape, ...], choice: Choice) -> dict[int, float]:
        """Bytes that each device holds at some time at least: its weights, and gradients or stashes."""
        stages = self._of(choice)
        waiting = strategy(name).in_flight(shapes, stages.microbatches, complete(name, choice.options))
        held: dict[int, float] = {}
        more: dict[int, float] = {}
        for cut, run, alive in zip(choice.stages, stages.runs, waiting, strict=True):
            stash = 0.0 if cut.recompute else (alive - 1) * run.stash_bytes
            for device in cut.devices:
                held[device] = held.get(device, 0.0) + run.held_bytes
                more[device] = max(more.get(device, 0.0), stash, sum(run.gradients_bytes))
        return {device: held[device] + more[device] for device in held}


def _little_s(stages: _Stages, waiting: Sequence[int], forth_s: np.ndarray, back_s: np.ndarray) -> float:
    """As many microbatches as are in flight at once take the way to the end and back; the ragged one is left out."""
    share = (stages.microbatches - 1) // stages.widths
    return float((share / np.array(waiting) * _ways_s(stages, forth_s, back_s)).max())


def _by_device(choice: Choice, stage_s: np.ndarray) -> dict[int, float]:
    """Seconds of each device, given those of its stages."""
    seconds: dict[int, float] = {}
    for cut, each in zip(choice.stages, stage_s.tolist(), strict=True):
        for device in cut.devices:
            seconds[device] = seconds.get(device, 0.0) + each
    return seconds


def _ways_s(stages: _Stages, forth_s: np.ndarray, back_s: np.ndarray) -> np.ndarray:
    """Least seconds from the beginning of a microbatch's forward on each stage to the end of its backward there."""
    count = len(stages.runs)
    ways = np.array([r.least_forward_s + r.least_backward_s for r in stages.runs]) * stages.factors
    for s in range(count - 2, -1, -1):
        if forth_s[s] >= 0 and back_s[s] >= 0:
            ways[s] += ways[s + 1] + forth_s[s] + back_s[s]
    return ways

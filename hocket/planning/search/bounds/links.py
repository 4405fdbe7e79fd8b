"""Link figures of bounds: least seconds of messages and all-reduces, and the load of the busiest link."""

from functools import cached_property
from math import ceil, lcm

import numpy as np

from hocket.cost.compute import Columns
from hocket.cost.contention import Resource, collective_uses, transfer_uses
from hocket.cost.transfer import TransferTime, collective
from hocket.planning.search.bounds.stages import LayerRun, Stages
from hocket.program.instruction import Kind
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.search_space import Candidate, SearchSpace


class LinkFigures:
    """Messages of the candidates of one request; shared figures are computed once."""

    def __init__(self, situation: SearchSpace, columns: Columns) -> None:
        self._situation, self._columns = situation, columns
        self._borders: dict[tuple[int, int], tuple[tuple[StageCut, ...], np.ndarray, np.ndarray]] = {}
        self._loads: dict[tuple[tuple[int, ...], ...], tuple[list[Resource], np.ndarray, np.ndarray]] = {}
        self._rings: dict[tuple[Kind, tuple[int, ...], float], float] = {}

    def rings_s(self, cut: StageCut, run: LayerRun) -> list[float]:
        """Seconds of each bucket's sum over the replicas; for reduce-scatters, until each replica has its part.

        Whatever the buckets, the last one has at least the last gradients.
        """
        kind = Kind.REDUCE_SCATTER if cut.sharded else Kind.ALL_REDUCE
        if len(cut.devices) == 1:
            return []
        if self._situation.rebuckets:
            last = next((size for size in run.gradients_bytes if size > 0), 0.0)
            whole_s, last_s = (self._ring_s(kind, cut.devices, size) for size in (sum(run.gradients_bytes), last))
            return [whole_s - last_s, last_s]
        position = {layer: k for k, layer in enumerate(cut.layers)}
        found = []
        for bucket in cut.buckets or (cut.layers,):
            size = sum(run.gradients_bytes[position[layer]] for layer in bucket)
            found.append(self._ring_s(kind, cut.devices, size))
        return found

    def _ring_s(self, kind: Kind, devices: tuple[int, ...], size_bytes: float) -> float:
        key = (kind, devices, size_bytes)
        if key not in self._rings:
            self._rings[key] = sum(self._collective(kind, devices, size_bytes))
        return self._rings[key]

    def _collective(self, kind: Kind, devices: tuple[int, ...], size_bytes: float) -> TransferTime:
        """Time of a collective with its fastest threads, if these can be chosen."""
        cluster, threads = self._situation.cluster, [0]
        overlap = cluster.levels[cluster.level_of(devices)].overlap
        if self._situation.rebuckets and overlap is not None and kind is Kind.ALL_REDUCE:
            threads += overlap.usable
        return min((collective(cluster, kind, devices, size_bytes, own) for own in threads), key=sum)

    def message_s(self, choice: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds of a microbatch's activations to the next stage, and of gradients back; -1 without messages."""
        forth, back = self._border_bytes(choice)
        _, _, fastest = self._load(tuple(cut.devices for cut in choice.stages))
        seconds = [np.where(size > 0, fastest[:, 0] + size * fastest[:, 1], -1.0) for size in (forth, back)]
        return seconds[0], seconds[1]

    def busiest_s(self, choice: Candidate, stages: Stages, updates: np.ndarray) -> float:
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
                kinds = (Kind.REDUCE_SCATTER, Kind.ALL_GATHER) if cut.sharded else (Kind.ALL_REDUCE,)
                flow_s = count * sum(self._collective(kind, cut.devices, size).flow_s for kind in kinds)
                for use in collective_uses(cluster, cut.devices):
                    if use.governed:
                        load[use.resource] = load.get(use.resource, 0.0) + flow_s
        return max(load.values(), default=0.0)

    def _border_bytes(self, choice: Candidate, least: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of activations and gradients between neighbouring stages, for the smallest or a whole microbatch."""
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
        """Mean load of one microbatch between neighbouring stages on these devices, by resource.

        Returns:
            the links (and compute lanes, see `_carriers`); seconds of each for a byte forth and a byte back over each border, shape (2, links, borders); the
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
                        for resource in self._carriers(*hop):
                            row = number.setdefault(resource, len(number))
                            entries.append((way, row, border, 1 / turns / link.bandwidth_bytes_per_s))
            table = np.zeros((2, len(number), borders))
            for way, row, border, seconds in entries:
                table[way, row, border] += seconds
            self._loads[devices] = (list(number), table, fastest)
        return self._loads[devices]

    def _carriers(self, source: int, target: int) -> list[Resource]:
        """Resources that carry one message's bytes: links, or the sender's compute lane if that copies."""
        cluster = self._situation.cluster
        if cluster.copied_between(source, target):
            return [("compute", 0, source, 0)]
        return [use.resource for use in transfer_uses(cluster, ((source, target),)) if use.governed]

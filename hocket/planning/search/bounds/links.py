"""Figures of links for bounds: messages, all-reduces, and the busiest link."""

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
    """Communication of the candidates of one search space.

    Figures that candidates share are computed once.
    """

    def __init__(self, space: SearchSpace, columns: Columns) -> None:
        self._space, self._columns = space, columns
        self._borders: dict[tuple[int, int], tuple[tuple[StageCut, ...], np.ndarray, np.ndarray]] = {}
        self._loads: dict[tuple[tuple[int, ...], ...], tuple[list[Resource], np.ndarray, np.ndarray]] = {}
        self._rings: dict[tuple[Kind, tuple[int, ...], float], float] = {}

    def rings_s(self, cut: StageCut, run: LayerRun) -> list[float]:
        """Seconds to sum each gradient bucket of a stage over its replicas.

        A reduce-scatter ends when each replica has its shard. If buckets may still be changed, there are two entries.
        The second is the last bucket, which holds at least the last gradients.

        Arguments:
            cut: the stage.
            run: figures of the stage's layers.
        """
        kind = Kind.REDUCE_SCATTER if cut.sharded else Kind.ALL_REDUCE
        if len(cut.devices) == 1:
            return []
        if self._space.rebuckets:
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
        """Time of a collective with its fastest number of threads, if that can be chosen."""
        cluster, threads = self._space.cluster, [0]
        overlap = cluster.levels[cluster.level_of(devices)].overlap
        if self._space.rebuckets and overlap is not None and kind is Kind.ALL_REDUCE:
            threads += overlap.usable
        return min((collective(cluster, kind, devices, size_bytes, own) for own in threads), key=sum)

    def message_s(self, choice: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds of a microbatch's messages between neighbouring stages.

        Returns:
            Seconds of activations to the next stage, and of gradients back, each of shape (stages - 1,); -1 where no
                message is sent.
        """
        forth, back = self._border_bytes(choice)
        _, _, fastest = self._load(tuple(cut.devices for cut in choice.stages))
        seconds = [np.where(size > 0, fastest[:, 0] + size * fastest[:, 1], -1.0) for size in (forth, back)]
        return seconds[0], seconds[1]

    def busiest_s(self, choice: Candidate, stages: Stages, updates: np.ndarray) -> float:
        """Seconds that the busiest link carries data in a batch.

        Arguments:
            updates: number of updates of each stage in a batch.
        """
        resources, table, _ = self._load(tuple(cut.devices for cut in choice.stages))
        forth, back = self._border_bytes(choice, least=False)
        # The last microbatch of a batch may be smaller and is left out.
        seconds = (stages.microbatches - 1) * (table[0] @ forth + table[1] @ back)
        load = dict(zip(resources, seconds.tolist(), strict=True))
        cluster = self._space.cluster
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
        """Bytes of activations and gradients between neighbouring stages.

        Arguments:
            least: True for the smallest microbatch, False for a whole one.
        """
        key = (id(choice.stages), 2 * choice.microbatch_size + least)
        kept = self._borders.get(key)
        if kept is None:
            batch, size = self._space.batch_size, choice.microbatch_size
            samples = batch - (ceil(batch / size) - 1) * size if least else min(size, batch)
            count = len(choice.stages)
            stage_of = np.zeros(len(self._space.profile.layers), dtype=int)
            for s, cut in enumerate(choice.stages):
                stage_of[list(cut.layers)] = s
            tensor, source, target, gradient = self._edges
            first, second = stage_of[source], stage_of[target]
            go = second == first + 1
            # A tensor that several layers of the next stage read is sent only once.
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
        """Every read of a tensor by a layer.

        Returns:
            Arrays: tensor, source layer, target layer, and 1 if a gradient comes back.
        """
        rows = [
            (index, tensor.source, target, tensor.gradient)
            for index, tensor in enumerate(self._space.profile.tensors)
            for target in tensor.targets
            if tensor.source >= 0
        ]
        table = np.array(rows, dtype=int).reshape(len(rows), 4)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3]

    def _load(self, devices: tuple[tuple[int, ...], ...]) -> tuple[list[Resource], np.ndarray, np.ndarray]:
        """Mean load of each resource by one microbatch between neighbouring stages.

        Arguments:
            devices: devices of each stage.

        Returns:
            - Links, and compute lanes (see `_carriers`).
            - Seconds of each resource for a byte forward and a byte back over each stage boundary; shape
              (2, resources, boundaries).
            - Least latency and seconds per byte of each stage boundary, shape (boundaries, 2).
        """
        if devices not in self._loads:
            cluster, borders = self._space.cluster, len(devices) - 1
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
        """Resources that carry one message's bytes.

        They are links, or the sender's compute lane if the sender copies messages.
        """
        cluster = self._space.cluster
        if cluster.copied_between(source, target):
            return [("compute", 0, source, 0)]
        return [use.resource for use in transfer_uses(cluster, ((source, target),)) if use.governed]

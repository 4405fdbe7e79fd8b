"""Search for the fastest pipeline on one part of a cluster.

A part consists of equal copies of a run of consecutive devices. A pipeline on one copy is replicated as a whole on all
copies. This module calls the sweeps (kernel.py) and turns their results into layers and devices.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.strategies.pipedream_partition.buffers import Loops
from hocket.strategies.pipedream_partition.cost import Sync, all_reduce_bandwidth, level_spans
from hocket.strategies.pipedream_partition.cuts import Cuts
from hocket.strategies.pipedream_partition.memory import MemoryRule, kernel_memory
from hocket.strategies.pipedream_partition.topology import MAX_POSITIONS, Topology, groups, joined_levels, topology

# Maximum number of states of a sweep that finds the fewest stages for a bottleneck. A search with more states returns
# a pipeline of few stages, not always of the fewest.
MAX_TIE_STATES = 20_000_000

Placed = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class PartitionOptions:
    """Options of the partitioner (`partition.partition`).

    Attributes:
        rule: memory of the devices, and what a stage keeps in it (memory.py).
        replicate: False for a straight pipeline, with one device a stage.
        exact_devices: True to use every device; otherwise devices that do not help stay idle.
        max_stages: maximum number of stages; None for any number.
        sync: reading of the paper's synchronisation cost (cost.py).
        data_parallel_within: plain data parallelism is preferred if it is slower by at most this fraction.

    Raises:
        InputError: a maximum of fewer than one stage.
    """

    rule: MemoryRule = field(default_factory=MemoryRule)
    replicate: bool = True
    exact_devices: bool = False
    max_stages: int | None = None
    sync: Sync = "paper"
    data_parallel_within: float = 0.01

    def __post_init__(self) -> None:
        if self.max_stages is not None and self.max_stages < 1:
            raise InputError("max_stages", str(self.max_stages), ">= 1")

    @property
    def uniform(self) -> bool:
        """True if every device has the same memory."""
        return len(set(self.rule.capacity_bytes)) <= 1


@dataclass(frozen=True)
class LevelPart:
    """Part of a cluster: equal copies of a run of consecutive devices.

    Attributes:
        copies: number of copies.
        group: devices of a position, which act as one (topology.py).
        positions: positions of each copy.
    """

    copies: int
    group: int
    positions: int


def parts(cluster: Cluster, options: PartitionOptions, count: int) -> list[LevelPart]:
    """Parts of a cluster on which to search for a pipeline, the largest first.

    Arguments:
        count: number of possible cuts of the layer graph.
    """
    if not options.replicate:
        # A straight pipeline has no idle devices between its stages, so it needs at most as many devices as cuts.
        few = min(cluster.devices, count) if options.uniform and not options.exact_devices else cluster.devices
        return [LevelPart(1, 1, few)]
    found = []
    for copies in _copies(cluster, options.rule):
        sizes = groups(cluster, copies)
        for group in sizes[-1:] if copies > 1 or options.exact_devices else sizes:
            found.append(LevelPart(copies, group, min(cluster.devices // copies // group, MAX_POSITIONS)))
    return found


def _copies(cluster: Cluster, rule: MemoryRule) -> list[int]:
    """Numbers of copies of a pipeline to try, on as many equal parts of the cluster."""
    levels = joined_levels(cluster)
    if len(levels) < 2:
        return [1]
    inner, outer = levels[:-1], levels[-1]
    ordered = all_reduce_bandwidth(outer) <= min(map(all_reduce_bandwidth, inner))
    if not rule.limits and ordered and all(level.shared for level in levels[1:]):
        return [1]
    return [m for m in range(1, outer.width + 1) if outer.width % m == 0]


@dataclass(frozen=True)
class LevelTask:
    """Search on one part of the cluster.

    Attributes:
        places: possible cuts of the layer graph.
        loops: sweeps and their buffers, shared by the tasks of a search.
    """

    places: Cuts
    cluster: Cluster
    part: LevelPart
    options: PartitionOptions
    loops: Loops

    @cached_property
    def least_s(self) -> float:
        """Lower bound of the bottleneck, in seconds.

        It is the compute of all layers divided by the number of devices. Without replication it is at least the
        compute of the longest layer.
        """
        alone = 0.0 if self.options.replicate else self.places.longest_s
        return max(float(self._seconds[-1]) / self.part.positions, alone)

    @cached_property
    def most_s(self) -> float:
        """Upper bound of the smallest bottleneck, in seconds."""
        border, weights, crossing = self._table.border, self.places.weights_bytes, self.places.crossing_bytes
        slowest = float(max(border.max(), 1 / min(level.bandwidth_bytes_per_s for level in self.cluster.levels)))
        return float(self._seconds[-1] + crossing.max() * slowest + 2 * weights[-1] * slowest) * 2

    def sweep(self, limit_s: float) -> tuple[int, float]:
        """Number of stages and bottleneck of a pipeline with no term above the limit.

        The number is 0 if there is no such pipeline.
        """
        found, cost_s, _ = self._sweep(limit_s, self.options.max_stages or 0, True)
        return found, cost_s

    def trace(self, best_s: float, stages: int, limit_s: float) -> Placed:
        """Find the pipeline for a known smallest bottleneck.

        It has the fewest stages, and then the fewest devices.

        Arguments:
            best_s: the bottleneck.
            stages: number of stages of the pipeline that a sweep has found.
            limit_s: limit of that sweep. On more than two levels a sweep with the limit `best_s` may find no
                pipeline; the sweep with `limit_s` is then repeated.

        Returns:
            Layers and devices of each stage, from input to output.
        """
        cells, own = self._states
        separate = cells * own * (stages + 1) <= MAX_TIE_STATES
        found, _, end = self._sweep(best_s, stages if separate else self.options.max_stages or 0, False)
        if not found:
            _, _, end = self._sweep(limit_s, self.options.max_stages or 0, True)
        runs = self._runs(end)
        inside, group = self.cluster.devices // self.part.copies, self.part.group
        # The pipeline ends at the last device of its part. Idle devices come first, or last if whole components are
        # idle.
        end = inside
        if self.options.uniform and self.part.copies == 1:
            passed = max(first + count for _, _, first, count in runs) * group
            end -= _shift(end - passed, passed, level_spans(joined_levels(self.cluster)))
        return tuple(
            (
                self.places.layers(inner, outer),
                tuple(
                    copy * inside + device
                    for copy in range(self.part.copies)
                    for device in range(end - (first + count) * group, end - first * group)
                ),
            )
            for inner, outer, first, count in runs
        )

    def _runs(self, end: int) -> list[tuple[int, int, int, int]]:
        """Stages that the last sweep has found, from input to output.

        Arguments:
            end: row of the pipeline's last state (`kernel.sweep`).

        Returns:
            Inner cut, outer cut, first position and number of positions of each stage. Cuts are given by index.
            Positions are counted from the pipeline's end.
        """
        cuts, places, own = len(self.places.masks), self.part.positions + 1, self._states[1]
        runs = []
        state, before, replicas = self.loops.trail(end)
        while before:
            inner, (state, before, more) = state // own, self.loops.trail(before)
            if replicas:
                at = state // own
                runs.append((inner // places % cuts, at // places % cuts, at % places, replicas))
            replicas = more
        return runs

    def _sweep(self, limit_s: float, max_stages: int, cheapest: bool) -> tuple[int, float, int]:
        """Run `kernel.sweep` with the tables of the part; its result.

        Arguments:
            max_stages: maximum number of stages, which also separates states by number of stages; 0 for neither.
            cheapest: True for the smallest bottleneck, False for the fewest stages.
        """
        options, (cells, own) = self.options, self._states
        most = self.part.positions if options.replicate else 1
        every_count = options.exact_devices or options.sync == "ring"
        wishes = most, every_count, options.exact_devices, max_stages, cheapest
        few = len(self.places.masks) * most
        return self.loops.sweep(limit_s, self._figures, wishes, cells * (max_stages + 1), own, few)

    @cached_property
    def _states(self) -> tuple[int, int]:
        """Number of pairs of a cut and a position, and number of states of each pair."""
        positions, (_, _, (_, counted, *_)) = self.part.positions, self._figures
        own = (positions + 1 if counted else 1) * len(self._table.spans)
        return len(self.places.masks) * (positions + 1), own

    @cached_property
    def _seconds(self) -> np.ndarray:
        """Seconds of the layers inside each cut, on one position of every copy."""
        return self.places.seconds / (self.part.copies * self.part.group)

    @cached_property
    def _table(self) -> Topology:
        levels, part = joined_levels(self.cluster), self.part
        return topology(levels, part.copies, self.options.sync, part.group, part.positions)

    @cached_property
    def _figures(self) -> tuple[Any, ...]:
        """Arguments of every sweep: `graph`, `topology` and `memory` of `kernel.sweep`."""
        places, options, part, table = self.places, self.options, self.part, self._table
        own = (*places.predecessors, places.tied_bytes, places.tied_inside.reshape(-1))
        graph = (self._seconds, places.weights_bytes, places.crossing_bytes, *own)
        sizes = (places.activation_bytes, places.stash_bytes, places.fixed_bytes)
        counted, capacity, flight, *rule = kernel_memory(options.rule, part.positions, part.group, part.copies)
        told = self.loops.told
        memory = (told(capacity), float(capacity.max()), float(capacity.min()), told(flight.reshape(-1)), *rule)
        return (
            tuple(map(told, graph)),
            (part.positions, table.period, *map(told, table.flat), not (table.steep and options.uniform)),
            (options.rule.limits, counted, *map(told, sizes), *memory),
        )


def _shift(idle: int, passed: int, spans: list[int]) -> int:
    """Number of devices by which to move a pipeline towards the first device.

    The pipeline ends at the last device. The shift does not change which levels its stages span.

    Arguments:
        idle: number of devices before the pipeline.
        passed: number of devices from the pipeline's first to the last device.
        spans: number of devices in each component that a level joins.
    """
    shift = 0
    for span in reversed(spans):
        shift += (idle - shift) // span * span
        if idle - shift + passed > span:
            break
    return shift

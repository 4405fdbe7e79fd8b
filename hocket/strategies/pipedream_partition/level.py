"""One part of a cluster: how fast a pipeline on it can be, and the pipeline that is.

A part is a number of equal copies of a run of devices; a pipeline on one is replicated as a whole on all of them. The
sweeps of `_partition_kernel` are asked here, and what they find is turned into layers and devices.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.strategies.pipedream_partition.buffers import Loops
from hocket.strategies.pipedream_partition.cost import Sync, all_reduce_bandwidth, level_spans
from hocket.strategies.pipedream_partition.cuts import Cuts
from hocket.strategies.pipedream_partition.memory import MemoryRule, kernel_memory
from hocket.strategies.pipedream_partition.topology import MAX_POSITIONS, Topology, groups, joined_levels, topology

MAX_TIE_STATES = 20_000_000  # above this a tie goes to few stages, not always to the fewest

Placed = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class PartitionOptions:
    """Options of a pipeline, as in `_partition.partition`; max_stages is 0 for any number."""

    rule: MemoryRule | None
    replicate: bool
    exact_devices: bool
    max_stages: int
    sync: Sync
    margin: float

    @property
    def uniform(self) -> bool:
        """True if every device has the same memory."""
        return self.rule is None or len(set(self.rule.capacity_bytes)) == 1


@dataclass(frozen=True)
class LevelPart:
    """`positions` groups of `group` devices in each of `copies` equal parts of a cluster."""

    copies: int
    group: int
    positions: int


def parts(cluster: Cluster, options: PartitionOptions, count: int) -> list[LevelPart]:
    """The parts to search for a graph of `count` cuts, the largest first."""
    if not options.replicate:
        # A straight pipeline leaves nothing idle between its stages, so it ends within as many devices as cuts.
        few = min(cluster.devices, count) if options.uniform and not options.exact_devices else cluster.devices
        return [LevelPart(1, 1, few)]
    found = []
    for copies in _copies(cluster, options.rule):
        sizes = groups(cluster, copies)
        for group in sizes[-1:] if copies > 1 or options.exact_devices else sizes:
            found.append(LevelPart(copies, group, min(cluster.devices // copies // group, MAX_POSITIONS)))
    return found


def _copies(cluster: Cluster, rule: MemoryRule | None) -> list[int]:
    """Into how many equal parts of the outermost level the pipeline may be replicated as a whole."""
    levels = joined_levels(cluster)
    if len(levels) < 2:
        return [1]
    inner, outer = levels[:-1], levels[-1]
    ordered = all_reduce_bandwidth(outer) <= min(map(all_reduce_bandwidth, inner))
    if rule is None and ordered and all(level.shared for level in levels[1:]):
        return [1]
    return [m for m in range(1, outer.width + 1) if outer.width % m == 0]


@dataclass(frozen=True)
class LevelTask:
    """The pipelines on one part; the loops are shared with the search's other parts."""

    places: Cuts
    cluster: Cluster
    part: LevelPart
    options: PartitionOptions
    loops: Loops

    @cached_property
    def least_s(self) -> float:
        """Lower bound of the bottleneck: work shared by all devices, or the longest layer on its maximum of devices."""
        alone = 0.0 if self.options.replicate else self.places.longest_s
        return max(float(self._seconds[-1]) / self.part.positions, alone)

    @cached_property
    def most_s(self) -> float:
        """The best bottleneck is not above this, whatever the stages, if there is one at all."""
        border, weights, crossing = self._table.border, self.places.weights_bytes, self.places.crossing_bytes
        slowest = float(max(border.max(), 1 / min(level.bandwidth_bytes_per_s for level in self.cluster.levels)))
        return float(self._seconds[-1] + crossing.max() * slowest + 2 * weights[-1] * slowest) * 2

    def sweep(self, limit_s: float) -> tuple[int, float]:
        """Stages and bottleneck of a pipeline with no term above the limit; 0 stages when there is none."""
        found, cost_s, _ = self._sweep(limit_s, self.options.max_stages, True)
        return found, cost_s

    def trace(self, best_s: float, stages: int, limit_s: float) -> Placed:
        """The pipeline of the fewest stages, on the fewest devices, with this bottleneck.

        One of `stages` has it, which a sweep with limit_s has found. On more than two levels one with a lower limit may
        find none: then it is that one.
        """
        cells, own = self._states
        separate = cells * own * (stages + 1) <= MAX_TIE_STATES
        found, _, end = self._sweep(best_s, stages if separate else self.options.max_stages, False)
        if not found:
            _, _, end = self._sweep(limit_s, self.options.max_stages, True)
        runs = self._runs(end)
        inside, group = self.cluster.devices // self.part.copies, self.part.group
        # It ends at the last device of its part; idle devices come first, or last where whole components are idle.
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
        """Stages of the last sweep from input to output, as (inner cut, outer cut, first position, replicas)."""
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
        """`_partition_kernel.sweep`."""
        options, (cells, own) = self.options, self._states
        most = self.part.positions if options.replicate else 1
        every_count = options.exact_devices or options.sync == "ring"
        wishes = most, every_count, options.exact_devices, max_stages, cheapest
        few = len(self.places.masks) * most
        return self.loops.sweep(limit_s, self._figures, wishes, cells * (max_stages + 1), own, few)

    @cached_property
    def _states(self) -> tuple[int, int]:
        """Pairs of cut and position, and states in each."""
        positions, (_, _, (_, counted, *_)) = self.part.positions, self._figures
        own = (positions + 1 if counted else 1) * len(self._table.spans)
        return len(self.places.masks) * (positions + 1), own

    @cached_property
    def _seconds(self) -> np.ndarray:
        """Seconds of the layers inside each cut on one position."""
        return self.places.seconds / (self.part.copies * self.part.group)

    @cached_property
    def _table(self) -> Topology:
        levels, part = joined_levels(self.cluster), self.part
        return topology(levels, part.copies, self.options.sync, part.group, part.positions)

    @cached_property
    def _figures(self) -> tuple[Any, ...]:
        """Arguments of every sweep: graph, topology, memory."""
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
            (options.rule is not None, counted, *map(told, sizes), *memory),
        )


def _shift(idle: int, passed: int, spans: list[int]) -> int:
    """Shift of a pipeline that ends at the last device towards the first without changing its spans."""
    shift = 0
    for span in reversed(spans):
        shift += (idle - shift) // span * span
        if idle - shift + passed > span:
            break
    return shift

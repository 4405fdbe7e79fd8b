"""One part of a cluster: how fast a pipeline on it can be, and the pipeline that is.

A part is a number of equal copies of a run of devices; a pipeline on one is replicated as a whole on all of them. The
compiled sweeps of `_partition_kernel` are asked here, and what they find is turned into layers and devices.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.strategies import _partition_kernel as kernel
from hocket.strategies._partition_cuts import Cuts
from hocket.strategies._partition_memory import MemoryRule, kernel_memory
from hocket.strategies._partition_topology import MAX_POSITIONS, Topology, groups, joined_levels, topology
from hocket.strategies._pipedream_cost import Sync, level_spans

FEW_STATES = 2048  # room for so many more than one stage from one state can reach
MAX_TIE_STATES = 20_000_000  # above this a tie goes to few stages, not always to the fewest

Placed = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class Options:
    """What is asked of a pipeline, as `_partition.partition` has it; max_stages is 0 for any number."""

    rule: MemoryRule | None
    replicate: bool
    exact_devices: bool
    max_stages: int
    sync: Sync
    margin: float

    @property
    def uniform(self) -> bool:
        """Whether every device has the same memory."""
        return self.rule is None or len(set(self.rule.capacity_bytes)) == 1


@dataclass(frozen=True)
class Part:
    """`positions` groups of `group` devices in each of `copies` equal parts of a cluster."""

    copies: int
    group: int
    positions: int


def parts(cluster: Cluster, options: Options, count: int) -> list[Part]:
    """The parts to search for a graph of `count` cuts, the largest first."""
    if not options.replicate:
        # A straight pipeline leaves nothing idle between its stages, so it ends within as many devices as cuts.
        few = min(cluster.devices, count) if options.uniform and not options.exact_devices else cluster.devices
        return [Part(1, 1, few)]
    found = []
    for copies in _copies(cluster, options.rule):
        sizes = groups(cluster, copies)
        for group in sizes[-1:] if copies > 1 or options.exact_devices else sizes:
            found.append(Part(copies, group, min(cluster.devices // copies // group, MAX_POSITIONS)))
    return found


def _copies(cluster: Cluster, rule: MemoryRule | None) -> list[int]:
    """Into how many equal parts of the outermost level the pipeline may be replicated as a whole."""
    levels = joined_levels(cluster)
    if len(levels) < 2:
        return [1]
    inner, outer = levels[:-1], levels[-1]
    slowest = min((level.all_reduce or level.link).bandwidth_bytes_per_s for level in inner)
    ordered = (outer.all_reduce or outer.link).bandwidth_bytes_per_s <= slowest
    if rule is None and ordered and all(level.shared for level in levels[1:]):
        return [1]
    return [m for m in range(1, outer.width + 1) if outer.width % m == 0]


@dataclass(frozen=True)
class Task:
    """The pipelines on one part."""

    places: Cuts
    cluster: Cluster
    part: Part
    options: Options

    @cached_property
    def least_s(self) -> float:
        """No bottleneck is below this: all devices share the work, or the longest layer is on all of those it may have."""
        seconds = self._arguments[0][0]
        alone = 0.0 if self.options.replicate else self.places.longest_s
        return max(float(seconds[-1]) / self._table.positions, alone)

    @cached_property
    def most_s(self) -> float:
        """The best bottleneck is not above this, whatever the stages, if there is one at all."""
        table, (seconds, weights, crossing, *_) = self._table, self._arguments[0]
        slowest = float(max(table.border.max(), 1 / min(level.bandwidth_bytes_per_s for level in self.cluster.levels)))
        return float(seconds[-1] + crossing.max() * slowest + 2 * weights[-1] * slowest) * 2

    def sweep(self, limit_s: float) -> tuple[int, float]:
        """Stages and bottleneck of a pipeline with no term above the limit; 0 stages when there is none."""
        found, cost_s, _, _ = self._sweep(limit_s, self.options.max_stages, True)
        return found, cost_s

    def trace(self, best_s: float, stages: int, limit_s: float) -> Placed:
        """The pipeline of the fewest stages, on the fewest devices, with this bottleneck.

        One of `stages` has it, which a sweep with limit_s has found. On more than two levels one with a lower limit may
        find none: then it is that one.
        """
        separate = self._states * (stages + 1) <= MAX_TIE_STATES
        found, _, end, trail = self._sweep(best_s, stages if separate else self.options.max_stages, False)
        if not found:
            _, _, end, trail = self._sweep(limit_s, self.options.max_stages, True)
        cuts = len(self.places.masks)
        runs = _walk(trail, end, cuts, self._states // cuts, self._table.positions + 1)
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

    def _sweep(self, limit_s: float, max_stages: int, cheapest: bool) -> tuple[int, float, int, np.ndarray]:
        """`_partition_kernel.sweep` in memory that is kept from one to the next."""
        needed = self._states * (max_stages + 1)
        rows = self._rows if needed <= len(self._rows) else np.full(needed, -1, dtype=np.int32)
        while True:
            arguments = (*self._arguments, max_stages, cheapest, rows, self._tables[-1])
            stages, cost_s, end, trail = kernel.sweep(limit_s, *arguments)
            if stages >= 0:
                return int(stages), float(cost_s), int(end), trail
            self._tables.append(kernel.empty_table(2 * len(trail), len(self._table.spans)))

    @cached_property
    def _states(self) -> int:
        table = self._table
        return kernel.states(len(self.places.masks), table.positions, self._arguments[2][1], len(table.spans))

    @cached_property
    def _rows(self) -> np.ndarray:
        return np.full(self._states * (self.options.max_stages + 1), -1, dtype=np.int32)

    @cached_property
    def _tables(self) -> list[tuple[np.ndarray, ...]]:
        """Room for ever more states; each sweep takes the last."""
        few = len(self.places.masks) * self._arguments[3] + FEW_STATES
        return [kernel.empty_table(few, len(self._table.spans))]

    @cached_property
    def _table(self) -> Topology:
        return topology(self.cluster, self.part.copies, self.options.sync, self.part.group, self.part.positions)

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        """What every sweep is told: graph, layout, memory, most replicas, whether every number of them is tried, and
        whether every device is used."""
        places, options, table, copies = self.places, self.options, self._table, self.part.copies
        start, listed = places.predecessors
        seconds = places.seconds / (copies * table.group)
        weights, crossing = places.weights_bytes, places.crossing_bytes
        tables = (table.unit, table.sync, table.together, table.border, table.shared)
        memory = kernel_memory(
            options.rule,
            places.stash_bytes,
            places.fixed_bytes,
            places.activation_bytes,
            table.positions,
            table.group,
            copies,
        )
        return (
            (seconds, weights, crossing, start, listed, places.tied_bytes, places.tied_inside),
            (table.positions, table.period, table.spans, *tables, not (table.steep and options.uniform)),
            memory,
            table.positions if options.replicate else 1,
            options.exact_devices or options.sync == "ring",
            options.exact_devices,
        )


def _walk(trail: np.ndarray, end: int, cuts: int, own: int, places: int) -> list[tuple[int, int, int, int]]:
    """Stages from input to output as (inner cut, outer cut, first position, replicas); a cut has `own` states."""
    runs = []
    state, before, replicas = trail[end].tolist()
    while before >= 0:
        last, (state, before, more) = state, trail[before].tolist()
        if replicas:
            runs.append((last // own % cuts, state // own % cuts, state % own // (own // places), replicas))
        replicas = more
    return runs


def _shift(idle: int, passed: int, spans: list[int]) -> int:
    """How far a pipeline that ends at the last device moves towards the first without changing what it spans."""
    shift = 0
    for span in reversed(spans):
        shift += (idle - shift) // span * span
        if idle - shift + passed > span:
            break
    return shift

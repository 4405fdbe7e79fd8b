"""A cluster as the partitioner sees it: what each run of consecutive devices costs for synchronising and for borders.

Devices are filled in order, so a replicated stage is a run [x, x + r). What it costs depends on x only through the
position inside the outermost level's components, so the tables are small. On more than MAX_POSITIONS devices, groups of
consecutive devices that divide or make up whole components act as one, so that a position holds `group` devices and
replicas come in multiples of it.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np

from hocket.hardware.cluster import Cluster, Level
from hocket.strategies.pipedream_partition.cost import Sync, all_reduce_bandwidth, level_spans

MAX_POSITIONS = 64


@dataclass(frozen=True)
class Topology:
    """Tables over runs of positions in one of `copies` equal parts of the cluster, all used alike.

    Attributes:
        positions: in one copy, each of `group` devices.
        period: positions in one component below the outermost level.
        spans: positions in one component below each level; unit: which of those holds a position, per level.
        sync: seconds a byte of weights on each component's link; shape (levels, period, positions + 1), by run.
        together: innermost level that contains a run; shape (period, positions + 2).
        border: seconds a byte over each level; lowest: the least of them from each level on.
        shared: whether the loads of a component's link add up.
        steep: whether each level has at most half the bandwidth of the one inside it. Then it never pays to start a
            run later inside a component: spreading it evenly saves at most 2 w / (r B_inner) inside, and crossing
            costs at least w / B_outer already.
    """

    positions: int
    group: int
    copies: int
    period: int
    spans: np.ndarray
    sync: np.ndarray
    together: np.ndarray
    border: np.ndarray
    lowest: np.ndarray
    shared: np.ndarray
    unit: np.ndarray
    steep: bool

    @cached_property
    def flat(self) -> tuple[np.ndarray, ...]:
        """The tables in the order of the kernel's arguments, one-dimensional, without negative integers."""
        spans, unit, together = (table.astype(np.uint32) for table in (self.spans, self.unit, self.together))
        tables = (spans, unit, self.sync, together, self.border, self.lowest, self.shared)
        return tuple(table.reshape(-1) for table in tables)


def joined_levels(cluster: Cluster) -> tuple[Level, ...]:
    """The levels that join anything: those of width 1 are left out."""
    return tuple(level for level in cluster.levels if level.width > 1) or cluster.levels[:1]


def groups(cluster: Cluster, copies: int) -> list[int]:
    """Group sizes to try, ascending: each with the first MAX_POSITIONS groups of a copy, the last with all of it."""
    spans = level_spans(joined_levels(cluster))
    devices = cluster.devices // copies
    sizes = [1]
    while sizes[-1] * MAX_POSITIONS < devices:
        least = min(2 * sizes[-1], devices)
        sizes.append(
            next(
                size
                for size in range(least, devices + 1)
                if (size * MAX_POSITIONS < devices or devices % size == 0)
                and all(size % span == 0 or span % size == 0 for span in spans)
            )
        )
    return sizes


@lru_cache(maxsize=32)
def topology(levels: tuple[Level, ...], copies: int, sync: Sync, group: int, positions: int) -> Topology:
    """Tables for the first `positions` groups of `group` devices in each of `copies` equal parts of a cluster."""
    coarse = [max(span // group, 1) for span in level_spans(levels)]
    bandwidths = [all_reduce_bandwidth(level) for level in levels]
    # On the outermost level all copies use one component's link; inside it each has its own.
    parallel = [copies] * (len(levels) - 1) + [1]
    border = [1 / (level.bandwidth_bytes_per_s * own) for level, own in zip(levels, parallel, strict=True)]
    units, most, together = _runs(levels, group)
    units, most = units[..., :positions], most[..., :positions].copy()
    most[-1] *= copies
    bandwidth = np.array(bandwidths)[:, None, None]
    share = most * bandwidth * (np.arange(1, positions + 1) * group) if sync == "ring" else bandwidth * units
    table = np.zeros((len(levels), coarse[-1], positions + 1))
    table[..., 1:] = 2.0 * (most - 1) / (share * copies)
    spans = np.array(coarse)
    return Topology(
        positions,
        group,
        copies,
        coarse[-1],
        spans,
        table,
        together[:, : positions + 2],
        np.array(border),
        np.array(list(accumulate(border[::-1], min))[::-1]),
        np.array([level.shared for level in levels]),
        np.arange(positions + 1) // spans[:, None],
        all(outer * 2 <= inner for inner, outer in pairwise(bandwidths)),
    )


@lru_cache(maxsize=8)
def _runs(levels: tuple[Level, ...], group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contents of runs of 1, 2, ... groups by level and first group.

    Components below the level, and the most of them in one component; and the innermost level that contains the run,
    by first group.
    """
    width = np.array([level.width for level in levels])[:, None, None]
    span = np.array(level_spans(levels))[:, None, None]
    count = int((width * span)[-1, 0, 0]) // group
    first = np.arange(max(int(span[-1, 0, 0]) // group, 1))[:, None] * group
    first_unit, last_unit = first // span, (first + np.arange(1, count + 2) * group - 1) // span
    together = np.zeros((len(first), count + 2), dtype=np.int64)
    for k in range(1, len(levels)):
        together[:, 1:][first_unit[k] != last_unit[k]] = k
    units = last_unit - first_unit + 1
    # In one component all of them, in two neighbours those of the fuller one, else some component is full.
    ends = np.minimum(np.maximum(width - first_unit % width, last_unit % width + 1), units)
    most = np.where(last_unit // width - first_unit // width > 1, width, ends)
    most[-1] = units[-1]
    return units, most, together

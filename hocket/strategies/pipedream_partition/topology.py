"""A cluster as the partitioner sees it: communication costs of runs of devices.

Devices are filled in order, so a replicated stage is a run [x, x + r) of consecutive devices. The costs of its
all-reduce and boundaries depend on x only through the place inside the components that the outermost level joins, so
the tables are small. A position is a device. On more than MAX_POSITIONS devices, a position is a group of consecutive
devices, and numbers of replicas are multiples of the group's size. Groups divide components or consist of whole
components.
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
    """Costs of runs of positions in one of `copies` equal parts of the cluster.

    The pipeline is replicated on all copies. A run is given by its first position, modulo `period`, and its length.

    Attributes:
        positions: number of positions in one copy.
        group: number of devices of a position.
        copies: number of copies.
        period: number of positions in one of the components that the outermost level joins.
        spans: number of positions in one of the components that each level joins.
        sync: seconds per byte of weights, for an all-reduce on a component's link; shape (levels, period,
            positions + 1).
        together: innermost level that contains a run; shape (period, positions + 2).
        border: seconds per byte that crosses each level.
        lowest: minimum of `border` over each level and all levels outside of it.
        shared: for each level, True if the loads of a component's link add up.
        unit: for each level, the component of the level below that contains a position; shape (levels, positions + 1).
        steep: True if each level has at most half the bandwidth of the level inside it. Then it never pays to start a
            run later inside a component: spreading the run evenly saves at most 2 w / (r B_inner) inside, and
            crossing costs at least w / B_outer already.
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
        """One-dimensional tables in the order in which `kernel.sweep` reads them.

        Integers are unsigned.
        """
        spans, unit, together = (table.astype(np.uint32) for table in (self.spans, self.unit, self.together))
        tables = (spans, unit, self.sync, together, self.border, self.lowest, self.shared)
        return tuple(table.reshape(-1) for table in tables)


def joined_levels(cluster: Cluster) -> tuple[Level, ...]:
    """Levels of the cluster with a width above 1; the innermost level if all have 1."""
    return tuple(level for level in cluster.levels if level.width > 1) or cluster.levels[:1]


def groups(cluster: Cluster, copies: int) -> list[int]:
    """Numbers of devices of a position (group sizes) to try, ascending.

    Each size is used with the first MAX_POSITIONS groups of a copy. With the last size these are the whole copy.

    Arguments:
        copies: number of equal parts of the cluster on which the pipeline is replicated.
    """
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
    """Compute the tables of one part of a cluster.

    It contains the first `positions` groups of `group` devices in each of `copies` equal parts of the cluster.
    """
    coarse = [max(span // group, 1) for span in level_spans(levels)]
    bandwidths = [all_reduce_bandwidth(level) for level in levels]
    # On the outermost level all copies share one component. On inner levels each copy has its own components.
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
    """Components that runs of 1, 2, ... groups of devices span.

    Returns:
        - Number of components of the level below with a device of the run; by level, first group and length.
        - Maximum number of these components in one component of the level; with the same shape.
        - Innermost level that contains the run, by first group and length.
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
    # For a run inside one component of the level, all are joined in it. For a run over two neighbours, the one with
    # more of the run counts. A longer run fills a whole component.
    ends = np.minimum(np.maximum(width - first_unit % width, last_unit % width + 1), units)
    most = np.where(last_unit // width - first_unit // width > 1, width, ends)
    most[-1] = units[-1]
    return units, most, together

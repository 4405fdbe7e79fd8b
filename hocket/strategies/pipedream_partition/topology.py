"""A cluster as the partitioner sees it: communication costs of runs of devices.

Devices are filled in order, so a replicated stage is a run [x, x + r) of consecutive devices. Its costs of
synchronisation and boundaries depend on x only through the position inside the components below the outermost level,
so the tables are small. On more than MAX_POSITIONS devices, consecutive devices act as one group. Groups divide
components or consist of whole components. A position then holds `group` devices, and numbers of replicas are
multiples of it.
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
    """Tables over runs of positions in one of `copies` equal parts of the cluster.

    All copies are used alike. A run is given by its first position within the period, and its length.

    Attributes:
        positions: number of positions in one copy.
        group: number of devices of a position.
        period: positions in one component below the outermost level.
        spans: positions in one component below each level.
        sync: seconds a byte of weights on each component's link; shape (levels, period, positions + 1).
        together: innermost level that contains a run; shape (period, positions + 2).
        border: seconds a byte over each level.
        lowest: minimum of `border` from each level on.
        shared: True if the loads of a component's link add up, for each level.
        unit: component below each level that holds a position; shape (levels, positions + 1).
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
        """One-dimensional tables in the order of the kernel's arguments.

        Integers are unsigned.
        """
        spans, unit, together = (table.astype(np.uint32) for table in (self.spans, self.unit, self.together))
        tables = (spans, unit, self.sync, together, self.border, self.lowest, self.shared)
        return tuple(table.reshape(-1) for table in tables)


def joined_levels(cluster: Cluster) -> tuple[Level, ...]:
    """Levels with a width above 1; the innermost level if there are none."""
    return tuple(level for level in cluster.levels if level.width > 1) or cluster.levels[:1]


def groups(cluster: Cluster, copies: int) -> list[int]:
    """Group sizes to try, ascending.

    Each size is used with the first MAX_POSITIONS groups of a copy. The last size covers the whole copy.
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
    """Compute the tables of a part of a cluster.

    The part is the first `positions` groups of `group` devices in each of `copies` equal parts.
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
    """Components of runs of 1, 2, ... groups, by level and first group.

    Returns:
        - Number of components below the level.
        - Maximum number of them in one component of the level.
        - Innermost level that contains the run, by first group.
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
    # A run inside one component has all of them there. A run over two neighbours has the fuller one. A longer run
    # fills a whole component.
    ends = np.minimum(np.maximum(width - first_unit % width, last_unit % width + 1), units)
    most = np.where(last_unit // width - first_unit // width > 1, width, ends)
    most[-1] = units[-1]
    return units, most, together

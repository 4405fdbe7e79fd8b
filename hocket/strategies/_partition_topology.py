"""A cluster as the partitioner sees it: what each run of consecutive devices costs for synchronising and for borders.

Devices are filled in order, so a replicated stage is a run [x, x + r). What it costs depends on x only through the
position inside the outermost level's components, so the tables are small. On more than MAX_POSITIONS devices, groups of
consecutive devices that divide or make up whole components act as one, so that a position holds `group` devices and
replicas come in multiples of it.
"""

from dataclasses import dataclass

import numba
import numpy as np

from hocket.hardware.cluster import Cluster, Level
from hocket.strategies._pipedream_cost import Sync, level_spans

MAX_POSITIONS = 64


@dataclass(frozen=True)
class Topology:
    """Tables over runs of positions in one of `copies` equal parts of the cluster, all used in the same way.

    Attributes:
        positions: in one copy, each of `group` devices.
        period: positions in one component below the outermost level.
        spans: positions in one component below each level; unit: which of those holds a position, per level.
        sync: seconds a byte of weights on each component's link; shape (levels, period, positions + 1), by run.
        together: innermost level that contains a run; shape (period, positions + 2).
        border: seconds a byte over each level.
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
    shared: np.ndarray
    unit: np.ndarray
    steep: bool


def joined_levels(cluster: Cluster) -> list[Level]:
    """The levels that join anything: those of width 1 are left out."""
    return [level for level in cluster.levels if level.width > 1] or list(cluster.levels[:1])


def groups(cluster: Cluster, copies: int) -> list[int]:
    """Sizes of group to try, ascending: each with the first MAX_POSITIONS groups of a copy, the last with all of it."""
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


def topology(cluster: Cluster, copies: int, sync: Sync, group: int, positions: int) -> Topology:
    """Tables for the first `positions` groups of `group` devices of each of `copies` equal parts of a cluster."""
    levels = joined_levels(cluster)
    widths = np.array([level.width for level in levels], dtype=np.int64)
    spans = np.array(level_spans(levels), dtype=np.int64)
    bandwidths = np.array([(level.all_reduce or level.link).bandwidth_bytes_per_s for level in levels])
    parallel = np.full(len(levels), copies, dtype=float)
    parallel[-1] = 1.0
    coarse = np.maximum(spans // group, 1)
    table, together = _tables(widths, spans, bandwidths, positions, group, copies, sync == "ring")
    return Topology(
        positions,
        group,
        copies,
        int(coarse[-1]),
        coarse,
        table,
        together,
        1 / (np.array([level.bandwidth_bytes_per_s for level in levels]) * parallel),
        np.array([level.shared for level in levels]),
        np.arange(positions + 1) // coarse[:, None],
        bool(np.all(bandwidths[1:] * 2 <= bandwidths[:-1])),
    )


@numba.njit(cache=True)
def _tables(
    widths: np.ndarray, spans: np.ndarray, bandwidths: np.ndarray, positions: int, group: int, copies: int, ring: bool
) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    levels, period = len(widths), max(spans[-1] // group, 1)
    sync = np.zeros((levels, period, positions + 1))
    together = np.zeros((period, positions + 2), dtype=np.int64)
    for at in range(period):
        for count in range(1, positions + 2):
            x, r = at * group, count * group
            last = x + r - 1
            for k in range(levels - 1):
                if x // spans[k + 1] != last // spans[k + 1]:
                    together[at, count] = k + 1
            if count > positions:
                continue
            for k in range(levels):
                first_unit, last_unit = x // spans[k], last // spans[k]
                units = last_unit - first_unit + 1
                first_group, last_group = first_unit // widths[k], last_unit // widths[k]
                if k == levels - 1 or first_group == last_group:
                    most = units
                elif last_group - first_group >= 2:
                    most = widths[k]
                else:
                    most = max(widths[k] - first_unit % widths[k], last_unit % widths[k] + 1)
                if k == levels - 1:
                    most *= copies
                if ring:
                    sync[k, at, count] = 2.0 * (most - 1) / (most * bandwidths[k] * r * copies)
                else:
                    sync[k, at, count] = 2.0 * (most - 1) / (bandwidths[k] * units * copies)
    return sync, together

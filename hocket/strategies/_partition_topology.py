"""A cluster as the partitioner sees it: what each run of consecutive devices costs for synchronising and for borders.

Devices are filled in order, so a replicated stage is a run [x, x + r). What it costs depends on x only through the
position inside the outermost level's components, so the tables are small for clusters of any size.
"""

from dataclasses import dataclass

import numba
import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.strategies._pipedream_cost import Sync, level_spans


@dataclass(frozen=True)
class Topology:
    """Tables over runs of devices in one of `copies` equal parts of the cluster, all used in the same way.

    Attributes:
        devices: of one copy.
        period: devices in one component below the outermost level.
        spans: devices in one component below each level; unit: which of those holds a position, per level.
        sync: seconds a byte of weights on each component's link; shape (levels, period, devices + 1), by run.
        together: innermost level that contains a run; shape (period, devices + 2).
        border: seconds a byte over each level.
        shared: whether the loads of a component's link add up.
        steep: whether each level has at most half the bandwidth of the one inside it. Then it never pays to start a
            run later inside a component: spreading it evenly saves at most 2 w / (r B_inner) inside, and crossing
            costs at least w / B_outer already.
    """

    devices: int
    copies: int
    period: int
    spans: np.ndarray
    sync: np.ndarray
    together: np.ndarray
    border: np.ndarray
    shared: np.ndarray
    unit: np.ndarray
    steep: bool


def topology(cluster: Cluster, copies: int, sync: Sync) -> Topology:
    """Tables for one of `copies` parts of a cluster; `copies` divides the width of the outermost level."""
    levels = [level for level in cluster.levels if level.width > 1] or list(cluster.levels[:1])
    widths = np.array([level.width for level in levels], dtype=np.int64)
    spans = np.array(level_spans(levels), dtype=np.int64)
    devices = int(spans[-1] * widths[-1]) // copies
    bandwidths = np.array([(level.all_reduce or level.link).bandwidth_bytes_per_s for level in levels])
    parallel = np.full(len(levels), copies, dtype=float)
    parallel[-1] = 1.0
    period = int(spans[-1])
    table, together = _tables(widths, spans, bandwidths, devices, copies, sync == "ring")
    return Topology(
        devices,
        copies,
        period,
        spans,
        table,
        together,
        1 / (np.array([level.bandwidth_bytes_per_s for level in levels]) * parallel),
        np.array([level.shared for level in levels]),
        np.arange(devices + 1) // spans[:, None],
        bool(np.all(bandwidths[1:] * 2 <= bandwidths[:-1])),
    )


@numba.njit(cache=True)
def _tables(
    widths: np.ndarray, spans: np.ndarray, bandwidths: np.ndarray, devices: int, copies: int, ring: bool
) -> tuple[np.ndarray, np.ndarray]:  # pragma: no cover - compiled
    levels, period = len(widths), spans[-1]
    sync = np.zeros((levels, period, devices + 1))
    together = np.zeros((period, devices + 2), dtype=np.int64)
    for x in range(period):
        for r in range(1, devices + 2):
            last = x + r - 1
            for k in range(levels - 1):
                if x // spans[k + 1] != last // spans[k + 1]:
                    together[x, r] = k + 1
            if r > devices:
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
                    sync[k, x, r] = 2.0 * (most - 1) / (most * bandwidths[k] * r * copies)
                else:
                    sync[k, x, r] = 2.0 * (most - 1) / (bandwidths[k] * units * copies)
    return sync, together

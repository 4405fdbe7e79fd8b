"""Predict identical pipeline replicas (columns) by simulating one of them.

Rules of this file: if all stages have multiples of d replicas, the plan consists of d pipelines. Each runs every d-th
microbatch, and they meet only in gradient sums. If they cannot slow each other down, one stands for all: 3,072
devices cost as much to simulate as one pipeline. The result is the same as for the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.program.passes.borders import StageCut, crossing


@dataclass(frozen=True)
class PipelineReplica:
    """One of several identical pipelines.

    Attributes:
        cuts: the stages, each on this pipeline's devices. `beside` has the devices of the other pipelines.
        batch_size: number of samples of a batch that this pipeline trains on.
    """

    cuts: tuple[StageCut, ...]
    batch_size: int

    def everywhere(self, peaks: Mapping[int, float]) -> dict[int, float]:
        """Figures of the devices of all columns, copied from the simulated column.

        Arguments:
            peaks: figures of the simulated column, by device.
        """
        found = dict(peaks)
        for cut in self.cuts:
            for k, device in enumerate(cut.beside):
                found[device] = peaks[cut.devices[k % len(cut.devices)]]
        return dict(sorted(found.items()))

    def pairs_everywhere(self, between: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
        """Bytes between devices of all columns, copied from the simulated column.

        Arguments:
            between: bytes in the simulated column, by source and target device.
        """
        twins: dict[int, tuple[int, ...]] = {}
        for cut in self.cuts:
            for k, device in enumerate(cut.devices):
                twins.setdefault(device, (device, *cut.beside[k :: len(cut.devices)]))
        return {
            pair: size
            for (source, target), size in between.items()
            for pair in zip(twins[source], twins[target], strict=True)
        }


def column_of(
    tensors: Sequence[Any], cluster: Cluster, cuts: tuple[StageCut, ...], batch_size: int, microbatch_size: int
) -> PipelineReplica | None:
    """The first pipeline (column) of a plan; None if it does not stand for all.

    If stages have different numbers of replicas, the number of columns is the greatest common divisor of these
    numbers. One column does not stand for all if

    - there is only one column;
    - microbatches differ in size, or several run together;
    - devices have several waves;
    - columns have different devices, or share links or cores.

    Arguments:
        tensors: tensors between layers, each with the index of the layer that writes it and of the layers that read it.
    """
    count = gcd(*(len(cut.devices) for cut in cuts))
    if count == 1 or batch_size % (count * microbatch_size) or any(cut.merged > 1 or cut.wave for cut in cuts):
        return None
    if cluster.host_cores is not None or not _alike(tensors, cluster, cuts, count):
        return None
    first = tuple(
        replace(
            cut,
            devices=cut.devices[::count],
            beside=tuple(device for column in range(1, count) for device in cut.devices[column::count]),
        )
        for cut in cuts
    )
    return PipelineReplica(first, batch_size // count)


def _alike(tensors: Sequence[Any], cluster: Cluster, cuts: tuple[StageCut, ...], count: int) -> bool:
    """True if columns have equal devices and links, and share none.

    Arguments:
        count: number of columns.
    """
    owner = np.full(cluster.devices, -1)
    kind = _kinds(cluster)
    for cut in cuts:
        devices, column = np.array(cut.devices), np.arange(len(cut.devices)) % count
        if _differ(kind[devices], count) or np.any((owner[devices] != -1) & (owner[devices] != column)):
            return False
        owner[devices] = column
    used: dict[tuple[str, int], np.ndarray] = {}  # by direction and shared level, the column of each component's link
    for source, target in crossing(tensors, cuts):
        here, there = np.array(cuts[source].devices), np.array(cuts[target].devices)
        pair = np.arange(lcm(len(here), len(there)))
        first, second, column = here[pair % len(here)], there[pair % len(there)], pair % count
        levels = _levels(cluster, first, second)
        if _differ(levels, count):
            return False
        # A link of its own joins two devices of one column, so only shared links can be used by several columns.
        for level in (level for level in np.unique(levels) if cluster.levels[level].shared):
            at = levels == level
            for devices, direction in ((first, "out"), (second, "in"), (second, "out"), (first, "in")):
                components = devices[at] // cluster.component_devices(level)
                users = used.setdefault((direction, int(level)), np.full(cluster.devices, -1))
                if np.any((users[components] != -1) & (users[components] != column[at])):
                    return False
                users[components] = column[at]
                if np.any(users[components] != column[at]):  # two columns in one assignment
                    return False
    return True


def _kinds(cluster: Cluster) -> np.ndarray:
    """A number for each device, equal for devices of one type with equally much memory."""
    kinds: dict[object, int] = {}
    numbers, counts, at = [], [], 0
    for node in cluster.nodes:
        kind = node.device_type, cluster.capacity_bytes(at)
        numbers.append(kinds.setdefault(kind, len(kinds)))
        counts.append(node.devices)
        at += node.devices
    return np.repeat(numbers, counts) if numbers else np.zeros(cluster.devices, dtype=np.int64)


def _differ(values: np.ndarray, count: int) -> bool:
    """True if rows of `count` values, one for each column, have unequal values."""
    return bool(np.any(values.reshape(-1, count) != values[::count, None]))


def _levels(cluster: Cluster, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Innermost level that contains both devices of each pair."""
    found = np.full(len(first), len(cluster.levels) - 1)
    for level in reversed(range(len(cluster.levels))):
        span = cluster.component_devices(level + 1)
        found[first // span == second // span] = level
    return found

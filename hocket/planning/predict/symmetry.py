"""Predict identical pipeline replicas (columns) by simulating one of them.

Rules of this file: if all stages have multiples of d replicas, the plan consists of d pipelines. Each runs every d-th
microbatch, and they meet only in gradient sums. If they cannot slow each other down, one stands for all: 3,072
devices cost as much to simulate as one pipeline. The result is the same as for the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

from hocket.cost.contention import transfer_uses
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
    owners: dict[int, int] = {}
    for cut in cuts:
        kinds = [(cluster.node_of(device).device_type, cluster.capacity_bytes(device)) for device in cut.devices]
        if any(kinds[k] != kinds[k // count * count] for k in range(len(kinds))):
            return False
        for k, device in enumerate(cut.devices):
            if owners.setdefault(device, k % count) != k % count:
                return False
    used: dict[object, int] = {}
    for source, target in crossing(tensors, cuts):
        here, there = cuts[source].devices, cuts[target].devices
        pairs = [(here[m % len(here)], there[m % len(there)]) for m in range(lcm(len(here), len(there)))]
        levels = [cluster.level_between(*pair) for pair in pairs]
        if any(levels[m] != levels[m // count * count] for m in range(len(levels))):
            return False
        for m, pair in enumerate(pairs):
            for hop in (pair, pair[::-1]):
                uses = transfer_uses(cluster, (hop,))
                if any(used.setdefault(use.resource, m % count) != m % count for use in uses):
                    return False
    return True

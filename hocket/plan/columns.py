"""Columns: replicas that stand side by side and do the same are predicted by one of them.

Rules of this file: a plan whose stages all have d replicas is d pipelines, each with every d-th microbatch, which meet only where
gradients are summed. Where they cannot hinder each other one stands for all: 3,072 devices cost what one pipeline costs. What is
said of it is what the whole would give.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hocket.cost.contention import transfer_uses
from hocket.hardware.cluster import Cluster
from hocket.passes.borders import Graph, StageCut, crossing


@dataclass(frozen=True)
class Column:
    """One of several pipelines that are alike: its stages, and the batch that is its part."""

    cuts: tuple[StageCut, ...]
    batch_size: int

    def everywhere(self, peaks: Mapping[int, float]) -> dict[int, float]:
        """Figures of the column's devices as those of all columns' devices."""
        found = dict(peaks)
        for cut in self.cuts:
            found.update(dict.fromkeys(cut.beside, peaks[cut.devices[0]]))
        return dict(sorted(found.items()))


def column_of(
    graph: Graph, cluster: Cluster, cuts: tuple[StageCut, ...], batch_size: int, microbatch_size: int
) -> Column | None:
    """The first column of a plan, or None where one does not stand for all.

    That is where numbers of replicas or sizes of microbatches differ, and where columns are of unlike devices or share links
    or cores.
    """
    width = len(cuts[0].devices)
    if width == 1 or any(len(cut.devices) != width for cut in cuts) or batch_size % (width * microbatch_size):
        return None
    if cluster.host_cores is not None or not _alike(graph, cluster, cuts):
        return None
    first = tuple(replace(cut, devices=cut.devices[:1], beside=cut.devices[1:]) for cut in cuts)
    return Column(first, batch_size // width)


def _alike(graph: Graph, cluster: Cluster, cuts: tuple[StageCut, ...]) -> bool:
    """Whether columns have the same devices and links, and none that two of them use."""
    owners: dict[int, int] = {}
    for cut in cuts:
        kinds = {(cluster.node_of(device).device_type, cluster.capacity_bytes(device)) for device in cut.devices}
        if len(kinds) > 1:
            return False
        for column, device in enumerate(cut.devices):
            if owners.setdefault(device, column) != column:
                return False
    used: dict[object, int] = {}
    for source, target in crossing(graph, cuts):
        pairs = list(zip(cuts[source].devices, cuts[target].devices, strict=True))
        if len({cluster.level_between(*pair) for pair in pairs}) > 1:
            return False
        for column, pair in enumerate(pairs):
            for hop in (pair, pair[::-1]):
                if any(used.setdefault(use.resource, column) != column for use in transfer_uses(cluster, (hop,))):
                    return False
    return True

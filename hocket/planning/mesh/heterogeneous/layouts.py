"""Mixed: ways to divide unlike devices: the stages on one type after those on another, each type in columns of its own number.

Rules of this file: a stage stands on groups of one type, so that its replicas wait for nobody; which types come first, and how many
replicas a stage has on each, is all tried. How many layers each stage has is the tailor's. Devices that a way cannot use stay idle.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, permutations, product
from math import floor

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.planning.mesh.heterogeneous.bound import StageRun, TypeBound
from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.layout_space import LayoutSpace
from hocket.planning.mesh.placement import Places
from hocket.planning.mesh.recompute_cut import RecomputeCut
from hocket.planning.search.result import TIE

_MOST_TYPES = 4  # whose orders are all tried; of more, these that have most devices


def mixes(tailor: RecomputeCut, batch_size: int) -> Iterator[tuple[ParallelLayout, float]]:
    """Meshes without layers on some or all types of a cluster, and seconds that no cut of them is below."""
    names, kinds = tailor.types
    own = {k: tuple(np.flatnonzero(kinds == k).tolist()) for k in range(len(names))}
    most = sorted(own, key=lambda k: -len(own[k]))[:_MOST_TYPES]
    for samples in tailor.sizes:
        total, rest = divmod(batch_size, samples)
        if rest:
            continue
        least = TypeBound.of(tailor, samples)
        for count in range(1, len(most) + 1):
            for order in permutations(most, count):
                for widths in product(*(_widths(len(own[k]), total) for k in order)):
                    runs = [StageRun(k, width, len(own[k]) // width) for k, width in zip(order, widths, strict=True)]
                    depth = sum(run.stages for run in runs)
                    if depth > len(tailor.profile.layers):
                        continue
                    places = tuple(
                        own[run.kind][s * run.width : (s + 1) * run.width] for run in runs for s in range(run.stages)
                    )
                    # Units are not the tailor's, who cuts all of these.
                    for shard in tailor.shards_of(max(widths), max(2, depth)):
                        mesh = _mesh(tailor, places, samples, total, shard)
                        if mesh.strategy in tailor.strategies:
                            yield mesh, least.seconds(runs, total, mesh)
                        # One with chunks stands for all numbers of them.
                        several = (replace(mesh, chunks=v) for v in numbers_of_chunks(tailor, mesh)[:1])
                        for other in (*tailor.otherwise(mesh), *several):
                            yield other, least.seconds(runs, total, other)


def numbers_of_chunks(tailor: RecomputeCut, mesh: ParallelLayout) -> range:
    """Numbers of chunks from 2 on that columns, layers and microbatches allow (strategies/schedules/interleaved.py).

    Filling a pipeline takes (p - 1) / (m v) of a batch at most: no more chunks than leave a tie of it.
    """
    rounds = len({len(place) for place in mesh.places}) == 1 and mesh.microbatches % mesh.depth == 0
    if "interleaved" not in tailor.strategies or mesh.depth == 1 or not rounds:
        return range(0)
    enough = 1 + floor((mesh.depth - 1) / (mesh.microbatches * TIE))
    return range(2, min((len(tailor.profile.layers) - 2) // mesh.depth, enough) + 1)


def alone(mesh: ParallelLayout, plane: LayoutSpace) -> bool:
    """True if the layout uses devices of one type."""
    kinds = plane.types[1]
    return len({int(kinds[group]) for place in mesh.stands for group in place}) == 1


def mixed(cluster: Cluster) -> bool:
    """True if the cluster has different device types."""
    return len({node.device_type for node in cluster.nodes}) > 1


def _widths(groups: int, microbatches: int) -> list[int]:
    """Numbers of replicas that divide the microbatches and leave the fewest groups idle, usually none."""
    found: dict[int, int] = {}
    for width in range(1, groups + 1):
        if microbatches % width == 0:
            found[groups // width] = width  # the widest of as many stages
    return sorted(found.values())


def turned(mesh: ParallelLayout, plane: LayoutSpace) -> ParallelLayout | None:
    """The layout with stages of one type in the place of replicas; None if that is the same layout.

    It is the same on one level of equal devices, each with one link to all others. With a link for each pair, sums
    over several stages may or may not share links.
    """
    cluster = plane.group.cluster
    joining = [level for level in cluster.levels if level.width > 1]
    if len(joining) == 1 and joining[0].shared and not cluster.nodes:
        return None
    kinds, stands = plane.types[1], mesh.stands
    places = list[tuple[int, ...]]()
    for _, own in groupby(stands, key=lambda place: int(kinds[place[0]])):
        stages = list(own)
        groups = sorted(group for place in stages for group in place)
        places += [tuple(groups[s :: len(stages)]) for s in range(len(stages))]
    return None if tuple(places) == stands else replace(mesh, places=tuple(places))


def _mesh(plane: LayoutSpace, places: Places, samples: int, total: int, shard: str) -> ParallelLayout:
    widths = {len(place) for place in places}
    width = widths.pop() if len(widths) == 1 else 1
    return ParallelLayout(
        plane.tensor,
        len(places),
        width,
        1,
        samples,
        total // width,
        plane.recompute,
        (),
        places=places,
        sequence_parallel=plane.sequence_parallel,
        shard=shard,
    )

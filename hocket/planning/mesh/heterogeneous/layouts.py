"""Layouts on a heterogeneous cluster: device types follow each other.

Rules of this file:
- All replicas of a stage have the same device type, so that none waits for a slower one.
- All orders of types and all numbers of replicas on each type are tried.
- The recompute cut (recompute_cut.py) decides the number of layers of each stage.
- Devices that a layout cannot use stay idle.
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

_MOST_TYPES = 4  # types to try in all orders: those with the most devices


def mixes(recompute_cut: RecomputeCut, batch_size: int) -> Iterator[tuple[ParallelLayout, float]]:
    """Yield layouts on one or several device types, not yet cut into stages.

    Each comes with a lower bound in seconds, which holds for all its cuts.
    """
    names, kinds = recompute_cut.types
    own = {k: tuple(np.flatnonzero(kinds == k).tolist()) for k in range(len(names))}
    most = sorted(own, key=lambda k: -len(own[k]))[:_MOST_TYPES]
    for samples in recompute_cut.sizes:
        total, rest = divmod(batch_size, samples)
        if rest:
            continue
        least = TypeBound.of(recompute_cut, samples)
        for count in range(1, len(most) + 1):
            for order in permutations(most, count):
                for widths in product(*(_widths(len(own[k]), total) for k in order)):
                    runs = [StageRun(k, width, len(own[k]) // width) for k, width in zip(order, widths, strict=True)]
                    depth = sum(run.stages for run in runs)
                    if depth > len(recompute_cut.profile.layers):
                        continue
                    places = tuple(
                        own[run.kind][s * run.width : (s + 1) * run.width] for run in runs for s in range(run.stages)
                    )
                    # No FSDP units: all devices have the same units, so there are no stages to divide by speed.
                    for shard in recompute_cut.shards_of(max(widths), max(2, depth)):
                        mesh = _mesh(recompute_cut, places, samples, total, shard)
                        if mesh.strategy in recompute_cut.strategies:
                            yield mesh, least.seconds(runs, total, mesh)
                        # One layout with chunks stands for all numbers of chunks (`chunks_s` bounds them all).
                        several = (replace(mesh, chunks=v) for v in numbers_of_chunks(recompute_cut, mesh)[:1])
                        for other in (*recompute_cut.otherwise(mesh), *several):
                            yield other, least.seconds(runs, total, other)


def numbers_of_chunks(recompute_cut: RecomputeCut, mesh: ParallelLayout) -> range:
    """Numbers of chunks from 2 on that replicas, layers and microbatches allow.

    See strategies/schedules/interleaved.py. Warm-up takes at most the share (p - 1) / (m v) of a batch. Once this
    share is below a tie (TIE), more chunks are not tried.
    """
    rounds = len({len(place) for place in mesh.places}) == 1 and mesh.microbatches % mesh.depth == 0
    if "interleaved" not in recompute_cut.strategies or mesh.depth == 1 or not rounds:
        return range(0)
    enough = 1 + floor((mesh.depth - 1) / (mesh.microbatches * TIE))
    return range(2, min((len(recompute_cut.profile.layers) - 2) // mesh.depth, enough) + 1)


def alone(mesh: ParallelLayout, layout_space: LayoutSpace) -> bool:
    """True if the layout uses devices of one type."""
    kinds = layout_space.types[1]
    return len({int(kinds[group]) for place in mesh.stands for group in place}) == 1


def mixed(cluster: Cluster) -> bool:
    """True if the cluster has different device types."""
    return len({node.device_type for node in cluster.nodes}) > 1


def _widths(groups: int, microbatches: int) -> list[int]:
    """Numbers of replicas to try on one device type; each divides the microbatches.

    Of several numbers with equally many stages, only the largest is tried, since it leaves the fewest groups idle.

    Arguments:
        groups: number of tensor-parallel groups of the type.
    """
    found: dict[int, int] = {}
    for width in range(1, groups + 1):
        if microbatches % width == 0:
            found[groups // width] = width  # the most replicas for this number of stages
    return sorted(found.values())


def turned(mesh: ParallelLayout, layout_space: LayoutSpace) -> ParallelLayout | None:
    """Exchange the places of stages and replicas, on each device type.

    Neighbouring devices, which are replicas of a stage by default, then belong to different stages.

    Returns:
        The layout with other places. None if this makes no difference: the places stay the same, or equal devices each
            share one link to all others.
    """
    cluster = layout_space.group.cluster
    joining = [level for level in cluster.levels if level.width > 1]
    if len(joining) == 1 and joining[0].shared and not cluster.nodes:
        return None
    kinds, stands = layout_space.types[1], mesh.stands
    places = list[tuple[int, ...]]()
    for _, own in groupby(stands, key=lambda place: int(kinds[place[0]])):
        stages = list(own)
        groups = sorted(group for place in stages for group in place)
        places += [tuple(groups[s :: len(stages)]) for s in range(len(stages))]
    return None if tuple(places) == stands else replace(mesh, places=tuple(places))


def _mesh(layout_space: LayoutSpace, places: Places, samples: int, total: int, shard: str) -> ParallelLayout:
    widths = {len(place) for place in places}
    width = widths.pop() if len(widths) == 1 else 1
    return ParallelLayout(
        layout_space.tensor,
        len(places),
        width,
        1,
        samples,
        total // width,
        layout_space.recompute,
        (),
        places=places,
        sequence_parallel=layout_space.sequence_parallel,
        shard=shard,
    )

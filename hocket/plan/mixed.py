"""Mixed: ways to divide unlike devices: the stages on one type after those on another, each type in columns of its own number.

Rules of this file: a stage stands on groups of one type, so that its replicas wait for nobody; which types come first, and how many
replicas a stage has on each, is all tried. How many layers each stage has is the tailor's. Devices that a way cannot use stay idle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, permutations, product
from math import inf

import numpy as np

from hocket.cost.compute import Columns
from hocket.hardware.cluster import Cluster
from hocket.plan.ground import Places
from hocket.plan.mesh import Mesh
from hocket.plan.plane import Plane

_MOST_TYPES = 4  # whose orders are all tried; of more, these that have most devices


def mixes(plane: Plane, batch_size: int) -> Iterator[tuple[Mesh, float]]:
    """Meshes without layers on some or all types of a cluster, and seconds that none is below: all its groups busy all the time."""
    names, kinds = plane.types
    own = {k: tuple(np.flatnonzero(kinds == k).tolist()) for k in range(len(names))}
    most = sorted(own, key=lambda k: -len(own[k]))[:_MOST_TYPES]
    for samples in plane.sizes:
        total, rest = divmod(batch_size, samples)
        if rest:
            continue
        pace = _pace(plane, names, samples)
        for count in range(1, len(most) + 1):
            for order in permutations(most, count):
                for widths in product(*(_widths(len(own[k]), total) for k in order)):
                    pairs = list(zip((own[k] for k in order), widths, strict=True))
                    if sum(len(groups) // width for groups, width in pairs) > len(plane.profile.layers):
                        continue
                    places = tuple(
                        groups[s * width : (s + 1) * width]
                        for groups, width in pairs
                        for s in range(len(groups) // width)
                    )
                    used = sum(
                        len(groups) // width * width * pace[k] for k, (groups, width) in zip(order, pairs, strict=True)
                    )
                    # Units are not the tailor's, who cuts all of these.
                    for shard in plane.shards_of(max(map(len, places)), max(2, len(places))):
                        mesh = _mesh(plane, places, samples, total, shard)
                        if mesh.strategy in plane.strategies:
                            yield mesh, total / used
                        yield from ((own, total / used) for own in plane.otherwise(mesh))


def alone(mesh: Mesh, plane: Plane) -> bool:
    """Whether it stands on devices of one type."""
    kinds = plane.types[1]
    return len({int(kinds[group]) for place in mesh.stands for group in place}) == 1


def mixed(cluster: Cluster) -> bool:
    """Whether a cluster has unlike devices."""
    return len({node.device_type for node in cluster.nodes}) > 1


def _pace(plane: Plane, names: Sequence[str], samples: int) -> list[float]:
    """Microbatches of the whole model a second, on a group of each type."""
    columns = Columns(plane.profile)
    found = []
    for name in names:
        figures = (columns.on(name) or columns).at(samples)
        whole_s = float(figures.forward_s.sum() + figures.backward_s.sum())
        found.append(1 / whole_s if whole_s > 0 else inf)
    return found


def _widths(groups: int, microbatches: int) -> list[int]:
    """Numbers of replicas that divide the microbatches and leave the fewest groups idle, none for most of them."""
    found: dict[int, int] = {}
    for width in range(1, groups + 1):
        if microbatches % width == 0:
            found[groups // width] = width  # the widest of as many stages
    return sorted(found.values())


def turned(mesh: Mesh, plane: Plane) -> Mesh | None:
    """The mesh with stages of one type side by side where replicas were; None where that is the same."""
    kinds, stands = plane.types[1], mesh.stands
    places = list[tuple[int, ...]]()
    for _, own in groupby(stands, key=lambda place: int(kinds[place[0]])):
        stages = list(own)
        groups = sorted(group for place in stages for group in place)
        places += [tuple(groups[s :: len(stages)]) for s in range(len(stages))]
    return None if tuple(places) == stands else replace(mesh, places=tuple(places))


def _mesh(plane: Plane, places: Places, samples: int, total: int, shard: str) -> Mesh:
    widths = {len(place) for place in places}
    width = widths.pop() if len(widths) == 1 else 1
    return Mesh(
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

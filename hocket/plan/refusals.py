"""Refusals: ways to divide devices for a model by its sizes that are no candidates, each with its reason.

Rules of this file: asked for only where somebody wants to see them; the search itself counts them. Of what is alike the nearest misses
stand for all: with the least memory that lacks, or the least time that they lose.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hocket.errors import InputError
from hocket.hardware.groups import grouped
from hocket.plan.candidates import Refused
from hocket.plan.mesh import Plane
from hocket.plan.sized import SizedSearch
from hocket.units import show_bytes, show_count, show_seconds

_EACH = 6  # nearest misses of a kind


def refused_meshes(found: SizedSearch, options: Mapping[str, Any]) -> tuple[Refused, ...]:
    """Why others are no candidates: by memory, by their bound, by what does not divide.

    Arguments:
        options: of the search.
    """
    taken = {one.mesh for one in found.meshes.found}
    large, slow = list[tuple[float, Refused]](), list[tuple[float, Refused]]()
    best_s = found.best.iteration_s if found.meshes.found else float("inf")
    sizes = found.best.plane.sizes if found.meshes.found else (1,)
    for plane in _planes(found, options, sizes):
        capacity = min(plane.group.cluster.capacity_bytes(d) for d in range(plane.group.cluster.devices))
        for mesh in plane.meshes(found.batch_size):
            if mesh not in taken:
                missing = plane.least_bytes(mesh) - capacity
                bound = None if missing > capacity else plane.bound(mesh)
                if bound is None or bound.bytes > capacity:
                    least = plane.least_bytes(mesh) if bound is None else bound.bytes
                    why = f"needs at least {show_bytes(least)} a device of {show_bytes(capacity)}"
                    large.append((least - capacity, Refused(mesh.strategy, str(mesh), why, least - capacity)))
                elif bound.seconds > best_s:
                    why = f"takes at least {show_seconds(bound.seconds)}, {bound.seconds / best_s - 1:.1%} more than the best"
                    slow.append((bound.seconds, Refused(mesh.strategy, str(mesh), why)))
    near = [[one for _, one in sorted(kind, key=lambda x: x[0])[:_EACH]] for kind in (large, slow)]
    return (*near[0], *near[1], *_undivided(found, sizes))


def _planes(found: SizedSearch, options: Mapping[str, Any], sizes: tuple[int, ...]) -> Iterator[Plane]:
    recomputes = options.get("recomputes") or ("none", "selective", "full")
    for width in _widths(found, options):
        for recompute in recomputes:
            try:
                yield Plane(found.profile, found.cluster, width, recompute, sizes)
            except InputError:
                continue


def _widths(found: SizedSearch, options: Mapping[str, Any]) -> list[int]:
    devices = found.cluster.devices
    return list(options.get("tensors") or [t for t in range(1, devices + 1) if devices % t == 0])


def _undivided(found: SizedSearch, sizes: tuple[int, ...]) -> Iterator[Refused]:
    """Widths, columns and depths that do not divide model, cluster or batch."""
    model, cluster, batch = found.model, found.cluster, found.batch_size
    for width in [t for t in range(1, cluster.devices + 1) if cluster.devices % t == 0]:
        try:
            model.check_tensor(width)
            grouped(cluster, width)
        except InputError as error:
            yield Refused("any", f"t{width}", f"{error.found} is not {error.expected}")
    layers = len(found.profile(1, "none", sizes).layers)
    for columns in [d for d in range(1, cluster.devices + 1) if cluster.devices % d == 0]:
        fitting = [b for b in sizes if batch % (columns * b) == 0]
        if not fitting:
            yield Refused(
                "any", f"d{columns}", f"a batch of {batch} is no multiple of {columns} columns times a microbatch"
            )
        depth = cluster.devices // columns
        if depth > layers:
            yield Refused(
                "flush", f"p{depth} t1 d{columns}", f"{show_count(layers, 'layer')} are fewer than {depth} stages"
            )
        odd = [b for b in fitting if depth > 1 and depth <= layers and batch // (columns * b) % depth]
        if odd:
            why = f"{batch // (columns * odd[0])} microbatches are no multiple of {depth} stages (section 4.2.2)"
            yield Refused("interleaved", f"p{depth} t1 d{columns} b{odd[0]}", why)

"""The search over meshes: bounds put them in order, the simulator decides among those that may be the best.

Rules of this file: deterministic; a mesh is left out when its bound is behind the best simulated one, or its bytes are above what a
device has.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.plan.candidates import TIE
from hocket.plan.mesh import Mesh, Plane
from hocket.plan.predict import predict_choice

_LONG = 4  # times as many microbatches as stages in a column, from which a batch is foreseen from shorter ones


@dataclass(frozen=True)
class Meshed:
    """A simulated mesh: seconds of an iteration, bytes on its fullest device."""

    mesh: Mesh
    iteration_s: float
    bytes: float


@dataclass(frozen=True)
class Meshes:
    """What a search found, the best first.

    Attributes:
        considered: meshes that divide devices, batch and layers; too_large: of these, beyond a device's memory by their bounds.
    """

    found: tuple[Meshed, ...]
    considered: int
    too_large: int


def search_meshes(planes: Iterable[Plane], batch_size: int) -> Meshes:
    """Simulate in the order of the bounds whatever may be the best, or as good within the tolerance of a tie."""
    waiting, considered, too_large = [], 0, 0
    for number, plane in enumerate(planes):
        capacity = min(plane.group.cluster.capacity_bytes(d) for d in range(plane.group.cluster.devices))
        for mesh in plane.meshes(batch_size):
            bound = plane.bound(mesh)
            considered += 1
            if bound.bytes > capacity:
                too_large += 1
                continue
            waiting.append((bound.seconds, number, considered, plane, mesh, capacity))
    found: list[Meshed] = []
    best_s = float("inf")
    for bound_s, _, _, plane, mesh, capacity in sorted(waiting, key=lambda one: one[:3]):
        if bound_s > best_s * (1 + TIE):
            break
        one = simulated(plane, mesh)
        if one.bytes <= capacity:
            found.append(one)
            best_s = min(best_s, one.iteration_s)
    return Meshes(tuple(sorted(found, key=lambda one: one.iteration_s)), considered, too_large)


def simulated(plane: Plane, mesh: Mesh) -> Meshed:
    """What the simulator says of a mesh.

    A batch of many microbatches is foreseen from two shorter ones: behind the filling of the pipeline each round of microbatches
    takes as long as the one before. For uniform models that is the whole's time.
    """
    p, m = mesh.depth, mesh.microbatches
    if p == 1 or m <= _LONG * p:
        return _played(plane, mesh, m)
    few = 2 * p + m % p
    first, second = _played(plane, mesh, few), _played(plane, mesh, few + p)
    rounds = (m - few) // p
    return Meshed(
        mesh,
        first.iteration_s + rounds * (second.iteration_s - first.iteration_s),
        max(first.bytes, second.bytes),
    )


def _played(plane: Plane, mesh: Mesh, microbatches: int) -> Meshed:
    situation, choice = plane.choice(mesh, microbatches * mesh.samples * mesh.width)
    found = predict_choice(situation, mesh.strategy, choice)
    return Meshed(mesh, found.iteration_s, max(found.peak_memory_bytes.values()))

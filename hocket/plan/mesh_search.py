"""The search over meshes: bounds put them in order, the simulator decides among those that may be the best.

Rules of this file: deterministic; what looks equal within the tolerance goes to fewer stages; a mesh is left out when its bound is behind the best simulated one, or its bytes are above what a
device has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hocket.plan.candidates import TIE
from hocket.plan.mesh import Mesh, Plane
from hocket.plan.plan import Predicted
from hocket.plan.predict import predict_choice

_LITTLE = 1.25  # of a device's memory: what more than this is needed for is no near miss


@dataclass(frozen=True)
class Meshed:
    """A simulated mesh: seconds of an iteration, bytes on its fullest device.

    Attributes:
        plane: what it is one of; predicted: all that is foreseen of it.
    """

    plane: Plane
    mesh: Mesh
    predicted: Predicted

    @property
    def label(self) -> str:
        """In a few words."""
        return str(self.mesh)

    @property
    def iteration_s(self) -> float:
        """Seconds of a batch."""
        return self.predicted.iteration_s

    @property
    def bytes(self) -> float:
        """On the fullest device."""
        return max(self.predicted.peak_memory_bytes.values())


@dataclass(frozen=True)
class Miss:
    """A mesh that does not fit: bytes that its fullest device needs at least, and seconds that it would take at least."""

    mesh: Mesh
    bytes: float
    capacity_bytes: float
    seconds: float

    @property
    def missing_bytes(self) -> float:
        """By how much the device is too small."""
        return self.bytes - self.capacity_bytes


@dataclass(frozen=True)
class Meshes:
    """What a search found, the best first.

    Attributes:
        considered: meshes that divide devices, batch and layers; too_large: of these, beyond a device's memory.
        nearest: of those too large, the one that lacks the least memory.
        quicker: of those that lack little memory, the one with the least bound on its seconds, if that is below the best's.
        behind: the least bound on the seconds of what fits by its bound and was left out, with its mesh: nothing that was not
            simulated takes less.
    """

    found: tuple[Meshed, ...]
    considered: int
    too_large: int
    nearest: Miss | None = None
    quicker: Miss | None = None
    behind: tuple[Mesh, float] | None = None


def search_meshes(planes: Iterable[Plane], batch_size: int, ceiling_s: float = inf) -> Meshes:
    """Simulate in the order of the bounds whatever may be the best, or as good within the tolerance of a tie.

    Arguments:
        ceiling_s: what takes longer by its bound is not simulated: it is of no use.
    """
    waiting, considered = [], 0
    misses, far = list[Miss](), list[tuple[Plane, Mesh, float]]()
    for number, plane in enumerate(planes):
        capacity = min(plane.group.cluster.capacity_bytes(d) for d in range(plane.group.cluster.devices))
        for mesh in plane.meshes(batch_size):
            considered += 1
            if plane.least_bytes(mesh) > capacity:
                far.append((plane, mesh, capacity))
                continue
            bound = plane.bound(mesh)
            if bound.bytes > capacity:
                misses.append(Miss(mesh, bound.bytes, capacity, bound.seconds))
                continue
            waiting.append((bound.seconds, number, considered, plane, mesh, capacity))
    found: list[Meshed] = []
    best_s, behind = float("inf"), None
    for bound_s, _, _, plane, mesh, capacity in sorted(waiting, key=lambda one: one[:3]):
        if bound_s > min(best_s * (1 + TIE), ceiling_s):
            behind = mesh, float(bound_s)
            break
        one = simulated(plane, mesh)
        if one.bytes <= capacity:
            found.append(one)
            best_s = min(best_s, one.iteration_s)
        else:
            misses.append(Miss(mesh, one.bytes, capacity, one.iteration_s))
    too_large = len(misses) + len(far)
    if not found and behind is None:  # how far these are from fitting matters now
        misses += [Miss(mesh, bound.bytes, room, bound.seconds) for p, mesh, room in far for bound in (p.bound(mesh),)]
    little = [miss for miss in misses if miss.seconds < best_s and miss.bytes <= _LITTLE * miss.capacity_bytes]
    quicker = min(little, key=lambda miss: miss.seconds, default=None)
    return Meshes(
        tuple(sorted(found, key=lambda one: _rank(one, best_s))),
        considered,
        too_large,
        min(misses, key=lambda miss: miss.missing_bytes, default=None),
        quicker,
        behind,
    )


def _rank(one: Meshed, best_s: float) -> tuple[float, int, int, float]:
    """By seconds; among those that are as good as the best, fewer stages and then narrower groups go first."""
    if one.iteration_s > best_s * (1 + TIE):
        return one.iteration_s, 0, 0, 0.0
    return best_s, one.mesh.depth * one.mesh.chunks, one.mesh.tensor, one.iteration_s


def simulated(plane: Plane, mesh: Mesh) -> Meshed:
    """What the simulator says of a mesh; a long batch is foreseen from shorter ones (long.py)."""
    situation, choice = plane.choice(mesh, mesh.microbatches * mesh.samples * mesh.width)
    return Meshed(plane, mesh, predict_choice(situation, mesh.strategy, choice, most_forwards=0))

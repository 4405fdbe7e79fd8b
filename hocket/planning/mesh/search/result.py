"""Results of a search over parallel layouts, and their order."""

from dataclasses import dataclass, replace

from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.search.simulated import SimulatedLayout
from hocket.planning.search.result import TIE
from hocket.program.program import SHARDS

_LITTLE = 1.25  # share of a device's memory up to which a layout is a near miss


@dataclass(frozen=True)
class LayoutMiss:
    """A layout that does not fit.

    Attributes:
        bytes: lower bound of, or simulated, peak bytes of the device that lacks the most memory.
        capacity_bytes: memory of this device.
        seconds: lower bound of, or simulated, seconds of an iteration.
    """

    mesh: ParallelLayout
    bytes: float
    capacity_bytes: float
    seconds: float

    @property
    def missing_bytes(self) -> float:
        """Bytes by which the device is too small."""
        return self.bytes - self.capacity_bytes

    @property
    def is_near(self) -> bool:
        """True if little memory is missing."""
        return self.bytes <= _LITTLE * self.capacity_bytes


@dataclass(frozen=True)
class LayoutSearch:
    """Result of a search over parallel layouts.

    Attributes:
        found: simulated layouts that fit, best first.
        considered: number of layouts that divide devices, batch and layers.
        too_large: number of these layouts that exceed a device's memory.
        nearest: the layout that is too large by the fewest bytes; None if none is too large.
        quicker: the fastest layout that is too large by little and faster than the best; None if there is none.
        behind: of the layouts that were neither simulated nor too large, the one with the least lower bound, and this
            bound in seconds; None if there is none.
        simple: on a heterogeneous cluster, the best layout with equal stages or on one device type; None otherwise.
    """

    found: tuple[SimulatedLayout, ...]
    considered: int
    too_large: int
    nearest: LayoutMiss | None = None
    quicker: LayoutMiss | None = None
    behind: tuple[ParallelLayout, float] | None = None
    simple: SimulatedLayout | None = None

    @property
    def simulated(self) -> int:
        """Number of simulated layouts. A layout may be among `found` several times, with other cuts into stages."""
        return len({replace(one.mesh, ends=(), again=(), places=()) for one in self.found})


def rank(one: SimulatedLayout, best_s: float) -> tuple[float, ...]:
    """Rank of a layout: by seconds.

    Among ties: newest weights, fewer stages, smaller groups, one recompute setting, unsharded state.
    """
    if one.iteration_s > best_s * (1 + TIE):
        return (one.iteration_s,)
    return best_s, *simplicity(one.mesh), one.iteration_s


def simplicity(mesh: ParallelLayout) -> tuple[int, ...]:
    """Sort key of ties: the simplest layout is least."""
    return mesh.stale, mesh.depth * mesh.chunks, mesh.tensor, bool(mesh.again), SHARDS.index(mesh.shard)

"""Results of a search over parallel layouts."""

from dataclasses import dataclass

from hocket.planning.mesh.layout import ParallelLayout
from hocket.planning.mesh.search.simulated import SimulatedLayout


@dataclass(frozen=True)
class LayoutMiss:
    """A layout that does not fit.

    Attributes:
        bytes: least memory that its fullest device needs.
        seconds: lower bound on the iteration time.
    """

    mesh: ParallelLayout
    bytes: float
    capacity_bytes: float
    seconds: float

    @property
    def missing_bytes(self) -> float:
        """Bytes by which the device is too small."""
        return self.bytes - self.capacity_bytes


@dataclass(frozen=True)
class LayoutSearch:
    """Result of a search; layouts are sorted, best first.

    Attributes:
        considered: number of layouts that divide devices, batch and layers.
        too_large: number of these that exceed a device's memory.
        nearest: the too large layout that misses the least memory.
        quicker: of the layouts that miss little memory, the one with the least bound, if below the best layout's time.
        behind: of the layouts that fit by their bounds but were not simulated, the one with the least bound, with it.
        simple: best layout of a heterogeneous cluster with equal stages, or on devices of one type.
    """

    found: tuple[SimulatedLayout, ...]
    considered: int
    too_large: int
    nearest: LayoutMiss | None = None
    quicker: LayoutMiss | None = None
    behind: tuple[ParallelLayout, float] | None = None
    simple: SimulatedLayout | None = None

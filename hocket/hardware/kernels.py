"""Kernels: efficiency of matrix products and of memory-bound kernels.

Rules of this file: makers do not publish shares of peak rates, so these are usual figures. Calibration replaces them
by measured ones. The number of units is the maker's.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hocket.errors import InputError


@dataclass(frozen=True)
class Kernels:
    """Efficiency of the kernels of a device type.

    Attributes:
        units: number of units that process one tile of a matrix product each at a time (streaming multiprocessors); 1
            for a processor core.
        tiles: (rows, columns) of the available output tiles. The fastest one is used.
        product_share: share of the peak rate that matrix products reach with a long inner dimension and full waves of
            the largest tiles.
        inner: length of the inner dimension at which a matrix product reaches half of its rate.
        memory_share: share of the memory's peak bandwidth that memory-bound kernels reach.
    """

    units: int = 1
    tiles: tuple[tuple[int, int], ...] = ((256, 128), (128, 256), (128, 128), (64, 128), (64, 64))
    product_share: float = 0.9
    inner: float = 128.0
    memory_share: float = 0.8

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.units < 1:
            raise InputError("kernels.units", str(self.units), ">= 1")
        if not self.tiles or min(min(tile) for tile in self.tiles) < 1:
            raise InputError("kernels.tiles", str(self.tiles), "at least one tile, rows and columns >= 1")
        for key in ("product_share", "memory_share"):
            if not 0 < getattr(self, key) <= 1:
                raise InputError(f"kernels.{key}", str(getattr(self, key)), "above 0, at most 1")
        if not self.inner >= 0:
            raise InputError("kernels.inner", str(self.inner), ">= 0")

"""Speed of a profile's layers when compiled by torch.compile.

See `hocket.profiling.capture.compiled`.

Rules of this file: a run is some consecutive layers that are compiled together. Speeds are measured for a few runs,
because layers that are compiled together cost less than the sum of separate ones. A layer has the ratio of its run.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.util.units import show_seconds

_MOST = 1e6


@dataclass(frozen=True)
class Compiled:
    """Ratios of compiled to eager times of forwards and backwards.

    Attributes:
        backend: backend of torch.compile.
        cold_s: seconds to compile all layers for one microbatch size, the largest of all sizes.
        ends: for each run of layers, the index after its last layer.
        forward, backward: for each run of layers, a ratio for each microbatch size of the profile.
    """

    backend: str
    cold_s: float
    ends: tuple[int, ...]
    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if list(self.ends) != sorted(set(self.ends)) or min(self.ends, default=0) < 1:
            raise InputError("compiled.ends", str(self.ends), "ascending numbers of layers, at least one")
        for key in ("forward", "backward"):
            rows = getattr(self, key)
            if len(rows) != len(self.ends) or any(not 0 < value <= _MOST for row in rows for value in row):
                raise InputError(f"compiled.{key}", str(rows)[:80], "factors above 0, for each run of layers")

    def line(self, size: int) -> str:
        """Return a summary for people.

        Arguments:
            size: index of a microbatch size of the profile.
        """
        runs = [
            f"layers {a} to {b - 1} {self.forward[k][size]:.2f} forward and {self.backward[k][size]:.2f} backward"
            for k, (a, b) in enumerate(pairwise((0, *self.ends)))
        ]
        cold = f"{show_seconds(self.cold_s)} to compile"
        return f"compiled ({self.backend}, {cold}), times relative to eager: {'; '.join(runs)}"

    def run_of(self, layer: int) -> int:
        """Return the index of the run that contains a layer."""
        return next(k for k, end in enumerate(self.ends) if layer < end)

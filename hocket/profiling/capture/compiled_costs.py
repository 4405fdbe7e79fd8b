"""Compiling: what a profile knows of its layers as code that torch.compile makes (`hocket.profiling.capture.compiled`).

Rules of this file: measured in a few runs of layers, for what is compiled together takes less than the sum of its parts. A plan's stage
takes of each run the share that it has.
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
        backend: of torch.compile. cold_s: seconds that a worker with all layers took to make the code for one microbatch size.
        ends: of each run of layers, the first that is behind it.
        forward, backward: by run of layers, a factor for each microbatch size of the profile.
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
        """Summary for people at one of the microbatch sizes."""
        runs = [
            f"layers {a} to {b - 1} {self.forward[k][size]:.2f} forward and {self.backward[k][size]:.2f} backward"
            for k, (a, b) in enumerate(pairwise((0, *self.ends)))
        ]
        cold = f"{show_seconds(self.cold_s)} to make the code"
        return f"compiled ({self.backend}, {cold}), times as long as without: {'; '.join(runs)}"

    def run_of(self, layer: int) -> int:
        """The run that a layer is in."""
        return next(k for k, end in enumerate(self.ends) if layer < end)

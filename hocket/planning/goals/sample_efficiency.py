"""Sample efficiency: samples to reach an accuracy, by batch size.

Rules of this file: figures are measured, or come from the closed form with two measured figures. Batches beyond the
measured range are refused. A file is YAML:

    name: vgg on images, error 0.35
    points:                       # batch size, and samples that were seen until the accuracy was reached
      - {batch_size: 256, samples: 8.0e6}
      - {batch_size: 4096, samples: 9.1e6}
    source: who measured it

or, in the place of `points`, `noise_scale: 4096` and `least_samples: 8.0e6`. The samples of a batch of B are then
least_samples x (1 + B / noise_scale).
Source: DeepPool section 2 (use of the curve); Shallue et al., Measuring the effects of data parallelism, JMLR 20,
2019 (shape of the curve); McCandlish et al., An empirical model of large-batch training, 2018, equation 2.11 (the
closed form).
"""

from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import Any, ClassVar

from hocket.errors import InputError
from hocket.util.documents import parse_yaml
from hocket.util.files import read_bytes
from hocket.util.schema import read_as


@dataclass(frozen=True)
class Point:
    """Samples to reach the accuracy with batches of one size."""

    batch_size: int
    samples: float

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("batch_size", str(self.batch_size), ">= 1")
        if not 0 < self.samples < inf:
            raise InputError("samples", str(self.samples), "> 0")


@dataclass(frozen=True)
class SampleCurve:
    """Samples to reach an accuracy, by batch size.

    Attributes:
        name: the job and the accuracy.
        points: measured points, by ascending batch size.
        noise_scale: of the closed form: batch size that needs twice the least samples.
        least_samples: of the closed form: samples for very small batches.
        source: origin of the figures.
    """

    name: str
    points: tuple[Point, ...] = ()
    noise_scale: float = 0.0
    least_samples: float = 0.0
    source: str = ""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        formed = bool(self.noise_scale or self.least_samples)
        if formed == bool(self.points):
            found = "points, and a noise scale too" if formed else "neither points nor a noise scale"
            raise InputError("points", found, "one of the two")
        if formed and not (0 < self.noise_scale < inf and 0 < self.least_samples < inf):
            raise InputError("noise_scale", f"{self.noise_scale}, least_samples {self.least_samples}", "both > 0")
        sizes = [point.batch_size for point in self.points]
        if sizes != sorted(set(sizes)):
            raise InputError("points", f"batch sizes {', '.join(map(str, sizes))}", "ascending batch sizes, each once")

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest known batch size."""
        return (self.points[0].batch_size, self.points[-1].batch_size) if self.points else (1, inf)

    def samples(self, batch_size: int) -> float:
        """Number of samples to reach the accuracy.

        Between measured batch sizes, it is interpolated linearly on logarithmic scales of samples and batch size.

        Raises:
            InputError: the batch size is outside of the measured range.
        """
        low, high = self.range
        if not low <= batch_size <= high:
            expected = f"{low:g} to {high:g}, where {self.name} was measured"
            raise InputError("batch_size", str(batch_size), expected, "Measure more points.")
        if not self.points:
            return self.least_samples * (1 + batch_size / self.noise_scale)
        right = next(k for k, point in enumerate(self.points) if point.batch_size >= batch_size)
        after = self.points[right]
        if after.batch_size == batch_size:
            return after.samples
        before = self.points[right - 1]
        share = log(batch_size / before.batch_size) / log(after.batch_size / before.batch_size)
        return float(before.samples * (after.samples / before.samples) ** share)

    @classmethod
    def from_yaml(cls, text: bytes | str, place: str = "curve") -> "SampleCurve":
        """Read a curve from YAML; unknown keys are refused.

        Raises:
            InputError: unknown or missing keys, wrong values.
        """
        return read_as(cls, parse_yaml(text, place), place)

    @classmethod
    def read(cls, path: str | Path) -> "SampleCurve":
        """Read a curve file (YAML)."""
        return cls.from_yaml(read_bytes(path, 2**20), str(path))

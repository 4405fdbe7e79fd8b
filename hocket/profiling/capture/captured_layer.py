"""Captured layers and the tensors between them: what `hocket.profiling.capture.capture` finds in a model."""

from dataclasses import dataclass
from math import prod

import torch

from hocket.profiling.layer import BATCH_STATISTICS, RANDOM, WRITES


@dataclass(frozen=True)
class CapturedLayer:
    """One layer with its operations.

    Attributes:
        modules: paths of the modules without children that it calls.
        parameters: global names, a tied one under its first name. buffers: names of buffers that it may change or read.
        random: draws random numbers. batch_statistics: normalises over the microbatch and keeps running statistics.
        nodes: indices of its operations in the trace.
        written: names of buffers that its forward changes, but for running statistics of batch normalisation.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    random: bool
    batch_statistics: bool
    flops: float
    nodes: tuple[int, ...]
    written: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that planners act on (`hocket.profiling.layer`)."""
        marks = [mark for mark, holds in ((RANDOM, self.random), (BATCH_STATISTICS, self.batch_statistics)) if holds]
        return (*marks, *(f"{WRITES}{name}" for name in self.written))


@dataclass(frozen=True)
class CapturedTensor:
    """One tensor between layers; `source` -1 is the batch.

    Attributes:
        batch_dim: which dimension grows with the microbatch. value: its number in the trace.
        stride: how its elements lie in memory, empty where that cannot be said.
    """

    name: str
    source: int
    targets: tuple[int, ...]
    gradient: bool
    shape: tuple[int, ...]
    dtype: torch.dtype
    batch_dim: int | None
    value: int
    stride: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor at this microbatch size."""
        return prod(self.shape) * self.dtype.itemsize

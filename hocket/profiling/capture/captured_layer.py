"""Layers captured from a model, and the tensors between them.

`hocket.profiling.capture.capture` finds them.
"""

from dataclasses import dataclass
from math import prod

import torch

from hocket.profiling.layer import BATCH_STATISTICS, RANDOM, WRITES


@dataclass(frozen=True)
class CapturedLayer:
    """One layer with its operations.

    Attributes:
        modules: paths of the modules without children that the layer calls.
        parameters: global names of the layer's parameters. A tied parameter has its first name.
        buffers: names of buffers that the layer may read or change.
        random: True if the layer draws random numbers.
        batch_statistics: True if it normalises over the microbatch and keeps running statistics.
        nodes: indices of the layer's operations in the trace.
        written: names of buffers that the forward changes, except running statistics of batch normalisation.
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
    """A tensor between layers.

    Attributes:
        source: index of the layer that computes it; -1 for the batch.
        targets: indices of the layers that read it.
        batch_dim: dimension that grows with the microbatch; None without one.
        value: number of the value in the trace.
        stride: strides of its elements in memory; empty if unknown.
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

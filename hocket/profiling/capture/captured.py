"""A captured model: layers, and the tensors between them.

`hocket.profiling.capture.capture` makes it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

import torch

from hocket.errors import InputError
from hocket.profiling.capture.recorded_graph import RecordedGraph
from hocket.profiling.capture.segmentation import LiveGraph
from hocket.profiling.job.job import Job
from hocket.profiling.job.subtasks import ParameterRows, parts_of
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
        gradient: True if a gradient flows back through it.
        batch_dim: index of the batch dimension, which grows with the microbatch; None without one.
        value: index of the value in the trace (`RecordedGraph.values`).
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


@dataclass(frozen=True)
class Choices:
    """Choices made at the first microbatch size and kept for all sizes.

    Attributes:
        max_layers: largest number of layers.
        opaque: paths of modules that are kept whole.
        as_tracing: True to let `torch.jit.is_tracing()` return True while recording.
        joined: number of finest layers (see segmentation.py, `pieces`) in each layer.
        notes: texts for the profile.
    """

    max_layers: int
    opaque: frozenset[str] = frozenset()
    as_tracing: bool = False
    joined: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Captured:
    """A job's model for one microbatch size.

    Attributes:
        job: the job in its compute precision (`hocket.profiling.job.precision`).
        layers, tensors: the graph. `tensors` holds the tensors of the batch first, then the others by source layer.
        batch_names: names (`CapturedTensor.name`) of the used tensors of the batch, by key in the batch.
        loss_tensor: name of the loss. The last layer computes it; it is not one of `tensors`.
        ties: groups of indices of layers that share a parameter.
        choices: choices that other microbatch sizes repeat.
        sums_norm: True if the norm of all gradients is summed before each step, even without clipping.
    """

    job: Job
    microbatch_size: int
    layers: tuple[CapturedLayer, ...]
    tensors: tuple[CapturedTensor, ...]
    batch_names: dict[str, str]
    ties: tuple[tuple[int, ...], ...]
    graph: LiveGraph
    choices: Choices
    notes: tuple[str, ...]
    loss_tensor: str = "loss"
    sums_norm: bool = False
    _at_size: "Callable[[Captured, int], Captured]" = field(kw_only=True, repr=False)

    def masters(self, names: Iterable[str], device: torch.device | str) -> dict[str, torch.Tensor] | None:
        """Return the master weights of some parameters, by name.

        None without mixed precision: the optimizer then updates the compute weights themselves.

        Arguments:
            names: names of the parameters.
            device: device of the returned weights.
        """
        if self.job.own is None:
            return None
        held = dict(self.job.own.model.named_parameters())
        return {name: held[name].detach().to(device) for name in names}

    @property
    def clip_grad_norm(self) -> float | None:
        """Norm that gradients are clipped to; None without clipping.

        Infinity if the norm is only measured.
        """
        return inf if self.sums_norm and self.job.clip_grad_norm is None else self.job.clip_grad_norm

    @property
    def loss_weighted(self) -> bool:
        """True if microbatch losses are weighted by a function, not by samples."""
        return callable(self.job.loss_weight)

    def for_size(self, microbatch_size: int) -> "Captured":
        """Return the capture of the same layers at another microbatch size.

        Raises:
            CaptureError: the model runs other operations at that size.
        """
        return self._at_size(self, microbatch_size)

    @cached_property
    def parts(self) -> dict[str, ParameterRows]:
        """Rows of the whole parameter that each subtask's parameter holds, by name."""
        return parts_of(self.job.model)

    @cached_property
    def tensor(self) -> dict[str, CapturedTensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def trace(self) -> RecordedGraph:
        """The recorded graph."""
        return self.graph.trace

    def index_of(self, layer: str) -> int:
        """Return the index of the layer of this name.

        Raises:
            InputError: no layer has this name.
        """
        for k, found in enumerate(self.layers):
            if found.name == layer:
                return k
        raise InputError("layer", repr(layer), f"one of {', '.join(x.name for x in self.layers)}")

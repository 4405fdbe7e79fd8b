"""A captured model: layers, and the tensors between them.

`hocket.profiling.capture.capture` makes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch

from hocket.errors import CaptureError, InputError
from hocket.profiling.capture.segmentation import LiveGraph
from hocket.profiling.job.derived_model.subtasks import ParameterRows, parts_of
from hocket.profiling.job.job import Job
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
        without_gradient: names of the parameters that get no gradient here, because the layer detaches them.
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
    without_gradient: tuple[str, ...] = ()

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
        job: the job in its compute precision (`hocket.profiling.job.derived_model.precision`).
        layers, tensors: the graph. `tensors` holds the tensors of the batch first, then the others by source layer.
        batch_names: names (`CapturedTensor.name`) of the used tensors of the batch, by key in the batch.
        loss_tensor: name of the loss. The last layer computes it; it is not one of `tensors`.
        ties: groups of indices of layers that share a parameter.
        choices: choices that other microbatch sizes repeat.
        clip_grad_norm: norm that gradients are clipped to before each step; infinity if their norm is only measured, None
            if it is not needed.
        clip_stage_norm: norm over the parameters of each stage that the stage's gradients are clipped to; None without
            such clipping.
        loss_weighted: True if a function weights the losses of microbatches, not the number of samples.
        loss_scaled: True if losses are multiplied by a loss scale (`Job.scales_loss`).
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
    clip_grad_norm: float | None = None
    clip_stage_norm: float | None = None
    loss_weighted: bool = False
    loss_scaled: bool = False
    _at_size: "Callable[[Captured, int], Captured]" = field(kw_only=True, repr=False)

    def for_size(self, microbatch_size: int) -> "Captured":
        """Return the capture of the same layers at another microbatch size.

        Raises:
            CaptureError: the model runs other operations at that size.
        """
        return self._at_size(self, microbatch_size)

    def for_sizes(self, microbatch_sizes: Sequence[int]) -> "tuple[list[Captured], list[str]]":
        """Return the captures at several microbatch sizes, and notes.

        Size 1 is left out if the model (BatchNorm) refuses it and there are other sizes.

        Raises:
            CaptureError: the model runs other operations at one of these sizes.
        """
        found, notes = [], []
        for size in microbatch_sizes:
            try:
                found.append(self.for_size(size))
            except CaptureError as error:
                if size > 1 or len(microbatch_sizes) == 1:
                    raise
                notes.append(f"microbatches of 1 left out: {error.found}")
        return found, notes

    def step_flops(self, batch_size: int) -> float:
        """Return the model's floating-point operations in a step of `batch_size` samples.

        A backward has twice the operations of the forward: it computes gradients of inputs and of weights.
        """
        return 3 * sum(layer.flops for layer in self.layers) * batch_size / self.microbatch_size

    def inputs(self, batch: Mapping[str, torch.Tensor], device: torch.device | None = None) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch that layers read, by tensor name.

        Arguments:
            batch: tensors by key in the batch.
            device: device of the returned tensors; None to leave them where they are.
        """
        names = self.batch_names
        return {
            names[key]: value if device is None else value.to(device) for key, value in batch.items() if key in names
        }

    def first_inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Return `inputs` for the first samples of the job's data, repeated if there are fewer."""
        count = self.job.samples
        return self.inputs(self.job.batch([i % count for i in range(self.microbatch_size)]), device)

    @cached_property
    def parts(self) -> dict[str, ParameterRows]:
        """Rows of the whole parameter that each subtask's parameter holds, by name."""
        return parts_of(self.job.model)

    @cached_property
    def tensor(self) -> dict[str, CapturedTensor]:
        """Tensors between layers, by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def index_of(self, layer: str) -> int:
        """Return the index of the layer of this name.

        Raises:
            InputError: no layer has this name.
        """
        for k, found in enumerate(self.layers):
            if found.name == layer:
                return k
        raise InputError("layer", repr(layer), f"one of {', '.join(x.name for x in self.layers)}")

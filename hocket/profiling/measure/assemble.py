"""Assembly of a profile from a captured job and its measured seconds and bytes.

Rules of this file: only stages are created here, and nothing else runs. Figures may be measured or computed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hocket.profiling.capture.capture import Captured, CapturedTensor, Stage
from hocket.profiling.capture.memory_layout import is_dense
from hocket.profiling.capture.storage_tracker import unique_bytes
from hocket.profiling.checks.elementwise_step import is_coupled, is_elementwise
from hocket.profiling.job.clip import norm_of_model, norm_of_stages
from hocket.profiling.job.derived_model.precision import sums_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.optimizer import whole_optimizer
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.measure.memory import LayerBytes
from hocket.profiling.profile import ModelProfile


@dataclass(frozen=True)
class MeasuredSeconds:
    """Measured seconds of one microbatch: of each layer, and of the undivided model.

    Attributes:
        forward, backward: seconds by layer, shape (layers,).
        noise: half the interquartile range of forward + backward, shape (layers,).
        whole_forward, whole_backward: seconds of the undivided model.
        forward_std, backward_std: standard deviations of `whole_forward` and `whole_backward`; 0 if unknown.
    """

    forward: np.ndarray
    backward: np.ndarray
    noise: np.ndarray
    whole_forward: float
    whole_backward: float
    forward_std: float = 0.0
    backward_std: float = 0.0


@dataclass(frozen=True)
class MeasuredSize:
    """Measurements at one microbatch size.

    Attributes:
        size: samples of a microbatch.
        bytes: bytes by layer.
        seconds: times of the layers and of the model; None if not measured.
        load_s: seconds to load a microbatch.
    """

    size: int
    bytes: list[LayerBytes]
    seconds: MeasuredSeconds | None = None
    load_s: float = 0.0


@dataclass(frozen=True)
class MeasuredStep:
    """Measured bytes and seconds of an optimizer step.

    Attributes:
        state_bytes: bytes of optimizer state, by parameter name.
        seconds: seconds of a step, by parameter name.
        copy_s: additional seconds of a step on a copy of the weights, by parameter name.
        call_s: fixed seconds of each step, in addition to `seconds`.
        layer_bytes: bytes of temporary memory of a step, by layer.
        together: True if a step of all layers needs the sum of `layer_bytes`.
    """

    state_bytes: dict[str, int]
    seconds: dict[str, float]
    copy_s: dict[str, float]
    call_s: float
    layer_bytes: list[int]
    together: bool


@dataclass(frozen=True)
class Measurements:
    """Measurements of a captured job on one device type.

    Attributes:
        columns: measurements of each microbatch size, ascending; all with seconds or all without.
        step: measurements of the optimizer.
        source: origin of the figures, for people.
        notes: notes for people, in addition to those of the captured job.
        loss_parts: sentence on how the loss of a batch differs from the mean of the losses of its parts; empty if there
            is no difference or no check.
    """

    device_type: str
    columns: Sequence[MeasuredSize]
    step: MeasuredStep
    source: str
    notes: tuple[str, ...] = ()
    loss_parts: str = ""


def assemble(job: Job, captured: Captured, measured: Measurements) -> ModelProfile:
    """Build the profile of a captured job; unknown seconds are 0.

    Arguments:
        job: the user's job. `captured` may be a tensor-parallel rank's part of it.
    """
    columns, step = measured.columns, measured.step
    sizes = tuple(column.size for column in columns)
    seconds = [column.seconds for column in columns if column.seconds is not None]
    zeros = (0.0,) * len(columns)
    parameters = dict(captured.job.model.named_parameters())
    graphs, layers = [captured.for_size(size) for size in sizes], []
    for k, found in enumerate(captured.layers):
        stage = Stage(graphs[-1], [k])
        weights = {name: parameters[name] for name in found.parameters}
        # Gradients are accumulated in the type of the master weights, which count as optimizer state.
        trained = {name: p.numel() * sums_of(p).itemsize for name, p in weights.items() if p.requires_grad}
        master_bytes = sum(trained.values()) if job.precision is not None else 0
        counted = [column.bytes[k] for column in columns]
        layers.append(
            Layer(
                name=found.name,
                kind=found.kind,
                forward_s=tuple(float(one.forward[k]) for one in seconds) or zeros,
                backward_s=tuple(float(one.backward[k]) for one in seconds) or zeros,
                stash_bytes=tuple(float(one.stash) for one in counted),
                parameters=found.parameters,
                weights_bytes=float(sum(p.numel() * p.element_size() for p in weights.values())),
                gradients_bytes=float(sum(trained.values())),
                optimizer_bytes=float(master_bytes + sum(step.state_bytes.get(name, 0) for name in trained)),
                buffers_bytes=float(unique_bytes((*stage.buffers().values(), *stage.constants()))),
                working_bytes=tuple(float(one.working) for one in counted),
                backward_bytes=tuple(float(one.backward) for one in counted),
                fresh_bytes=tuple(float(one.fresh) for one in counted),
                step_bytes=float(step.layer_bytes[k]),
                step_s=sum(step.seconds.get(name, 0.0) for name in trained),
                copy_s=sum(step.copy_s.get(name, 0.0) for name in trained),
                flops=tuple(graph.layers[k].flops for graph in graphs),
                noise_s=tuple(float(one.noise[k]) for one in seconds),
                notes=found.notes,
            )
        )
    until = _gradients_until(captured.tensors, columns[-1].bytes)
    tensors = tuple(
        Tensor(
            tensor.name,
            tensor.source,
            tensor.targets,
            tuple(float(graph.tensors[i].size_bytes) for graph in graphs),
            tensor.gradient,
            tuple(k for k, counted in enumerate(columns[-1].bytes) if tensor.name in counted.keeps),
            is_dense(tensor.shape, tensor.stride),
            gradient_until=until.get(tensor.name, -1),
        )
        for i, tensor in enumerate(captured.tensors)
    )
    return ModelProfile(
        name=job.label,
        device_type=measured.device_type,
        microbatch_sizes=sizes,
        layers=tuple(layers),
        tensors=tensors,
        optimizer=type(whole_optimizer(job)).__name__,
        ties=captured.ties,
        source=measured.source,
        whole_forward_s=tuple(one.whole_forward for one in seconds),
        whole_backward_s=tuple(one.whole_backward for one in seconds),
        whole_forward_std_s=_known(one.forward_std for one in seconds),
        whole_backward_std_s=_known(one.backward_std for one in seconds),
        load_s=tuple(column.load_s for column in columns) if seconds else (),
        dtype=job.dtype,
        step_call_s=step.call_s,
        step_together=step.together,
        elementwise_step=is_elementwise(job),
        coupled_step=is_coupled(job),
        digest_of_model=job.model_digest,
        batch_size=job.batch_size,
        clip_grad_norm=norm_of_model(job),
        clip_stage_norm=norm_of_stages(job),
        loss_weighted=callable(job.loss_weight),
        loss_scaled=job.scales_loss,
        loss_parts=measured.loss_parts,
        notes=(*captured.notes, *measured.notes),
    )


def _known(values: Iterable[float]) -> tuple[float, ...]:
    """Return the values of all sizes, or nothing if all are 0."""
    found = tuple(values)
    return found if any(found) else ()


def _gradients_until(tensors: Sequence[CapturedTensor], counted: Sequence[LayerBytes]) -> dict[str, int]:
    """Return `Tensor.gradient_until` (profiling/layer.py) of gradients in one storage.

    The result is by tensor name. Gradients with a storage of their own are left out.
    """
    named = {tensor.name: tensor for tensor in tensors}
    found = {}
    for layer in counted:
        for names in layer.parts:
            # Gradients of tensors with several readers are summed into new tensors. The batch has no gradients.
            own = [named[name] for name in names]
            own = [tensor for tensor in own if len(tensor.targets) == 1 and tensor.source >= 0]
            if len(own) > 1:
                found.update({tensor.name: min(each.source for each in own) for tensor in own})
    return found

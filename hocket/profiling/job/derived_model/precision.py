"""Mixed precision: a copy of the job that computes in bfloat16 or float16.

Rules of this file: the job's own model does not change, and keeps the master weights for the optimizer. The compute
copy is another model with equal parameter names:

- Parameters and floating-point buffers are cast. Normalisation with running statistics is not cast: eight bits would
  lose updates of a tenth of a percent, and torch's kernels accept both types together.
- Buffers that the forward writes are not cast, for the same reason: a running mean or a counter would stand still.
- Checkpoints hold the job's own values of the buffers that are cast, not the rounded ones.
- Floating-point tensors of the batch are cast for the model, but not for the loss.
- The output of the model is cast back before the loss, so losses and their gradients start in the model's own type. A
  model that computes its own loss chooses the type itself.
- Gradients are computed in the short type, and accumulated over microbatches and replicas in the master type.
- float16 needs larger losses: runtime/update/loss/scaler.py.

The rule equals FSDP2's `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32,
output_dtype=torch.float32)`, except for buffers, which FSDP2 does not cast, and for the gradients of several
microbatches: FSDP accumulates them as they are reduced, too.
"""

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map

from hocket.errors import RefusedError
from hocket.profiling.job.derived_model.placeholders import fill, is_placeholder, placeholder
from hocket.profiling.job.job import Job
from hocket.util.compatibility import Feature, check_together


def computed(job: Job, written: Collection[str] = ()) -> Job:
    """Return the compute copy of a job, or the job itself without mixed precision.

    Arguments:
        written: names of buffers that the forward writes; they are not cast.

    Raises:
        RefusedError: the model has no longer type to cast from, or this torch cannot accumulate gradients in a type
            other than the type of their weight.
    """
    if job.precision is None or job.own is not None:
        return job
    short, own = getattr(torch, job.precision), own_type(job.model)
    if own.itemsize <= short.itemsize:
        check_together(
            "Job.precision", Feature.PRECISION, Feature.SHORT_WEIGHTS, found=f"{job.precision}, of a model of {own}"
        )
    if not hasattr(torch.Tensor, "grad_dtype"):
        found = f"torch {torch.__version__}, which accumulates gradients in the type of their weight only"
        raise RefusedError("Job.precision", found, "a torch with Tensor.grad_dtype (2.10 or later)")
    types = {str(p.dtype).removeprefix("torch.") for p in job.model.parameters() if p.requires_grad}
    if len(types) > 1:
        found = f"{job.precision}, of a model whose weights are {' and '.join(sorted(types))}"
        check_together("Job.precision", Feature.PRECISION, Feature.UNLIKE_WEIGHTS, found=found)
    kept = {id(tensor) for tensor in _kept(job.model)}
    kept |= {id(b) for name, b in job.model.named_buffers(remove_duplicate=False) if name in written}
    memo: dict[int, Any] = {}
    for p in job.model.parameters():
        cast = nn.Parameter(_cast(p.detach(), short, id(p) in kept), requires_grad=p.requires_grad)
        memo[id(p)] = sums_in(cast, p.dtype) if p.requires_grad else cast
    for b in job.model.buffers():
        memo[id(b)] = _cast(b, short, id(b) in kept)
    twin = replace(job, model=copy.deepcopy(job.model, memo), loss=None if job.loss is None else widened(job.loss, own))
    object.__setattr__(twin, "own", job)
    object.__setattr__(twin, "path", job.path)
    object.__setattr__(twin, "written", job.as_written)
    return twin


def masters(job: Job, names: Collection[str], device: torch.device | str) -> dict[str, Tensor] | None:
    """Return the master weights of some parameters, by name.

    None without mixed precision: the optimizer then updates the compute weights themselves.

    Arguments:
        job: the compute copy.
        names: names of the parameters.
        device: device of the returned weights.
    """
    if job.own is None:
        return None
    held = dict(job.own.model.named_parameters())
    for name in names:
        fill(held[name])
    return {name: held[name].detach().to(device) for name in names}


def own_buffers(job: Job) -> dict[str, Tensor]:
    """Return the buffers that the compute copy casts, by name, with the job's own values.

    Tied buffers are returned under all their names. Empty without mixed precision.

    Arguments:
        job: the compute copy.
    """
    if job.own is None:
        return {}
    own = dict(job.own.model.named_buffers(remove_duplicate=False))
    cast = job.model.named_buffers(remove_duplicate=False)
    return {name: own[name].detach() for name, b in cast if name in own and own[name].dtype != b.dtype}


def own_type(model: nn.Module) -> torch.dtype:
    """Return the most frequent floating-point type of a model, by element count."""
    counts: dict[torch.dtype, int] = {}
    for p in model.parameters():
        if p.is_floating_point():
            counts[p.dtype] = counts.get(p.dtype, 0) + p.numel()
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)


def sums_in(leaf: Tensor, dtype: torch.dtype) -> Any:
    """Return the leaf tensor, with gradient accumulation in the given type."""
    if leaf.dtype != dtype:
        leaf.grad_dtype = dtype
    return leaf


def sums_of(parameter: Tensor) -> torch.dtype:
    """Return the gradient accumulation type of a parameter."""
    found: torch.dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return found


def _kept(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            yield from (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _cast(tensor: Tensor, dtype: torch.dtype, stays: bool) -> Tensor:
    if is_placeholder(tensor):
        return placeholder(tensor, None if stays or not tensor.is_floating_point() else dtype)
    if stays or not tensor.is_floating_point():
        return tensor.clone()
    return tensor.to(dtype)


def widened(loss: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """Wrap a loss or a metric so that the model's output is cast to the given type."""

    def of(thing: Any) -> Any:
        return thing.to(dtype) if isinstance(thing, Tensor) and thing.is_floating_point() else thing

    def wide(output: Any, *args: Any, **kwargs: Any) -> Tensor:
        return loss(tree_map(of, output), *args, **kwargs)

    return wraps(loss)(wide) if hasattr(loss, "__name__") else wide

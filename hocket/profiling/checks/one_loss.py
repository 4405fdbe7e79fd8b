"""Loss of a single sample, to compare two jobs.

Rules of this file: the job is not changed; a copy of its modules runs. Every run is short: it ends, without a result,
after a fixed amount of computation, which is counted and not timed, so that the result is the same in every process.
"""

import copy
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from hocket.profiling.data.seeding import own_draws, sample_seed, seed_all
from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import loss_weight
from hocket.profiling.measure.quiet_warnings import unwarned

_MOST_FLOPS = 10e9  # about half a second on one core
_MOST_PARAMETERS = 200e6
_TOLERANCE = 1e-3
_EPSILONS = 16  # rounding steps of the model's type, if they are longer


class _TooLongError(Exception):
    pass


class _FlopsLimit:
    """Forward hook that counts the multiplications by weights, and ends the run when there are too many."""

    def __init__(self) -> None:
        self._flops = 0.0

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor):
            weights = [p for p in module.parameters(recurse=False) if p.dim() > 1]
            self._flops += sum(2.0 * p.numel() * first.numel() / p.shape[0] for p in weights if p.numel())
        if self._flops > _MOST_FLOPS:
            raise _TooLongError


def one_loss(job: Job) -> list[float] | None:
    """Compute the loss of the job's first sample, in evaluation mode.

    The loss is multiplied by the loss weight of the sample, so that it depends on both. Dropout is off, because its
    random numbers differ between kinds of machines.

    Returns:
        The loss and its relative tolerance. None if the model is large (see `_MOST_FLOPS` and `_MOST_PARAMETERS`),
        compiled, or not on the CPU, or if it cannot run on one sample in evaluation mode.
    """
    if sum(p.numel() for p in job.model.parameters()) > _MOST_PARAMETERS:
        return None
    tensors = [*job.model.parameters(), *job.model.buffers()]
    compiled = any(type(module).__name__ == "OptimizedModule" for module in job.model.modules())
    if compiled or any(type(t.device) is torch.device and t.device.type != "cpu" for t in tensors):
        return None
    epsilons = [torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()]
    try:
        index = job.indices_at(0, 1)[0]
        memo: dict[int, Any] = {id(p): p for p in job.model.parameters()}
        model, loss = copy.deepcopy((job.model, job.loss), memo)
        twin = replace(job, model=model.eval(), loss=loss)
        bound, batch = _FlopsLimit(), twin.batch([index], [0])
        for module in model.modules():
            module.register_forward_hook(bound)
        with own_draws(), unwarned(""), torch.no_grad():
            seed_all(sample_seed(job.seed, 0))
            value = float(twin.loss_of(batch)) * loss_weight(job, batch, 1)
    except Exception:  # an error of the job is told where it is trained
        return None
    return [value, max(_TOLERANCE, _EPSILONS * max(epsilons, default=0.0))] if isfinite(value) else None

"""Helpers for the tests of capture: run a model as stages, and compare.

Stages have detached boundaries.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.job.job import Job


def cuts(layers: int, stages: int) -> list[list[int]]:
    """Consecutive layers in `stages` groups of nearly equal length."""
    ends = [round(layers * k / stages) for k in range(stages + 1)]
    return [list(range(a, b)) for a, b in pairwise(ends)]


def run_stages(
    captured: Captured,
    stages: Sequence[Stage],
    batch: dict[str, Tensor],
    seed_of: Callable[[int], int] | None = None,
    recompute: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Run stages with detached boundaries; return the loss and the summed gradients."""
    made: dict[str, Tensor] = {captured.batch_names[k]: v for k, v in batch.items() if k in captured.batch_names}
    taken, outs = [], []
    for stage in stages:
        given = {}
        for name in stage.inputs:
            wants = name in captured.tensor and captured.tensor[name].gradient
            given[name] = made[name].detach().contiguous().requires_grad_(wants)
        if recompute:
            with torch.no_grad():
                made.update(stage.run(given, seed_of))
            out = stage.run(given, seed_of, recomputing=True)
        else:
            out = stage.run(given, seed_of)
            made.update(out)
        taken.append(given)
        outs.append(out)
    loss = made[captured.loss_tensor]
    grads: dict[str, Tensor] = {captured.loss_tensor: torch.ones_like(loss)}
    for given, out in zip(reversed(taken), reversed(outs), strict=True):
        ends = [name for name in out if name in grads and out[name].requires_grad]
        torch.autograd.backward([out[n] for n in ends], [grads[n] for n in ends])
        for name, tensor in given.items():
            if tensor.grad is not None:
                grads[name] = grads[name] + tensor.grad if name in grads else tensor.grad
    weights: dict[str, Tensor] = {}
    for stage in stages:
        for name, p in stage.parameters().items():
            if p.grad is not None:
                weights[name] = weights[name] + p.grad if name in weights else p.grad
    return loss.detach(), weights


def plain(job: Job, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss and the gradients of the plain model."""
    job.model.zero_grad()
    args, kwargs, loss_args, loss_kwargs = job.split({k: v.clone() for k, v in batch.items()})
    out = job.model(*args, **kwargs)
    if job.loss is not None:
        loss = job.loss(out, *loss_args, **loss_kwargs)
    else:
        loss = out["loss"] if isinstance(out, dict) else out.loss
    loss.backward()
    grads = {n: p.grad.clone() for n, p in job.model.named_parameters() if p.grad is not None}
    job.model.zero_grad()
    return loss.detach(), grads


def stages_of(captured: Captured, count: int) -> list[Stage]:
    """`count` stages of a captured model, or as many as it has layers."""
    return [Stage(captured, part) for part in cuts(len(captured.layers), min(count, len(captured.layers)))]

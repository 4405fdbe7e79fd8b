"""Elementwise: whether an optimizer treats every number of a weight alone, so that devices may each step a part of it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hocket.features import Feature, check_together
from hocket.profile.job import Job

_SAME = 1e-9

Cut = Callable[[Tensor], Sequence[Tensor]]
"""The parts of a tensor."""


def check_optimizer(job: Job, shapes: Sequence[tuple[int, ...]], cut: Cut, way: Feature) -> None:
    """Try on small weights of these shapes whether steps of the parts of a weight are the parts of its step.

    Arguments:
        way: what of a plan divides weights.

    Raises:
        RefusedError: they are not.
    """
    draw = torch.Generator().manual_seed(0)

    def drawn() -> list[Tensor]:
        return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]

    whole = [nn.Parameter(tensor) for tensor in drawn()]
    parts = [[nn.Parameter(part.detach().clone()) for part in cut(p.detach())] for p in whole]
    optimizers = [job.optimizer(whole), *(job.optimizer(list(own)) for own in zip(*parts, strict=True))]
    for _ in range(2):  # the second step sees state
        for p, own, gradient in zip(whole, parts, drawn(), strict=True):
            p.grad = gradient.clone()
            for part, piece in zip(own, cut(gradient), strict=True):
                part.grad = piece.clone()
        for optimizer in optimizers:
            optimizer.step()
    for p, own in zip(whole, parts, strict=True):
        expected = torch.cat([part.flatten() for part in cut(p.detach())])
        if not torch.allclose(torch.cat([part.detach().flatten() for part in own]), expected, rtol=_SAME, atol=_SAME):
            check_together("Job.optimizer", Feature.WHOLE_STEPS, way, found=type(optimizers[0]).__name__)

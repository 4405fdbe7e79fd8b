"""Clipping by the global norm: what `torch.nn.utils.clip_grad_norm_` does, in the two halves between which devices talk."""

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = 1e-6  # as torch has it, so that gradients of zero are not divided by zero


def squares_of(gradients: Sequence[Tensor]) -> Tensor:
    """The squares of all their numbers, summed up: a scalar in double precision, so that its sums forget nothing.

    Arguments:
        gradients: at least one, on one device.
    """
    with torch.no_grad():
        return torch.stack(torch._foreach_norm(list(gradients))).double().square().sum()  # type: ignore[no-any-return]


def scale_of(squares: Tensor, most: float) -> Tensor:
    """By what gradients are multiplied whose squares sum up to this: at most 1."""
    return (most / (squares.sqrt() + _TINY)).clamp(max=1.0)


def scale_down(gradients: Sequence[Tensor], squares: Tensor, most: float) -> None:
    """Multiply gradients in place, so that the norm is at most `most`."""
    factor = scale_of(squares, most)
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor)

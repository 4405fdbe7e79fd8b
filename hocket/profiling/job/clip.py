"""Gradient clipping by global norm, in two halves.

The result is the result of `torch.nn.utils.clip_grad_norm_`. Devices sum the squared norms between the two halves.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = 1e-6  # the value in torch; prevents a division by zero for zero gradients


def squares_of(gradients: Sequence[Tensor]) -> Tensor:
    """Compute the squared norm of gradients, a scalar in double precision.

    Double precision keeps the sums over devices exact enough.

    Arguments:
        gradients: at least one tensor, all on one device.
    """
    with torch.no_grad():
        return torch.stack(torch._foreach_norm(list(gradients))).double().square().sum()  # type: ignore[no-any-return]


def scale_of(squares: Tensor, most: float) -> Tensor:
    """Compute the clipping factor of the gradients, at most 1.

    Arguments:
        squares: squared global norm.
        most: maximum norm.
    """
    return (most / (squares.sqrt() + _TINY)).clamp(max=1.0)


def scale_down(gradients: Sequence[Tensor], squares: Tensor, most: float) -> None:
    """Multiply gradients in place, so that the norm is at most `most`."""
    factor = scale_of(squares, most)
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor)

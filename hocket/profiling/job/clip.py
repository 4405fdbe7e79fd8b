"""Gradient clipping by a norm: settings of a job, and clipping in two halves.

Rules of this file: torch is imported only when gradients are clipped.

The result is the result of `torch.nn.utils.clip_grad_norm_`. Devices sum the squared norms between the two halves.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from hocket.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

CLIPPED_OVER = ("model", "stage")
"""Values of `Job.clip_grad_norm_over`."""
_TINY = 1e-6  # the value in torch; prevents a division by zero for zero gradients


class Clips(Protocol):
    """Protocol of a job: the attributes that determine its clipping."""

    @property
    def clip_grad_norm(self) -> float | None:
        """Maximum norm of the gradients; None without clipping."""

    @property
    def clip_grad_norm_over(self) -> str:
        """One of `CLIPPED_OVER`."""


def check_clip_over(over: str, norm: float | None) -> None:
    """Validate `Job.clip_grad_norm_over`.

    Arguments:
        norm: the job's `clip_grad_norm`.

    Raises:
        InputError: an unknown value, or "stage" without a norm.
    """
    if over not in CLIPPED_OVER:
        raise InputError("Job.clip_grad_norm_over", repr(over), " or ".join(map(repr, CLIPPED_OVER)))
    if over != "model" and norm is None:
        hint = "Write for example: clip_grad_norm=1.0."
        raise InputError("Job.clip_grad_norm_over", f"{over!r} without a norm", "clip_grad_norm as well", hint)


def norm_of_model(job: Clips) -> float | None:
    """Maximum norm of the gradients of the whole model; None if they are not clipped by it."""
    return job.clip_grad_norm if job.clip_grad_norm_over == "model" else None


def norm_of_stages(job: Clips) -> float | None:
    """Maximum norm of the gradients of each stage; None if they are not clipped by it."""
    return job.clip_grad_norm if job.clip_grad_norm_over == "stage" else None


def squares_of(gradients: "Sequence[Tensor]") -> "Tensor":
    """Compute the squared norm of gradients, a scalar in double precision.

    Double precision keeps the sums over devices exact enough.

    Arguments:
        gradients: at least one tensor, all on one device.
    """
    import torch

    with torch.no_grad():
        return torch.stack(torch._foreach_norm(list(gradients))).double().square().sum()  # type: ignore[no-any-return]


def scale_of(squares: "Tensor", most: float) -> "Tensor":
    """Compute the clipping factor of the gradients, at most 1.

    Arguments:
        squares: squared global norm.
        most: maximum norm.
    """
    return (most / (squares.sqrt() + _TINY)).clamp(max=1.0)


def scale_down(gradients: "Sequence[Tensor]", squares: "Tensor", most: float) -> None:
    """Multiply gradients in place, so that the norm is at most `most`."""
    import torch

    factor = scale_of(squares, most)
    with torch.no_grad():
        for gradient in gradients:
            gradient.mul_(factor)

"""Sequence parallelism: slices of a tensor along its positions, one for each rank.

Between a row-parallel layer and the next column-parallel layers, each rank works on its slice of the positions. A
reduce-scatter after the row-parallel layer and an all-gather before the column-parallel layers replace the all-reduce.
Rules of this file: each conversion is one operation for autograd, and its backward is the inverse conversion. The
gathered input of column-parallel layers is not saved: their backward gathers it again.
Source: Korthikanti et al. 2022, section 4.2.2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.profiling.tensor_parallel.group import TensorParallelGroup


@dataclass(frozen=True)
class SequenceSlice:
    """Division of one dimension over the ranks of a group, as seen by one rank."""

    dim: int
    width: int
    rank: int
    members: TensorParallelGroup

    def slice_of(self, whole: Tensor) -> Tensor:
        """Return this rank's slice of a whole tensor, as a new tensor."""
        size = whole.shape[self.dim] // self.width
        return whole.narrow(self.dim, self.rank * size, size).clone(memory_format=torch.contiguous_format)

    def gathered(self, own: Tensor) -> Tensor:
        """All-gather the slices of all ranks into the whole tensor."""
        found = self.members.gathered(own.detach().contiguous(), self.width)
        return found.movedim(0, self.dim).flatten(self.dim, self.dim + 1)

    def scattered(self, part: Tensor) -> Tensor:
        """Reduce-scatter: this rank's slice of the sum of every rank's tensor."""
        shape = (*part.shape[: self.dim], self.width, -1, *part.shape[self.dim + 1 :])
        return self.members.scattered(part.detach().reshape(shape).movedim(self.dim, 0).contiguous())


class _Way(torch.autograd.Function):
    """Conversion between slice and whole tensor: `there` forward, `back` backward."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.back = back
        return there(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.back(gradients[0]), None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, bias: Tensor | None, along: SequenceSlice) -> Tensor:
        ctx.along = along
        own = along.scattered(part)
        return own if bias is None else own.add_(bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        whole = ctx.along.gathered(gradients[0])
        of_bias = whole.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return whole, of_bias, None


class RegatheredInput:
    """Input of column-parallel layers that is all-gathered again for their backward.

    Arguments:
        readers: number of layers that read the input. The first backward gathers it, the last one releases it.
    """

    def __init__(self, along: SequenceSlice, readers: int) -> None:
        self._along, self._readers, self._left = along, readers, readers
        self._whole: Tensor | None = None

    def of(self, own: Tensor) -> Tensor:
        """Return the whole tensor, gathered from this rank's slice if necessary."""
        found = self._along.gathered(own) if self._whole is None else self._whole
        self._left -= 1
        self._whole = found if self._left else None
        self._left = self._left or self._readers
        return found


class _Product(torch.autograd.Function):
    """`functional.linear` of a gathered input; autograd saves only this rank's slice."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, own: Tensor, weight: Tensor, again: RegatheredInput) -> Tensor:
        kind = whole.device.type
        ctx.again, ctx.autocast = again, (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        ctx.save_for_backward(own, weight)
        return torch.nn.functional.linear(whole, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (own, weight) = gradients, ctx.saved_tensors
        kind, dtype, enabled = ctx.autocast
        with torch.autocast(kind, dtype, enabled=enabled):
            of_whole = gradient @ weight if ctx.needs_input_grad[0] else None
            of_weight = None
            if ctx.needs_input_grad[2]:
                whole = ctx.again.of(own)
                of_weight = gradient.flatten(0, -2).t() @ whole.flatten(0, -2)
        return of_whole, None, of_weight, None


scatter: Callable[[Tensor, Tensor | None, SequenceSlice], Tensor] = _Scatter.apply  # type: ignore[assignment]
"""Reduce-scatter a row-parallel layer's partial products, and add the bias.

Each rank gets its slice of the sum. The gradient of the bias is summed over the whole sequence, on every rank.
"""


def product(whole: Tensor, own: Tensor, weight: Tensor, again: RegatheredInput) -> Tensor:
    """Multiply (..., features in) by the transpose of (features out, features in).

    Arguments:
        whole: gathered input.
        own: this rank's slice of the input. Autograd saves the slice in place of the whole input.
        again: gathers the input again in the backward.
    """
    found: Tensor = _Product.apply(whole, own.detach(), weight, again)  # type: ignore[no-untyped-call]
    return found


def gather(own: Tensor, along: SequenceSlice) -> Tensor:
    """All-gather slices into the whole tensor before column-parallel layers.

    Each rank has only the gradient through its own output features, so the backward is a reduce-scatter.
    """
    found: Tensor = _Way.apply(own, along.gathered, along.scattered)  # type: ignore[no-untyped-call]
    return found


def enter(whole: Tensor, along: SequenceSlice) -> Tensor:
    """Take this rank's slice of a whole tensor, as one operation for tracing."""
    return _as_one(enter, whole, along, along.slice_of, along.gathered)


def leave(own: Tensor, along: SequenceSlice) -> Tensor:
    """All-gather slices into the whole tensor, as one operation for tracing.

    All ranks have the whole gradient, so the backward takes this rank's slice of it.
    """
    return _as_one(leave, own, along, along.gathered, along.slice_of)


def _as_one(
    function: Callable[..., Tensor],
    tensor: Tensor,
    along: SequenceSlice,
    there: Callable[[Tensor], Tensor],
    back: Callable[[Tensor], Tensor],
) -> Tensor:
    if torch.overrides.has_torch_function((tensor,)):
        found: Tensor = torch.overrides.handle_torch_function(function, (tensor,), tensor, along)
    else:
        found = _Way.apply(tensor, there, back)  # type: ignore[no-untyped-call]
    return found

"""Collectives that the devices of a tensor-parallel group offer.

Rules of this file: every rank calls the same collectives in the same order, with tensors of the same shapes. A tensor
with one entry for each rank has them in its first dimension, in rank order.
"""

from typing import Protocol

import torch
from torch import Tensor


class TensorParallelGroup(Protocol):
    """A tensor-parallel group, as seen by one of its ranks. Results are new tensors."""

    def total(self, tensor: Tensor) -> Tensor:
        """All-reduce: the sum of every rank's tensor."""
        ...

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """All-gather of every rank's tensor: (...) to (width, ...)."""
        ...

    def scattered(self, tensor: Tensor) -> Tensor:
        """Reduce-scatter: sum every rank's entry for this rank, (width, ...) to (...)."""
        ...


class SingleRank:
    """A group for one rank without communication.

    It is enough to capture a divided model: shapes are right, values are not.
    """

    def total(self, tensor: Tensor) -> Tensor:
        """Return a copy, the sum over one rank."""
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """Return `width` copies of the tensor, shape (width, ...)."""
        return tensor.detach().expand(width, *tensor.shape).contiguous()

    def scattered(self, tensor: Tensor) -> Tensor:
        """Return a copy of the first entry, shape (...)."""
        return tensor.detach()[0].clone(memory_format=torch.contiguous_format)

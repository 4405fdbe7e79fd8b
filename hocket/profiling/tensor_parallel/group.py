"""Members: what the devices of a tensor-parallel group do together.

Rules of this file: every member calls the same, for tensors of the same shapes, in the same order. What is one per member
stands in a first dimension of as many entries, by rank.
"""

from typing import Protocol

import torch
from torch import Tensor


class TensorParallelGroup(Protocol):
    """A tensor-parallel group, as one of its members sees it; results are new tensors."""

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of every member's tensor."""
        ...

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """Every member's tensor: (...) to (width, ...)."""
        ...

    def scattered(self, tensor: Tensor) -> Tensor:
        """The sum of what every member has for this one: (width, ...) to (...)."""
        ...


class SingleRank:
    """A rank without others, enough to capture a divided model: shapes are right, values are not."""

    def total(self, tensor: Tensor) -> Tensor:
        """See `TensorParallelGroup`."""
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """See `TensorParallelGroup`."""
        return tensor.detach().expand(width, *tensor.shape).contiguous()

    def scattered(self, tensor: Tensor) -> Tensor:
        """See `TensorParallelGroup`."""
        return tensor.detach()[0].clone(memory_format=torch.contiguous_format)

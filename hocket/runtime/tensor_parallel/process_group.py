"""Collectives of a tensor-parallel group, over gloo or NCCL.

Results are new tensors, and the calls block. Every process of the group makes the same calls in the same order, with
tensors of the same shapes.
"""

import ctypes

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.profiling.tensor_parallel.group import SingleRank


class ProcessMembers(SingleRank):
    """Tensor-parallel group over a process group, as seen by one of its ranks.

    Before `join` the group has only this rank, which is enough to capture a sharded model.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def join(self, group: dist.ProcessGroup) -> None:
        """Use this process group from now on."""
        self._group = group

    def total(self, tensor: Tensor) -> Tensor:
        """All-reduce a tensor over the process group; a copy if there is no group."""
        mine = super().total(tensor)
        if self._group is not None:
            self._group.allreduce([lent(mine)]).wait()
        return mine

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """All-gather a tensor over the process group: (...) to (width, ...)."""
        if self._group is None:
            return super().gathered(tensor, width)
        found = torch.empty((width, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        mine = tensor.detach().contiguous()
        self._group._allgather_base(lent(found), lent(mine)).wait()
        return found

    def scattered(self, tensor: Tensor) -> Tensor:
        """Reduce-scatter over the process group: (width, ...) to (...)."""
        if self._group is None:
            return super().scattered(tensor)
        rows = tensor.detach().contiguous()
        if tensor.device.type == "cuda":
            found = torch.empty_like(rows[0])
            self._group._reduce_scatter_base(found, rows, dist.ReduceScatterOptions()).wait()
            return found
        # Gloo's own reduce-scatter is an all-reduce. An all-to-all sends fewer bytes, and the sums are added in rank
        # order.
        parts = torch.empty_like(rows)
        self._group.alltoall_base(lent(parts), lent(rows), [], []).wait()
        return parts.sum(0)

    def __deepcopy__(self, memo: object) -> "ProcessMembers":
        return self  # a copied model keeps its group


def lent(tensor: Tensor) -> Tensor:
    """Return a one-dimensional alias of a contiguous tensor, for a blocking transfer.

    Gloo's thread releases its tensors a little after it reports completion. On a CPU the alias does not own the
    memory, so that Gloo does not keep the memory alive.
    """
    if tensor.device.type != "cpu" or not tensor.nbytes:
        return tensor.view(-1)
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)

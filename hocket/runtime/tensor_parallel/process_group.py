"""ProcessMembers: collectives of a tensor-parallel group, over gloo or NCCL.

Rules of this file: results are new tensors and waited for. Every process of the group calls the same for tensors of the same
shapes in the same order.
"""

import ctypes

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.profiling.tensor_parallel.group import SingleRank


class ProcessMembers(SingleRank):
    """Rank of a process group.

    Before `join` it is alone, which is enough to capture a divided model.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def join(self, group: dist.ProcessGroup) -> None:
        """Use these processes as the group from now on."""
        self._group = group

    def total(self, tensor: Tensor) -> Tensor:
        """See `Members`."""
        mine = super().total(tensor)
        if self._group is not None:
            self._group.allreduce([lent(mine)]).wait()
        return mine

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """See `Members`."""
        if self._group is None:
            return super().gathered(tensor, width)
        found = torch.empty((width, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        mine = tensor.detach().contiguous()
        self._group._allgather_base(lent(found), lent(mine)).wait()
        return found

    def scattered(self, tensor: Tensor) -> Tensor:
        """See `Members`."""
        if self._group is None:
            return super().scattered(tensor)
        rows = tensor.detach().contiguous()
        if tensor.device.type == "cuda":
            found = torch.empty_like(rows[0])
            self._group._reduce_scatter_base(found, rows, dist.ReduceScatterOptions()).wait()
            return found
        # Gloo's own reduce-scatter takes an all-reduce; this sends no more than it has to, and sums in the order of ranks.
        parts = torch.empty_like(rows)
        self._group.alltoall_base(lent(parts), lent(rows), [], []).wait()
        return parts.sum(0)

    def __deepcopy__(self, memo: object) -> "ProcessMembers":
        return self  # a copy of the model is of the same group


def lent(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory in one dimension, for a blocking transfer.

    gloo's thread lets go of its tensors a little after it has said that it is done, and memory would be held as long.
    """
    if tensor.device.type != "cpu" or not tensor.nbytes:
        return tensor.view(-1)
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)

"""Tensor parallelism over a device mesh, as DTensors.

A tensor-parallel split is applied to a model's parameters and modules, with collectives of a process group. Parameter
names do not change, so that a checkpoint by global names fits any tensor-parallel size. Sharded parameters are
DTensors with placements, or local tensors, which have less overhead.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from hocket.errors import InputError
from hocket.profiling.tensor_parallel.sharded_modules import cuts, divide, exchange
from hocket.profiling.tensor_parallel.split import Cut, TensorSplit
from hocket.runtime.tensor_parallel.process_group import ProcessMembers


def apply_split(model: nn.Module, split: TensorSplit, mesh: DeviceMesh, *, local: bool = False) -> None:
    """Cut a whole model, in place, to the tensor-parallel shard of this process.

    This is a collective call of the mesh.

    Arguments:
        mesh: one-dimensional mesh with as many devices as the split's tensor-parallel size.
        local: True for local tensors as parameters, as needed by an engine that keeps weight versions in flat memory.

    Raises:
        InputError: the mesh or the model does not fit the split.
    """
    if mesh.ndim != 1 or mesh.size() != split.width:
        raise InputError("mesh", f"shape {tuple(mesh.shape)}", f"one dimension of {split.width} devices")
    divide(model, split, mesh.get_local_rank(), ProcessMembers(mesh.get_group()))
    if not local:
        parts = dict(model.named_parameters())
        for name, tensor in as_dtensors(model, split, mesh).items():
            exchange(model, parts[name], nn.Parameter(tensor, requires_grad=tensor.requires_grad))


def as_dtensors(
    model: nn.Module, split: TensorSplit, mesh: DeviceMesh, tensors: Mapping[str, Tensor] | None = None
) -> dict[str, DTensor]:
    """Return the sharded parameters by name, as DTensors that share the local memory.

    Tied parameters appear under their first name.

    Arguments:
        tensors: local tensors to use in place of the model's parameters, such as gradients or optimizer state.
    """
    found: dict[str, DTensor] = {}
    given = dict(model.named_parameters()) if tensors is None else tensors
    for name, cut in cuts(model, split).items():
        if name not in given:
            continue
        part = given[name]
        if isinstance(part, DTensor):
            found[name] = part
            continue
        shape = list(part.shape)
        shape[cut.dim] = cut.words or shape[cut.dim] * split.width
        whole = torch.empty(shape, device="meta")
        placed = DTensor.from_local(
            part.detach(), mesh, [_placement(cut)], run_check=False, shape=whole.shape, stride=whole.stride()
        )
        placed.requires_grad_(part.requires_grad)
        found[name] = placed
    return found


def _placement(cut: Cut) -> Placement:
    # Strided: a device's shard has a part of each piece.
    return Shard(cut.dim) if cut.pieces == 1 else _StridedShard(cut.dim, split_factor=cut.pieces)

"""Names of a model's `state_dict()` for the tensors of a checkpoint.

A checkpoint has each tied tensor once, under one of its names, and has buffers that `state_dict()` leaves out. Only the
model itself knows both.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.runtime.checkpoint.entries import tensors_of
from hocket.runtime.checkpoint.export.stored_weights import StoredWeights

_ANOTHER = "The checkpoint may belong to another model."


@dataclass(frozen=True)
class WeightNames:
    """Names under which tensors of a checkpoint are exported.

    Attributes:
        stored: name of a tensor in the checkpoint, by the name under which it is exported. Tied tensors have several
            names with the same stored one.
    """

    stored: Mapping[str, str]

    @property
    def once(self) -> dict[str, str]:
        """Names with each stored tensor once, under the first of its names."""
        first: dict[str, str] = {}
        for name, stored in self.stored.items():
            first.setdefault(stored, name)
        return {name: stored for stored, name in first.items()}

    @property
    def ties(self) -> dict[str, str]:
        """First name of each tied tensor, by each of its other names."""
        first = {stored: name for name, stored in self.once.items()}
        return {name: first[stored] for name, stored in self.stored.items() if first[stored] != name}


def names_as_stored(weights: StoredWeights) -> WeightNames:
    """Return the names of the checkpoint itself, for an export without the model."""
    return WeightNames({name: name for name in weights})


def names_of_model(model: nn.Module, weights: StoredWeights) -> WeightNames:
    """Find the stored tensor for each name of `model.state_dict()`.

    Raises:
        InputError: a tensor is missing or has another shape or dtype, or the model has no such tensor.
    """
    place = str(weights.checkpoint.path)
    every, groups = tensors_of(model), defaultdict[int, list[str]](list)
    for name, tensor in every.items():
        groups[id(tensor)].append(name)
    held, stored = set(weights), dict[str, str]()
    if unknown := sorted(held - every.keys()):
        raise InputError(place, f"a tensor {unknown[0]}", "tensors that the job's model has", _ANOTHER)
    for name in (name for name in model.state_dict() if name in every):
        found = next((one for one in groups[id(every[name])] if one in held), None)
        if found is None:
            raise InputError(place, f"no tensor {name}", "every parameter and buffer of the job's model", _ANOTHER)
        _check(every[name], found, weights)
        stored[name] = found
    return WeightNames(stored)


def load_into(model: nn.Module, names: WeightNames, weights: StoredWeights) -> None:
    """Copy the tensors of a checkpoint into a model, one at a time.

    Raises:
        InputError: the model is on the meta device, which keeps no values.
    """
    every = tensors_of(model)
    if meta := next((name for name in names.stored if every[name].is_meta), None):
        step = "Build the model on the CPU, or use --format safetensors."
        raise InputError(f"Job.model: {meta}", "a tensor on the meta device", "a tensor with values", step)
    with torch.no_grad():
        for name, stored in names.once.items():
            every[name].copy_(weights[stored])


def _check(tensor: Tensor, stored: str, weights: StoredWeights) -> None:
    """Require the shape and dtype of the model's tensor.

    With mixed precision, checkpoints of earlier versions have buffers in bfloat16.
    """
    shape, dtype = weights.shape(stored), weights.dtype(stored)
    dtypes = {tensor.dtype}
    if tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
        dtypes.add(torch.bfloat16)
    if shape != tuple(tensor.shape) or dtype not in dtypes:
        expected = f"{tuple(tensor.shape)} of {tensor.dtype}, as in the job's model"
        raise InputError(f"{weights.checkpoint.path}: {stored}", f"{shape} of {dtype}", expected, _ANOTHER)

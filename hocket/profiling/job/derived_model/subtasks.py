"""Subtasks: a large linear layer or convolution split by rows into smaller ones.

The split allows weights that are too large for one device (Harmony, section 1).

Rules of this file:
- The job's own model does not change.
- In the compute copy, a large layer at path P consists of layers P.0, P.1, ...
- Each subtask holds some rows of the weight and the bias, and shares memory with the whole weight. A row is an output
  feature of a linear layer, or an output channel of a convolution.
- `parts_of` maps subtasks to the whole weight, so that a checkpoint stores the whole weight under its own name.

Exactness: no sum of the forward or of a weight gradient runs over rows, so these sums keep their terms and their order.
The gradient of the layer's input is a sum over all rows. It starts with the last subtask, and each earlier subtask adds
its own term. Each subtask passes its input to the next subtask, which fixes the order of this sum under every plan.
Results are therefore bitwise equal for every placement on stages and devices. They differ from the undivided layer by
rounding.
Source: Li et al., "Doing more with less", HotOS 2021: "decompose individual operations such as a matrix multiplication into subtasks".
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from hocket.profiling.job.job import Job

TOGETHER = 16
"""Rows that stay together, if there are enough rows.

Kernels process this many rows at once, and the remaining rows in another way, with other rounding.
"""


@dataclass(frozen=True)
class ParameterRows:
    """A range of rows of a parameter.

    Attributes:
        name: name of the whole parameter.
        first: index of the first row.
        shape: shape of the whole parameter.
    """

    name: str
    first: int
    shape: tuple[int, ...]


Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_CONVOLUTIONS: dict[type, Callable[..., Tensor]] = {
    nn.Conv1d: nn.functional.conv1d,
    nn.Conv2d: nn.functional.conv2d,
    nn.Conv3d: nn.functional.conv3d,
}


class Subtask(nn.Module):
    """Compute some output features or channels of a layer, and pass the input on."""

    def __init__(self, layer: Layer, rows: slice) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach()[rows], requires_grad=layer.weight.requires_grad)
        own = None if layer.bias is None else layer.bias.detach()[rows]
        trained = layer.bias is not None and layer.bias.requires_grad
        self.bias = None if own is None else nn.Parameter(own, requires_grad=trained)
        self._function: Callable[..., Tensor] = nn.functional.linear
        self._settings: dict[str, Any] = {}
        if not isinstance(layer, nn.Linear):
            self._function = _CONVOLUTIONS[type(layer)]
            self._settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation")}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map the input of the layer to this subtask's rows of the output, and return the input too."""
        return self._function(x, self.weight, self.bias, **self._settings), x.view_as(x)


class Decomposed(nn.Module):
    """Layer as a sequence of `count` subtasks."""

    def __init__(self, layer: Layer, count: int) -> None:
        super().__init__()
        self.ends = _ends(len(layer.weight), count)
        self.shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
        # Channels come before the positions, with or without a batch dimension.
        self._dim = -1 if isinstance(layer, nn.Linear) else 1 - layer.weight.dim()
        for k, (a, e) in enumerate(pairwise(self.ends)):
            self.add_module(str(k), Subtask(layer, slice(a, e)))

    def forward(self, x: Tensor) -> Tensor:
        """Map the input of the layer to its output."""
        made = []
        for subtask in self.children():
            own, x = subtask(x)
            made.append(own)
        return torch.cat(made, self._dim)


def decomposed(job: Job) -> Job:
    """Split the large linear layers and convolutions of a job into subtasks.

    Only layers of exactly the classes `nn.Linear` and `nn.Conv1d` to `nn.Conv3d`, without groups and with untied
    weights, are split; `whole_weights` names the others. Without such a layer, the result is the given job.
    """
    found = _large(job)
    if not found:
        return job
    kept = {id(t): t for t in (*job.model.parameters(), *job.model.buffers())}
    model = copy.deepcopy(job.model, kept)
    for path, count in found.items():
        layer = model.get_submodule(path)
        assert isinstance(layer, Layer)
        made = Decomposed(layer, count).train(layer.training)
        if not path:
            model = made
        else:
            around, _, name = path.rpartition(".")
            model.get_submodule(around)._modules[name] = made
    twin = replace(job, model=model)
    for name in ("path", "own", "makers"):
        object.__setattr__(twin, name, getattr(job, name))
    object.__setattr__(twin, "written", job.as_written)
    return twin


def _large(job: Job) -> dict[str, int]:
    """Number of subtasks of each layer above `subtask_bytes` that can be split, by path.

    Empty if there is no such layer, or if the job has no `subtask_bytes`.
    """
    if job.subtask_bytes is None:
        return {}
    users = _users(job.model)
    found = {}
    for path, module in job.model.named_modules():
        if _reason(module, users):
            continue
        size_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        count = min(ceil(size_bytes / job.subtask_bytes), len(module.get_parameter("weight")))
        if count > 1:
            found[path] = count
    return found


def whole_weights(job: Job) -> tuple[str, ...]:
    """Return a note for each weight above `subtask_bytes` that is not split, with the reason.

    Arguments:
        job: a job of `decomposed`, or its compute copy.
    """
    if job.subtask_bytes is None:
        return ()
    users = _users(job.model)
    found: dict[int, str] = {}
    for path, module in job.model.named_modules():
        for name, p in module.named_parameters(prefix=path, recurse=False):
            reason = "" if isinstance(module, Subtask) else _reason(module, users)
            if reason and p.numel() * p.element_size() > job.subtask_bytes:
                found.setdefault(id(p), f"{name} is larger than subtask_bytes and stays whole: {reason}")
    return tuple(found.values())


def _users(model: nn.Module) -> dict[int, int]:
    """Number of modules that have a parameter, by its id."""
    users: dict[int, int] = {}
    for module in model.modules():
        for p in module.parameters(recurse=False):
            users[id(p)] = users.get(id(p), 0) + 1
    return users


def _reason(module: nn.Module, users: Mapping[int, int]) -> str:
    """Reason that a module cannot be split; empty for one that can.

    Arguments:
        users: result of `_users`.
    """
    kind = type(module)
    if kind is not nn.Linear and kind not in _CONVOLUTIONS:
        return f"{kind.__name__} is not split, only linear layers and convolutions are"
    if any(users[id(p)] > 1 for p in module.parameters()):
        return "several modules share it"
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and (module.groups > 1 or module.padding_mode != "zeros"):
        return "a convolution with groups or a padding mode is not split"
    return ""


def _ends(rows: int, count: int) -> list[int]:
    """Return row boundaries of the subtasks, starting with 0.

    Boundaries are as even as multiples of TOGETHER allow, if there are enough rows.
    """
    unit = TOGETHER if rows >= TOGETHER * count else 1
    units = ceil(rows / unit)
    return [min(rows, unit * round(units * k / count)) for k in range(count + 1)]


def parts_of(model: nn.Module) -> dict[str, ParameterRows]:
    """Map each subtask parameter's name to its rows of the whole parameter."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Decomposed):
            for (k, subtask), first in zip(module.named_children(), module.ends, strict=False):
                for name, _ in subtask.named_parameters():
                    whole = f"{path}.{name}".lstrip(".")
                    found[f"{path}.{k}.{name}".lstrip(".")] = ParameterRows(whole, first, module.shapes[name])
    return found

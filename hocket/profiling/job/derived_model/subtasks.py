"""Subtasks: a large linear layer split by rows into smaller linear layers.

The split allows weights that are too large for one device (Harmony, section 1).

Rules of this file:
- The job's own model does not change.
- In the compute copy, a large `nn.Linear` at path P consists of layers P.0, P.1, ...
- Each subtask holds some rows of the weight and the bias, and shares memory with the whole weight.
- `parts_of` maps subtasks to the whole weight, so that a checkpoint stores the whole weight under its own name.

Exactness: no sum of the forward or of a weight gradient runs over rows, so these sums keep their terms and their order.
The gradient of the layer's input is a sum over all rows. It starts with the last subtask, and each earlier subtask adds
its own term. Each subtask passes its input to the next subtask, which fixes the order of this sum under every plan.
Results are therefore bitwise equal for every placement on stages and devices. They differ from the undivided layer by
rounding.
Source: Li et al., "Doing more with less", HotOS 2021: "decompose individual operations such as a matrix multiplication into subtasks".
"""

import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

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


class Subtask(nn.Module):
    """Compute some output features of a linear layer, and pass the input on."""

    def __init__(self, linear: nn.Linear, rows: slice) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach()[rows], requires_grad=linear.weight.requires_grad)
        own = None if linear.bias is None else linear.bias.detach()[rows]
        trained = linear.bias is not None and linear.bias.requires_grad
        self.bias = None if own is None else nn.Parameter(own, requires_grad=trained)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (..., in) to this subtask's output features, and return the input too."""
        return nn.functional.linear(x, self.weight, self.bias), x.view_as(x)


class Decomposed(nn.Module):
    """Linear layer as a sequence of `count` subtasks."""

    def __init__(self, linear: nn.Linear, count: int) -> None:
        super().__init__()
        self.ends = _ends(linear.out_features, count)
        self.shapes = {name: tuple(p.shape) for name, p in linear.named_parameters()}
        for k, (a, e) in enumerate(pairwise(self.ends)):
            self.add_module(str(k), Subtask(linear, slice(a, e)))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        made = []
        for subtask in self.children():
            own, x = subtask(x)
            made.append(own)
        return torch.cat(made, -1)


def decomposed(job: Job) -> Job:
    """Split the large linear layers of a job into subtasks.

    Only layers of exactly the class `nn.Linear` with untied weights are split. Without such a layer, the result is the
    given job.
    """
    found = _large(job)
    if not found:
        return job
    kept = {id(t): t for t in (*job.model.parameters(), *job.model.buffers())}
    model = copy.deepcopy(job.model, kept)
    for path, count in found.items():
        linear = model.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        made = Decomposed(linear, count).train(linear.training)
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
    """Number of subtasks of each linear layer above `subtask_bytes`, by path.

    Layers with tied weights are left out. Empty if there is no such layer, or if the job has no `subtask_bytes`.
    """
    if job.subtask_bytes is None:
        return {}
    users: dict[int, int] = {}
    for module in job.model.modules():
        for p in module.parameters(recurse=False):
            users[id(p)] = users.get(id(p), 0) + 1
    found = {}
    for path, module in job.model.named_modules():
        if type(module) is not nn.Linear or any(users[id(p)] > 1 for p in module.parameters()):
            continue
        size_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        count = min(ceil(size_bytes / job.subtask_bytes), module.out_features)
        if count > 1:
            found[path] = count
    return found


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

"""Subtasks: a linear layer whose weights are too large for a device, as several that have some of its rows each (Harmony, section 1).

Rules of this file: the job's own model is left as it was; compute sees another, in which a large `nn.Linear` at path P is made of
layers P.0, P.1, ... with rows of the weight and the bias. They share memory with the whole, and its names are known again
(`parts_of`), so that a checkpoint has the whole weight under its name.

What is exact: no sum of the forward and none of a weight's gradient goes over rows, so each has the terms and the order that it had.
The gradient of the layer's input is a sum over all rows: here it is that of the last part, to which the one before adds its own, and
so on. Each part hands its input on to the next one, so that the order of that sum is the model's own and no plan can change it:
however parts are spread over stages and devices, results are the same to the bit. Beside the undivided layer they differ by rounding.
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
"""Rows that no cut divides where there are enough: kernels take so many at once, and what is left over in another way, with other rounding."""


@dataclass(frozen=True)
class ParameterRows:
    """Some rows of a parameter.

    Attributes:
        name: of the whole parameter. first: row. shape: of the whole.
    """

    name: str
    first: int
    shape: tuple[int, ...]


class Subtask(nn.Module):
    """Some features of a linear layer, and its input for the next subtask."""

    def __init__(self, linear: nn.Linear, rows: slice) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach()[rows], requires_grad=linear.weight.requires_grad)
        own = None if linear.bias is None else linear.bias.detach()[rows]
        trained = linear.bias is not None and linear.bias.requires_grad
        self.bias = None if own is None else nn.Parameter(own, requires_grad=trained)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., in) to (..., own features) and the input itself."""
        return nn.functional.linear(x, self.weight, self.bias), x.view_as(x)


class Decomposed(nn.Module):
    """A linear layer in subtasks, one behind the other."""

    def __init__(self, linear: nn.Linear, count: int) -> None:
        super().__init__()
        self.ends = _ends(linear.out_features, count)
        self.shapes = {name: tuple(p.shape) for name, p in linear.named_parameters()}
        for k, (a, e) in enumerate(pairwise(self.ends)):
            self.add_module(str(k), Subtask(linear, slice(a, e)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        made = []
        for subtask in self.children():
            own, x = subtask(x)
            made.append(own)
        return torch.cat(made, -1)


def decomposed(job: Job) -> Job:
    """The job with its large linear layers in subtasks; the job itself where it has none.

    Only layers that are `nn.Linear` itself and alone in having their weights are taken.
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
    """Paths of linear layers that are decomposed, and into how many."""
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
    """Where parts end, 0 first: as even as multiples of TOGETHER can be, if there are as many."""
    unit = TOGETHER if rows >= TOGETHER * count else 1
    units = ceil(rows / unit)
    return [min(rows, unit * round(units * k / count)) for k in range(count + 1)]


def parts_of(model: nn.Module) -> dict[str, ParameterRows]:
    """By the name of each parameter of a subtask, of what it is a part."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Decomposed):
            for (k, subtask), first in zip(module.named_children(), module.ends, strict=False):
                for name, _ in subtask.named_parameters():
                    whole = f"{path}.{name}".lstrip(".")
                    found[f"{path}.{k}.{name}".lstrip(".")] = ParameterRows(whole, first, module.shapes[name])
    return found

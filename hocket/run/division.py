"""Division: what one member of a tensor-parallel group trains: its part of a job, and the state of the whole made of parts.

Rules of this file: stages and schedules are not known here. A member captures and runs its divided model as if it were a
model of its own; names are those of the whole model, so that a checkpoint fits any width.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hocket.profile.capture import Captured
from hocket.profile.divided import cuts, divide, part_of, whole_of
from hocket.profile.job import Job
from hocket.profile.tensor_search import find_split
from hocket.profile.tensor_split import TensorSplit
from hocket.profile.traits import Column, Row, Sum
from hocket.run.elementwise import check_optimizer

State = Mapping[str, Mapping[str, Any]]
Gather = Callable[[Tensor], list[Tensor]]
"""A tensor of this member's as those of all members, by number."""

_SAMPLES = 2
_TRIED = 8  # features of one member in the weights on which an optimizer is tried


class Reduction:
    """The sum over a group's members, once they can talk; before that, while models are captured and measured, a copy.

    Attributes:
        forward, backward: how many all-reduces there were inside forwards and inside backwards; bytes: of all of them.
    """

    def __init__(self) -> None:
        self._total: Sum | None = None
        self.forward = self.backward = self.bytes = 0

    def bind(self, total: Sum) -> None:
        """From now on members call together: the same tensors in the same order."""
        self._total = total
        self.forward = self.backward = self.bytes = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        self.bytes += tensor.nbytes
        if torch._C._current_graph_task_id() >= 0:
            self.backward += 1
        else:
            self.forward += 1
        if self._total is None:
            return tensor.detach().clone(memory_format=torch.contiguous_format)
        return self._total(tensor)


class Division:
    """One member's part of a job.

    Attributes:
        split: of the whole model; member: number of this one in its group. job: what it trains.
        reduction: what the divided model sums with.
    """

    def __init__(self, whole: Job, split: TensorSplit, member: int) -> None:
        """Divide a job; the whole one is left as it was, and shares what is not divided.

        Raises:
            RefusedError: the job's optimizer does something else to a part of a weight.
        """
        width = split.width
        shapes = ((_TRIED * width, _TRIED), (_TRIED * width,))
        check_optimizer(whole, shapes, lambda tensor: tensor.chunk(width), "a plan with tensor: 1")
        self.split, self.member, self.reduction = split, member, Reduction()
        kept = {id(t): t for t in (*whole.model.parameters(), *whole.model.buffers())}
        model = copy.deepcopy(whole.model, kept)
        divide(model, split, member, self.reduction)
        self.job = replace(whole, model=model)
        self._cuts = cuts(model, split)

    def whole(self, state: State, gather: Gather) -> dict[str, dict[str, Any]]:
        """A state of parts as that of the whole, on the CPU where it was divided: a collective call of the members.

        Optimizer state that is shaped as its weight is divided as the weight is.
        """

        def gathered(name: str, part: Tensor) -> Tensor:
            return whole_of([p.cpu() for p in gather(part.detach())], self._cuts[name])

        weights = dict(state["weights"])
        optimizer = {name: dict(entries) for name, entries in state["optimizer"].items()}
        for name in self._divided(state["weights"]):
            for key, value in self._alike(optimizer.get(name, {}), weights[name]):
                optimizer[name][key] = gathered(name, value)
            weights[name] = gathered(name, weights[name])
        return {"weights": weights, "buffers": dict(state["buffers"]), "optimizer": optimizer}

    def part(self, state: State) -> dict[str, dict[str, Any]]:
        """Of a whole state what is this member's."""

        def own(name: str, whole: Tensor) -> Tensor:
            return part_of(whole, self._cuts[name], self.split.width, self.member)

        weights = dict(state["weights"])
        optimizer = {name: dict(entries) for name, entries in state["optimizer"].items()}
        for name in self._divided(state["weights"]):
            for key, value in self._alike(optimizer.get(name, {}), weights[name]):
                optimizer[name][key] = own(name, value)
            weights[name] = own(name, weights[name])
        return {"weights": weights, "buffers": dict(state["buffers"]), "optimizer": optimizer}

    @property
    def divided(self) -> frozenset[str]:
        """Names of the parameters of which each member has a part; of all others it has the whole."""
        return frozenset(self._cuts)

    def _divided(self, weights: Mapping[str, Any]) -> list[str]:
        return [name for name in weights if name in self._cuts]

    def _alike(self, entries: Mapping[str, Any], weight: Tensor) -> list[tuple[str, Tensor]]:
        return [(k, v) for k, v in entries.items() if isinstance(v, Tensor) and v.shape == weight.shape]


def split_of(job: Job, width: int) -> TensorSplit:
    """How a job's model is divided.

    Raises:
        RefusedError: it cannot be; says which module and why.
    """
    args, kwargs, _, _ = job.split(job.batch(range(_SAMPLES)))
    return find_split(job.model, width, *args, **kwargs)


def divided_tensors(captured: Captured) -> frozenset[str]:
    """Of a divided model the tensors between layers that each member of a group has its own part of: what columns make, and
    what is made of that before rows meet it. Others, and their gradients, are the same on all members."""
    trace, own = captured.trace, set[int]()
    for node in trace.nodes:
        read = {*node.reads, *(before for before, _ in node.aliases)}
        module = captured.job.model.get_submodule(node.target) if isinstance(node.target, str) else nn.Identity()
        traits = [type(each) for each in module.modules()]
        if any(issubclass(each, Row) for each in traits):
            continue
        if any(issubclass(each, Column) for each in traits) or not own.isdisjoint(read):
            own.update(node.writes)
    return frozenset(tensor.name for tensor in captured.tensors if tensor.value in own)

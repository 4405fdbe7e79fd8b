"""Division: the part of a job that one tensor-parallel rank trains.

It also builds the state of the whole model from the parts.

Rules of this file: stages and schedules are not known here. A member captures and runs its divided model as if it were a
model of its own; names are those of the whole model, so that a checkpoint fits any width.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from hocket.profiling.capture.capture import Captured
from hocket.profiling.checks.elementwise_step import check_optimizer
from hocket.profiling.job.job import Job
from hocket.profiling.tensor_parallel.discovery.blocks import find_split
from hocket.profiling.tensor_parallel.discovery.sequence import with_slices
from hocket.profiling.tensor_parallel.discovery.vocabulary import with_vocabulary
from hocket.profiling.tensor_parallel.group import SingleRank, TensorParallelGroup
from hocket.profiling.tensor_parallel.module_rules import ColumnParallel, RowParallel
from hocket.profiling.tensor_parallel.sequence_parallel import enter, leave
from hocket.profiling.tensor_parallel.sharded_modules import cuts, divide, part_of, whole_of
from hocket.profiling.tensor_parallel.split import CollectiveCounts, Collectives, Cut, TensorSplit
from hocket.profiling.tensor_parallel.vocab_parallel import cross_entropy, gathered
from hocket.util.compatibility import Feature

State = Mapping[str, Mapping[str, Any]]
Gather = Callable[[Tensor], Iterable[Tensor]]
"""A tensor of this member's as those of all members, by number."""

_KINDS = tuple(field.name for field in fields(Collectives))
_SAMPLES = 2
_TRIED = 8  # features of one member in the weights on which an optimizer is tried


class DeferredGroup:
    """Group of a divided model.

    Before `bind`, while models are captured and measured, it consists of one rank.

    Attributes:
        bytes: of all tensors that were summed, and of all that were gathered or scattered (the whole of each), by kind.
    """

    def __init__(self) -> None:
        self._members: TensorParallelGroup = SingleRank()
        self._counts: Counter[tuple[str, bool]] = Counter()
        self.bytes: Counter[str] = Counter()

    def bind(self, members: TensorParallelGroup) -> None:
        """Use these ranks from now on."""
        self._members = members
        self.forget()

    def __deepcopy__(self, memo: object) -> "DeferredGroup":
        return self  # a copy of the model meets the same members

    def forget(self) -> None:
        """Count anew."""
        self._counts.clear()
        self.bytes.clear()

    @property
    def done(self) -> Collectives:
        """Number of collectives in forwards and in backwards."""
        ways = {kind: CollectiveCounts(self._counts[kind, False], self._counts[kind, True]) for kind in _KINDS}
        return Collectives(**ways)

    def total(self, tensor: Tensor) -> Tensor:
        """See `TensorParallelGroup`."""
        self._count("all_reduces", tensor.nbytes)
        return self._members.total(tensor)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """See `TensorParallelGroup`."""
        self._count("gathers", tensor.nbytes * width)
        return self._members.gathered(tensor, width)

    def scattered(self, tensor: Tensor) -> Tensor:
        """See `TensorParallelGroup`."""
        self._count("scatters", tensor.nbytes)
        return self._members.scattered(tensor)

    def _count(self, kind: str, size_bytes: int) -> None:
        self._counts[kind, torch._C._current_graph_task_id() >= 0] += 1
        self.bytes[kind] += size_bytes


class Division:
    """One rank's part of a job.

    Attributes:
        split: of the whole model; member: number of this one in its group. job: what it trains.
        members: with whom the divided model talks.
    """

    def __init__(self, whole: Job, split: TensorSplit, member: int) -> None:
        """Divide a job; the whole one is left as it was, and shares what is not divided.

        Raises:
            RefusedError: the job's optimizer does something else to a part of a weight.
        """
        width = split.width
        shapes = ((_TRIED * width, _TRIED), (_TRIED * width,))
        check_optimizer(whole, shapes, lambda tensor: tensor.chunk(width), Feature.TENSOR)
        self.split, self.member, self.members = split, member, DeferredGroup()
        kept = {id(t): t for t in (*whole.model.parameters(), *whole.model.buffers())}
        model = copy.deepcopy(whole.model, kept)
        divide(model, split, member, self.members)
        self.job = replace(whole, model=model)
        object.__setattr__(self.job, "written", whole.as_written)
        self._cuts = cuts(model, split)

    def whole(self, state: State, gather: Gather, keeps: bool = True) -> dict[str, dict[str, Any]]:
        """Whole state from the parts of the ranks.

        A collective call of the ranks, one tensor at a time.

        Optimizer state that is shaped as its weight is divided as the weight is.

        Arguments:
            keeps: whether what was divided is among it; otherwise this member only helps the others to it.
        """

        def together(name: str, part: Tensor) -> Tensor | None:
            parts = gather(_evened(part.detach(), self._cuts[name], self.split.width))
            return whole_of(list(parts), self._cuts[name]) if keeps else None

        found = self._turned(state, together)
        if not keeps:
            for name in self._divided(state["weights"]):
                del found["weights"][name]
                found["optimizer"].pop(name, None)
        return found

    def part(self, state: State) -> dict[str, dict[str, Any]]:
        """This rank's part of a whole state."""

        def own(name: str, whole: Tensor) -> Tensor:
            return part_of(whole, self._cuts[name], self.split.width, self.member)

        return self._turned(state, own)

    def _turned(self, state: State, turn: Callable[[str, Tensor], Tensor | None]) -> dict[str, dict[str, Any]]:
        """State with every divided tensor transformed, one tensor at a time.

        Each comes with the name of its weight.
        """
        weights = dict(state["weights"])
        optimizer = {name: dict(entries) for name, entries in state["optimizer"].items()}
        for name in self._divided(state["weights"]):
            for key, value in self._alike(optimizer.get(name, {}), weights[name]):
                optimizer[name][key] = turn(name, value)
            weights[name] = turn(name, weights[name])
        return {"weights": weights, "buffers": dict(state["buffers"]), "optimizer": optimizer}

    @property
    def divided(self) -> frozenset[str]:
        """Names of the divided parameters.

        Each rank has a part of these; of all others it has the whole.
        """
        return frozenset(self._cuts)

    def _divided(self, weights: Mapping[str, Any]) -> list[str]:
        return [name for name in weights if name in self._cuts]

    def _alike(self, entries: Mapping[str, Any], weight: Tensor) -> list[tuple[str, Tensor]]:
        return [(k, v) for k, v in entries.items() if isinstance(v, Tensor) and v.shape == weight.shape]


def _evened(part: Tensor, cut: Cut, width: int) -> Tensor:
    """A part of words, as long as the longest: what is gathered is of one size."""
    missing = -(-cut.words // width) - part.shape[cut.dim] if cut.words else 0
    if not missing:
        return part
    shape = (*part.shape[: cut.dim], missing, *part.shape[cut.dim + 1 :])
    return torch.cat([part, part.new_zeros(shape)], cut.dim)


def split_of(job: Job, width: int, sequence_parallel: bool = False) -> TensorSplit:
    """Split of a job's model; sequence-parallel if requested and proved.

    Raises:
        RefusedError: it cannot be; says which module and why.
    """
    batch = job.batch(range(_SAMPLES))
    args, kwargs, _, _ = job.split(batch)
    split = find_split(job.model, width, *args, **kwargs)
    split = with_slices(job.model, split, *args, **kwargs) if sequence_parallel else split
    return with_vocabulary(job.model, split, lambda: job.loss_of(batch))


def divided_tensors(captured: Captured) -> frozenset[str]:
    """Tensors between layers of which each rank has its own part.

    These are outputs of column-parallel layers and everything computed from them before a row-parallel layer or a
    cross-entropy, and sequence slices. All other tensors, and their gradients, are equal on all ranks.
    """
    trace, own = captured.trace, set[int]()
    for node in trace.nodes:
        read = {*node.reads, *(before for before, _ in node.aliases)}
        module = captured.job.model.get_submodule(node.target) if isinstance(node.target, str) else nn.Identity()
        parts = list(module.modules())
        if node.target in (leave, cross_entropy, gathered) or any(
            isinstance(each, RowParallel) and each._along is None for each in parts
        ):
            continue
        if node.target is enter or any(isinstance(each, ColumnParallel) for each in parts) or not own.isdisjoint(read):
            own.update(node.writes)
    return frozenset(tensor.name for tensor in captured.tensors if tensor.value in own)

"""Division: the shard of a job that one tensor-parallel rank trains.

It also builds the state of the whole model from the ranks' shards. A rank captures and runs its sharded model like any
other model, so this file does not depend on stages and schedules. Names are those of the whole model, so that a
checkpoint fits any tensor-parallel size.
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
"""All-gather: returns the tensors of all ranks, in rank order."""

_KINDS = tuple(field.name for field in fields(Collectives))
_SAMPLES = 2
_TRIED = 8  # rows per rank, and columns, of the weights on which an optimizer is tried


class DeferredGroup:
    """Tensor-parallel group of a sharded model; it counts collectives.

    Before `bind`, while models are captured and measured, it consists of one rank.

    Attributes:
        bytes: total bytes of the collectives' tensors, by kind ("all_reduces", "gathers", "scatters"); for gathers and
            scatters, bytes of the whole tensors.
    """

    def __init__(self) -> None:
        self._members: TensorParallelGroup = SingleRank()
        self._counts: Counter[tuple[str, bool]] = Counter()
        self.bytes: Counter[str] = Counter()

    def bind(self, members: TensorParallelGroup) -> None:
        """Use this group for collectives from now on, and reset the counts."""
        self._members = members
        self.forget()

    def __deepcopy__(self, memo: object) -> "DeferredGroup":
        return self  # a copied model keeps its group

    def forget(self) -> None:
        """Set the counts of collectives and bytes to zero."""
        self._counts.clear()
        self.bytes.clear()

    @property
    def done(self) -> Collectives:
        """Numbers of collectives in forwards and in backwards."""
        ways = {kind: CollectiveCounts(self._counts[kind, False], self._counts[kind, True]) for kind in _KINDS}
        return Collectives(**ways)

    def total(self, tensor: Tensor) -> Tensor:
        """All-reduce a tensor, and count the collective and its bytes."""
        self._count("all_reduces", tensor.nbytes)
        return self._members.total(tensor)

    def gathered(self, tensor: Tensor, width: int) -> Tensor:
        """All-gather a tensor, and count the collective and its bytes."""
        self._count("gathers", tensor.nbytes * width)
        return self._members.gathered(tensor, width)

    def scattered(self, tensor: Tensor) -> Tensor:
        """Reduce-scatter a tensor, and count the collective and its bytes."""
        self._count("scatters", tensor.nbytes)
        return self._members.scattered(tensor)

    def _count(self, kind: str, size_bytes: int) -> None:
        self._counts[kind, torch._C._current_graph_task_id() >= 0] += 1
        self.bytes[kind] += size_bytes


class Division:
    """One rank's tensor-parallel shard of a job.

    Attributes:
        split: tensor-parallel split of the whole model.
        member: this worker's tensor-parallel rank.
        job: job with the sharded model.
        members: tensor-parallel group that the sharded model uses.
    """

    def __init__(self, whole: Job, split: TensorSplit, member: int) -> None:
        """Cut the shard of one tensor-parallel rank from a job.

        The whole job is unchanged. The sharded model shares all tensors that are not divided with it.

        Arguments:
            member: tensor-parallel rank, from 0.

        Raises:
            RefusedError: the optimizer's step of a shard differs from that of the whole weight.
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
        """Gather the unsharded state from the ranks' shards, one tensor at a time.

        This is a collective call of the ranks. Optimizer state with the shape of its weight is divided like the
        weight.

        Arguments:
            state: {"weights": ..., "frozen": ..., "buffers": ..., "optimizer": ...} of this rank, each by global name.
            gather: all-gather between the ranks.
            keeps: False if this rank only contributes its shards. The result then has only tensors that are not
                divided.
        """

        def together(name: str, part: Tensor) -> Tensor | None:
            parts = gather(_evened(part.detach(), self._cuts[name], self.split.width))
            return whole_of(list(parts), self._cuts[name]) if keeps else None

        found = self._turned(state, together)
        if not keeps:
            for name in self._divided(state["weights"]):
                del found["weights"][name]
                found["optimizer"].pop(name, None)
            for name in self._divided(state.get("frozen", {})):
                del found["frozen"][name]
        return found

    def part(self, state: State) -> dict[str, dict[str, Any]]:
        """Cut this rank's shard out of an unsharded state, the inverse of `whole`."""

        def own(name: str, whole: Tensor) -> Tensor:
            return part_of(whole, self._cuts[name], self.split.width, self.member)

        return self._turned(state, own)

    def _turned(self, state: State, turn: Callable[[str, Tensor], Tensor | None]) -> dict[str, dict[str, Any]]:
        """Replace every divided tensor of a state, one at a time.

        Arguments:
            turn: called with the name of the weight and the tensor; returns the new tensor.
        """
        weights, frozen = dict(state["weights"]), dict(state.get("frozen", {}))
        optimizer = {name: dict(entries) for name, entries in state["optimizer"].items()}
        for name in self._divided(state["weights"]):
            for key, value in self._alike(optimizer.get(name, {}), weights[name]):
                optimizer[name][key] = turn(name, value)
            weights[name] = turn(name, weights[name])
        for name in self._divided(frozen):
            frozen[name] = turn(name, frozen[name])
        return {"weights": weights, "frozen": frozen, "buffers": dict(state["buffers"]), "optimizer": optimizer}

    @property
    def divided(self) -> frozenset[str]:
        """Names of the divided parameters; each rank has whole copies of all others."""
        return frozenset(self._cuts)

    def _divided(self, weights: Mapping[str, Any]) -> list[str]:
        return [name for name in weights if name in self._cuts]

    def _alike(self, entries: Mapping[str, Any], weight: Tensor) -> list[tuple[str, Tensor]]:
        return [(k, v) for k, v in entries.items() if isinstance(v, Tensor) and v.shape == weight.shape]


def _evened(part: Tensor, cut: Cut, width: int) -> Tensor:
    """Pad a vocabulary shard with zeros to the size of the largest shard, as all-gathers require.

    The largest shards, and shards of weights without a vocabulary dimension, are returned unchanged.

    Arguments:
        part: shard of a weight, or of its optimizer state.
        cut: division of the weight over the ranks.
        width: tensor-parallel size.
    """
    missing = -(-cut.words // width) - part.shape[cut.dim] if cut.words else 0
    if not missing:
        return part
    shape = (*part.shape[: cut.dim], missing, *part.shape[cut.dim + 1 :])
    return torch.cat([part, part.new_zeros(shape)], cut.dim)


def split_of(job: Job, width: int, sequence_parallel: bool = False) -> TensorSplit:
    """Find the tensor-parallel split of a job's model.

    With `sequence_parallel`, a block is sequence-parallel where that is proved to be equivalent.

    Raises:
        RefusedError: the model cannot be divided; the error names the module and the reason.
    """
    batch = job.batch(range(_SAMPLES))
    args, kwargs, _, _ = job.split(batch)
    split = find_split(job.model, width, *args, **kwargs)
    split = with_slices(job.model, split, *args, **kwargs) if sequence_parallel else split
    return with_vocabulary(job.model, split, lambda: job.loss_of(batch))


def divided_tensors(captured: Captured) -> frozenset[str]:
    """Find the tensors between layers that differ between ranks.

    These are outputs of column-parallel layers, tensors computed from them before the next row-parallel layer or
    cross-entropy, and slices of the sequence. All other tensors, and their gradients, are equal on all ranks.
    """
    trace, own = captured.graph.trace, set[int]()
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

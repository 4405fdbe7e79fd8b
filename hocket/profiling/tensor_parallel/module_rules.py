"""Tensor-parallel behaviour of modules: one class for each kind of division.

Rules of this file: a class of this file (a trait) is put in front of a module's own class, and the module keeps its
names and values. There is no hook and nothing bound to one instance, so that shallow copies and exchanged parameters
work. Parameters may be DTensors or local tensors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from hocket.profiling.tensor_parallel.dropout import MaskPart
from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.sequence_parallel import (
    RegatheredInput,
    SequenceSlice,
    enter,
    gather,
    leave,
    product,
    scatter,
)
from hocket.profiling.tensor_parallel.sharded_logits import as_part
from hocket.profiling.tensor_parallel.vocab_parallel import VocabularyRange


class _Spread(torch.autograd.Function):
    """Identity forward, all-reduce backward.

    One all-reduce sums the gradients of several tensors. This is f of figure 4.5 in Narayanan's dissertation.
    """

    @staticmethod
    def forward(ctx: Any, members: TensorParallelGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return views of the tensors."""
        ctx.members = members
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Sum the gradients: each rank has the gradient through its output features."""
        if len(gradients) == 1:
            return None, ctx.members.total(gradients[0])
        whole = ctx.members.total(torch.cat([g.flatten() for g in gradients]))
        parts = whole.split([g.numel() for g in gradients])
        return None, *(part.view(g.shape) for part, g in zip(parts, gradients, strict=True))


class _Total(torch.autograd.Function):
    """All-reduce forward, identity backward: g of Narayanan's figure 4.5."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, members: TensorParallelGroup) -> Tensor:
        """Sum the products: each rank has the product of its input features."""
        return members.total(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Pass on the gradient: the gradient of a sum is the gradient of each term."""
        return gradients[0], None


def _spread(tensors: Iterable[Tensor], members: TensorParallelGroup) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Spread.apply(members, *tensors)  # type: ignore[no-untyped-call]
    return found


def _total(x: Tensor, members: TensorParallelGroup) -> Tensor:
    found: Tensor = _Total.apply(x, members)  # type: ignore[no-untyped-call]
    return found


class Shared:
    """Common input of the column-parallel layers that read one tensor.

    The first of these layers takes the tensor, or all-gathers it from sequence slices. The others reuse it. One
    collective sums its gradients.

    Arguments:
        readers: number of layers that read the tensor; it is released after the last of them.

    Attributes:
        along: division along the sequence; None if every rank has the whole tensor.
    """

    def __init__(self, readers: int, members: TensorParallelGroup, along: SequenceSlice | None = None) -> None:
        self._readers, self._members, self.along = readers, members, along
        self._given: Tensor | None = None
        self._whole: Tensor | None = None
        self._again: RegatheredInput | None = None
        self._left = 0

    def among(self, readers: int) -> "Shared":
        """Create a shared input for another number of column-parallel layers."""
        return Shared(readers, self._members, self.along)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply (..., features in) by the transpose of (features out, features in)."""
        if x is not self._given or self._whole is None:
            self._given, self._left = x, self._readers
            self._whole = _spread([x], self._members)[0] if self.along is None else gather(x, self.along)
            self._again = RegatheredInput(self.along, self._readers) if self.along else None
        self._left -= 1
        whole, again = self._whole, self._again
        if self._left <= 0:
            self._given = self._whole = self._again = None
        return nn.functional.linear(whole, weight) if again is None else product(whole, x, weight, again)


def share_among(modules: Iterable[nn.Module]) -> None:
    """Let the column-parallel layers of one pipeline stage share their input.

    Layers that were copied into the stage then share it among themselves only. A vocabulary-parallel output layer
    among `modules` returns a plain tensor.

    Arguments:
        modules: modules that the stage calls, each as a step.
    """
    together: dict[Shared, list[ColumnParallel]] = {}
    for module in modules:
        if isinstance(module, Scoring):
            module._as_step = True
        for each in module.modules():
            if isinstance(each, ColumnParallel):
                together.setdefault(each._shared, []).append(each)
    for shared, columns in together.items():
        own = shared.among(len(columns))
        for column in columns:
            column._shared = own


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _matrix(module: Any) -> Tensor:
    weight = _local(module.weight)
    return weight if module._features_out == 0 else weight.t()


class ColumnParallel:
    """A column-parallel linear layer: each rank computes some of the output features."""

    _shared: Shared
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply: (..., features in) to (..., features out / width)."""
        y = self._shared.product(x, _matrix(self))
        return y if self.bias is None else y + _local(self.bias)


class Scoring(ColumnParallel):
    """A vocabulary-parallel output layer: logits of one rank's vocabulary entries.

    The result is marked as a part of the whole logits (`as_part`).

    Attributes of an instance:
        _as_step: the module is a step of a captured stage and returns a plain tensor.
    """

    _words: VocabularyRange
    _as_step = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute logits: (..., features in) to (..., vocabulary entries of this rank)."""
        found = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return found if self._as_step else as_part(found, self._words, found.dim() - 1)


class Lookup:
    """A vocabulary-parallel embedding: an all-reduce adds up the ranks' look-ups."""

    _words: VocabularyRange
    _parameters: dict[str, Any]

    def forward(self, input: Tensor) -> Tensor:
        """Look up token ids: (...) to (..., features)."""
        weight = self._parameters["weight"]
        at, known = self._words.sought(input)
        self._parameters["weight"] = _local(weight)
        try:
            found: Tensor = super().forward(at)  # type: ignore[misc]
        finally:
            self._parameters["weight"] = weight
        return _total(found.masked_fill(~known.unsqueeze(-1), 0.0), self._words.members)


class RowParallel:
    """A row-parallel linear layer: each rank reads some of the input features.

    The result is the sum over ranks, or with sequence parallelism this rank's slice of the sum.
    """

    _members: TensorParallelGroup
    _along: SequenceSlice | None
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Multiply and sum: (..., features in / width) to (..., features out)."""
        y, bias = nn.functional.linear(x, _matrix(self)), self.bias if self.bias is None else _local(self.bias)
        if self._along is not None:
            return scatter(y, bias, self._along)
        y = _total(y, self._members)
        return y if bias is None else y + bias


@dataclass(frozen=True)
class SizeClaims:
    """Shape that a module reads from its inputs in place of their real shape.

    An undivided module computes sizes from the shape of its input. On one rank it has fewer heads or features, so the
    input reports fewer features; with sequence parallelism, a slice of the sequence reports the whole length.

    Attributes:
        features: size of the last dimension of the inputs concerned; other inputs report their real shape.
        narrower: the reported last dimension is the real one divided by this number.
        along: division along the sequence, if the reported length is that of the whole sequence; None to report the
            real length.
    """

    features: int
    narrower: int = 1
    along: SequenceSlice | None = None

    def of(self, size: torch.Size) -> torch.Size:
        """Return the shape that an input reports to the module, from its real shape on this rank."""
        found = [*size[:-1], size[-1] // self.narrower]
        if self.along is not None and len(found) > self.along.dim:
            found[self.along.dim] *= self.along.width
        return torch.Size(found)


class _Claiming(Tensor):
    """A tensor that reports another shape. Operations on it use its real shape."""

    _claims: SizeClaims

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(args[0], _Claiming) and func in (Tensor.size, Tensor.shape.__get__):  # type: ignore[attr-defined]
                size = args[0]._claims.of(Tensor.size(args[0]))
                dim = args[1] if len(args) > 1 and func is Tensor.size else (kwargs or {}).get("dim")
                return size if dim is None else size[dim]
            return func(*args, **(kwargs or {}))


class SizeQuery:
    """A module that reads the shape of its inputs, and is told another one."""

    _claims: SizeClaims

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on inputs that report another shape (`SizeClaims`)."""
        given = [x for x in (*args, *kwargs.values()) if type(x) is Tensor and x.dim() and x.is_floating_point()]
        inputs: list[Any] = [x for x in given if x.shape[-1] == self._claims.features]
        # The class of the same tensor changes: a tracer of tensors sees no other tensor.
        for x in inputs:
            x.__class__, x._claims = _Claiming, self._claims
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            for x in inputs:
                x.__class__ = Tensor


class Summing:
    """A module that applies undivided weights to divided features or slices.

    Each rank computes a partial sum of the weights' gradients, so the ranks all-reduce them.
    """

    _summed: tuple[tuple[str, ...], TensorParallelGroup]
    _parameters: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the backward all-reduces the gradients of its weights."""
        names, members = self._summed
        whole = {name: self._parameters[name] for name in names}
        self._parameters.update(zip(names, _spread(whole.values(), members), strict=True))
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._parameters.update(whole)


class DropoutModule:
    """A module that applies dropout to divided tensors."""

    _draws: tuple[tuple[int | None, ...], int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with this rank's part of each dropout mask."""
        with MaskPart(*self._draws):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class SequenceEdge:
    """First or last block (or both) of consecutive blocks that pass on slices.

    Attributes of an instance:
        _entering: numbers of the argument leaves that become slices, in pytree order.
        _leaving: numbers of the result leaves that are gathered, in pytree order.
    """

    _entering: tuple[int, ...]
    _leaving: tuple[int, ...]
    _along: SequenceSlice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Slice the inputs of a first block, run it, gather the results of a last one."""
        leaves, tree = tree_flatten((args, kwargs))
        leaves = [enter(x, self._along) if i in self._entering else x for i, x in enumerate(leaves)]
        given, named = tree_unflatten(leaves, tree)
        made, tree = tree_flatten(super().forward(*given, **named))  # type: ignore[misc]
        return tree_unflatten([leave(x, self._along) if i in self._leaving else x for i, x in enumerate(made)], tree)


_classes: dict[tuple[type, type], type] = {}


def become(module: nn.Module, trait: type) -> None:
    """Change a module's class, in place, to one that inherits from a trait first.

    The module keeps its attributes, parameters and buffers.
    """
    of = type(module)
    if (trait, of) not in _classes:
        name = f"{trait.__name__}{of.__name__}"
        _classes[trait, of] = type(name, (trait, of), {"__module__": of.__module__})
    module.__class__ = _classes[trait, of]

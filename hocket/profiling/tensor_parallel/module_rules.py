"""Traits: what a module does differently when one device of a tensor-parallel group runs its part of it.

Rules of this file: a module takes a trait as a class in front of its own, and keeps its names and values: no hook, and
nothing bound to one instance, so that shallow copies and exchanged parameters work. Parameters may be DTensors or local.
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
    """f of Figure 4.5: the identity forward, the sum over devices backward; of several tensors in one go."""

    @staticmethod
    def forward(ctx: Any, members: TensorParallelGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copy one tensor to all column-parallel layers."""
        ctx.members = members
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Each device knows the gradient through its own columns."""
        if len(gradients) == 1:
            return None, ctx.members.total(gradients[0])
        whole = ctx.members.total(torch.cat([g.flatten() for g in gradients]))
        parts = whole.split([g.numel() for g in gradients])
        return None, *(part.view(g.shape) for part, g in zip(parts, gradients, strict=True))


class _Total(torch.autograd.Function):
    """g of Figure 4.5: the sum over devices forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, members: TensorParallelGroup) -> Tensor:
        """Each device knows the product with its own rows."""
        return members.total(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient of a sum is that of each term."""
        return gradients[0], None


def _spread(tensors: Iterable[Tensor], members: TensorParallelGroup) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Spread.apply(members, *tensors)  # type: ignore[no-untyped-call]
    return found


def _total(x: Tensor, members: TensorParallelGroup) -> Tensor:
    found: Tensor = _Total.apply(x, members)  # type: ignore[no-untyped-call]
    return found


class Shared:
    """The input of the columns that read one tensor: spread, or gathered, once, and its gradients summed in one go.

    Attributes:
        along: of what is sliced; None where every member has the whole.
    """

    def __init__(self, readers: int, members: TensorParallelGroup, along: SequenceSlice | None = None) -> None:
        self._readers, self._members, self.along = readers, members, along
        self._given: Tensor | None = None
        self._whole: Tensor | None = None
        self._again: RegatheredInput | None = None
        self._left = 0

    def among(self, readers: int) -> "Shared":
        """Input for the column-parallel layers of one stage, given their number."""
        return Shared(readers, self._members, self.along)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """(..., features in) times (features out, features in)."""
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
    """Columns that were copied into one stage share their input with those beside them there, and wait for no others.

    Arguments:
        modules: what the stage calls, each as a step.
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
    """A linear layer that makes some of its features."""

    _shared: Shared
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., features in) to (..., features out / width)."""
        y = self._shared.product(x, _matrix(self))
        return y if self.bias is None else y + _local(self.bias)


class Scoring(ColumnParallel):
    """An output layer that makes the logits of some words, which for those who call it are a part of all.

    Attributes of an instance:
        _as_step: it is called by itself, for what it makes, as a step of a captured stage.
    """

    _words: VocabularyRange
    _as_step = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """(..., features in) to (..., own words)."""
        found = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return found if self._as_step else as_part(found, self._words, found.dim() - 1)


class Lookup:
    """An embedding that has some words; the sum over devices is its result."""

    _words: VocabularyRange
    _parameters: dict[str, Any]

    def forward(self, input: Tensor) -> Tensor:
        """(...) numbers of words to (..., features)."""
        weight = self._parameters["weight"]
        at, known = self._words.sought(input)
        self._parameters["weight"] = _local(weight)
        try:
            found: Tensor = super().forward(at)  # type: ignore[misc]
        finally:
            self._parameters["weight"] = weight
        return _total(found.masked_fill(~known.unsqueeze(-1), 0.0), self._words.members)


class RowParallel:
    """A linear layer that reads some of its features; the sum over devices is its result, or this one's slice of it."""

    _members: TensorParallelGroup
    _along: SequenceSlice | None
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., features in / width) to (..., features out)."""
        y, bias = nn.functional.linear(x, _matrix(self)), self.bias if self.bias is None else _local(self.bias)
        if self._along is not None:
            return scatter(y, bias, self._along)
        y = _total(y, self._members)
        return y if bias is None else y + bias


@dataclass(frozen=True)
class SizeClaims:
    """Attributes of inputs that give their size, if the last dimension counts this many features.

    Attributes:
        narrower: how many times, in that dimension. along: as long as the whole of which each is a slice.
    """

    features: int
    narrower: int = 1
    along: SequenceSlice | None = None

    def of(self, size: torch.Size) -> torch.Size:
        """Replacement of a size."""
        found = [*size[:-1], size[-1] // self.narrower]
        if self.along is not None and len(found) > self.along.dim:
            found[self.along.dim] *= self.along.width
        return torch.Size(found)


class _Claiming(Tensor):
    """A tensor that claims to have another size; whatever is done with it is done with what it is."""

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
    """A module that asks its input how large it is."""

    _claims: SizeClaims

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on an input that claims another size."""
        given = [x for x in (*args, *kwargs.values()) if type(x) is Tensor and x.dim() and x.is_floating_point()]
        inputs: list[Any] = [x for x in given if x.shape[-1] == self._claims.features]
        # The same tensor, and no other that shares its memory: whoever follows tensors sees nothing of this.
        for x in inputs:
            x.__class__, x._claims = _Claiming, self._claims
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            for x in inputs:
                x.__class__ = Tensor


class Summing:
    """A module with weights that meet divided features or slices: each device has a part of their gradients."""

    _summed: tuple[tuple[str, ...], TensorParallelGroup]
    _parameters: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        names, members = self._summed
        whole = {name: self._parameters[name] for name in names}
        self._parameters.update(zip(names, _spread(whole.values(), members), strict=True))
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._parameters.update(whole)


class DropoutModule:
    """A module that draws dropout masks of divided tensors."""

    _draws: tuple[tuple[int | None, ...], int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with its part of the dropout masks."""
        with MaskPart(*self._draws):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


class SequenceEdge:
    """The first block of those that hand on slices, or the last, or both.

    Attributes of an instance:
        _entering, _leaving: which leaves of arguments and of results, counted as pytrees flatten, become slices and whole.
    """

    _entering: tuple[int, ...]
    _leaving: tuple[int, ...]
    _along: SequenceSlice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on slices."""
        leaves, tree = tree_flatten((args, kwargs))
        leaves = [enter(x, self._along) if i in self._entering else x for i, x in enumerate(leaves)]
        given, named = tree_unflatten(leaves, tree)
        made, tree = tree_flatten(super().forward(*given, **named))  # type: ignore[misc]
        return tree_unflatten([leave(x, self._along) if i in self._leaving else x for i, x in enumerate(made)], tree)


_classes: dict[tuple[type, type], type] = {}


def become(module: nn.Module, trait: type) -> None:
    """Change what an instance does, and nothing else of it."""
    of = type(module)
    if (trait, of) not in _classes:
        name = f"{trait.__name__}{of.__name__}"
        _classes[trait, of] = type(name, (trait, of), {"__module__": of.__module__})
    module.__class__ = _classes[trait, of]

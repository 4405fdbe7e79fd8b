"""Traits: what a module does differently when one device of a tensor-parallel group runs its part of it.

Rules of this file: a module takes a trait as a class in front of its own, and keeps its names and values: no hook, and
nothing bound to one instance, so that shallow copies and exchanged parameters work. Parameters may be DTensors or local.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hocket.profile.draws import Part

Sum = Callable[[Tensor], Tensor]


class _Spread(torch.autograd.Function):
    """f of Figure 4.5: the identity forward, the sum over devices backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Sum) -> Tensor:
        """One tensor to all columns."""
        ctx.total = total
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Each device knows the gradient through its own columns."""
        return ctx.total(gradients[0]), None


class _Total(torch.autograd.Function):
    """g of Figure 4.5: the sum over devices forward, the identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, total: Sum) -> Tensor:
        """Each device knows the product with its own rows."""
        return total(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradient of a sum is that of each term."""
        return gradients[0], None


_spread: Callable[[Tensor, Sum], Tensor] = _Spread.apply  # type: ignore[assignment]
_total: Callable[[Tensor, Sum], Tensor] = _Total.apply  # type: ignore[assignment]


class Shared:
    """The input of the columns that read one tensor: spread once, so that their gradients are summed in one go."""

    def __init__(self, readers: int, total: Sum) -> None:
        self._readers, self._sum = readers, total
        self._given: Tensor | None = None
        self._spread: Tensor | None = None
        self._left = 0

    def of(self, x: Tensor) -> Tensor:
        """The same tensor for every reader of `x`; forgotten after the last of them."""
        if x is not self._given or self._spread is None:
            self._given, self._left = x, self._readers
            self._spread = _spread(x, self._sum)
        self._left -= 1
        found: Tensor = self._spread
        if self._left <= 0:
            self._given = self._spread = None
        return found


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _product(module: Any, x: Tensor, features_out: int) -> Tensor:
    weight = _local(module.weight)
    return nn.functional.linear(x, weight if features_out == 0 else weight.t())


class Column:
    """A linear layer that makes some of its features."""

    _shared: Shared
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., features in) to (..., features out / width)."""
        y = _product(self, self._shared.of(x), self._features_out)
        return y if self.bias is None else y + _local(self.bias)


class Row:
    """A linear layer that reads some of its features; the sum over devices is its result."""

    _sum: Sum
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., features in / width) to (..., features out)."""
        y: Tensor = _total(_product(self, x, self._features_out), self._sum)
        return y if self.bias is None else y + _local(self.bias)


class _Narrow(Tensor):
    """A tensor that claims to be narrower in its last dimension; whatever is done with it is done with the whole one."""

    _width = 1

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            if isinstance(args[0], _Narrow) and func in (Tensor.size, Tensor.shape.__get__):  # type: ignore[attr-defined]
                if isinstance(found, torch.Size):
                    return torch.Size((*found[:-1], found[-1] // args[0]._width))
                if args[1] in (-1, args[0].dim() - 1):
                    return found // args[0]._width
        return found


class Asking:
    """A module that asks its input how wide it is."""

    _narrow: tuple[int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module does, on an input that looks narrower."""
        features, width = self._narrow
        given = [x for x in (*args, *kwargs.values()) if type(x) is Tensor and x.dim() and x.is_floating_point()]
        inputs: list[Any] = [x for x in given if x.shape[-1] == features]
        # The same tensor, and no other that shares its memory: whoever follows tensors sees nothing of this.
        for x in inputs:
            x.__class__, x._width = _Narrow, width
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            for x in inputs:
                x.__class__ = Tensor


class Summing:
    """A module with weights that meet divided features: each device has a part of their gradients."""

    _summed: tuple[tuple[str, ...], Sum]
    _parameters: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module does."""
        names, total = self._summed
        whole = {name: self._parameters[name] for name in names}
        self._parameters.update({name: _spread(p, total) for name, p in whole.items()})
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._parameters.update(whole)


class Drawing:
    """A module that draws dropout masks of divided tensors."""

    _draws: tuple[tuple[int | None, ...], int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module does, with its part of the masks."""
        with Part(*self._draws):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


_classes: dict[tuple[type, type], type] = {}


def become(module: nn.Module, trait: type) -> None:
    """Change what an instance does, and nothing else of it."""
    of = type(module)
    if (trait, of) not in _classes:
        name = f"{trait.__name__}{of.__name__}"
        _classes[trait, of] = type(name, (trait, of), {"__module__": of.__module__})
    module.__class__ = _classes[trait, of]

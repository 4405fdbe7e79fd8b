"""Divided modules: what one device of a tensor-parallel group runs of an unedited model.

Rules of this file: nothing here knows how tensors are summed over devices, that is an argument (`Sum`). A divided model
has the names of the whole one; its divided parameters are smaller, and may be given as DTensors as well as local tensors.
What is divided takes the class of its twin here, with the instance's own names and values: no hook, nothing bound to one
instance, so that shallow copies and exchanged parameters work.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profile.draws import Part
from hocket.profile.tensor_split import Cut, DividedLinear, DividedPart, TensorSplit

Sum = Callable[[Tensor], Tensor]


def part_of(tensor: Tensor, cut: Cut, width: int, rank: int) -> Tensor:
    """The part of a whole tensor that belongs to a device; a view where pieces allow it.

    Raises:
        InputError: the tensor cannot be divided into equal parts.
    """
    size = tensor.shape[cut.dim]
    if size % (cut.pieces * width):
        fused = f"{cut.pieces} pieces of " if cut.pieces > 1 else ""
        raise InputError("width", str(width), f"a divisor of {fused}{size // cut.pieces} features")
    before, after = tensor.shape[: cut.dim], tensor.shape[cut.dim + 1 :]
    pieces = tensor.reshape(*before, cut.pieces, width, size // (cut.pieces * width), *after)
    return pieces.select(cut.dim + 1, rank).flatten(cut.dim, cut.dim + 1)


def whole_of(parts: list[Tensor], cut: Cut) -> Tensor:
    """The inverse of `part_of`: the parts of all devices, by rank, as one tensor."""
    return torch.cat([p.chunk(cut.pieces, cut.dim)[k] for k in range(cut.pieces) for p in parts], cut.dim)


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


class _Shared:
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


class _Column:
    """A linear layer that makes some of its features."""

    _shared: _Shared
    _features_out: int
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(..., features in) to (..., features out / width)."""
        y = _product(self, self._shared.of(x), self._features_out)
        return y if self.bias is None else y + _local(self.bias)


class _Row:
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


class _Asking:
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


class _Summing:
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


class _Drawing:
    """A module that draws dropout masks of divided tensors."""

    _draws: tuple[tuple[int | None, ...], int, int]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module does, with its part of the masks."""
        with Part(*self._draws):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


_classes: dict[tuple[type, type], type] = {}


def _become(module: nn.Module, trait: type) -> None:
    """Change what an instance does, and nothing else of it."""
    of = type(module)
    if (trait, of) not in _classes:
        name = f"{trait.__name__.strip('_')}{of.__name__}"
        _classes[trait, of] = type(name, (trait, of), {"__module__": of.__module__})
    module.__class__ = _classes[trait, of]


def divide(model: nn.Module, split: TensorSplit, rank: int, total: Sum) -> None:
    """Make a model, in place, what the device of this rank runs of it.

    Arguments:
        total: gives the sum of a tensor over the devices of the group, as a new tensor; every device calls it for the
            same tensors in the same order.

    Raises:
        InputError: the split does not fit the model.
    """
    for block in split.blocks:
        for path in block.paths:
            for part in block.parts:
                divide_part(_module(model, path), part, split.width, rank, total)


def divide_part(block: nn.Module, part: DividedPart, width: int, rank: int, total: Sum) -> None:
    """Divide one part of a block, see `divide`."""
    for group in part.columns:
        shared = _Shared(len(group), total)
        for linear in group:
            module: Any = _take(block, linear, _Column, width, rank)
            module._shared, module._features_out = shared, linear.cut.dim
            if isinstance(module, nn.Linear):
                module.out_features //= width
    module = _take(block, part.row, _Row, width, rank)
    module._sum, module._features_out = total, 1 - part.row.cut.dim
    if isinstance(module, nn.Linear):
        module.in_features //= width
    for attribute in part.attributes:
        owner = _module(block, attribute.path)
        found = getattr(owner, attribute.name, None)
        if found != attribute.whole or attribute.whole % width:
            place = f"{attribute.path}.{attribute.name}"
            raise InputError(place, f"{found}, width {width}", f"{attribute.whole}, and a width that divides it")
        setattr(owner, attribute.name, attribute.whole // width)
    first = part.columns[0][0]
    for path in part.narrowed:
        module = _module(block, path)
        module._narrow = (_module(block, first.path).weight.shape[1 - first.cut.dim], width)
        _become(module, _Asking)
    owners: dict[str, list[str]] = {}
    for name in part.summed:
        owners.setdefault(name.rpartition(".")[0], []).append(name.rpartition(".")[2])
    for path, names in owners.items():
        module = _module(block, path)
        module._summed = (tuple(names), total)
        _become(module, _Summing)
    for draws in part.draws:
        module = _module(block, draws.path)
        module._draws = (draws.dims, width, rank)
        _become(module, _Drawing)


def _take(block: nn.Module, linear: DividedLinear, trait: type, width: int, rank: int) -> nn.Module:
    module = _module(block, linear.path)
    if isinstance(module, _Column | _Row):
        raise InputError(f"linear layer {linear.path}", "divided already", "a model that is whole")
    for name, cut in _cuts(module, linear, trait is _Column):
        whole: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        part = part_of(whole.detach(), cut, width, rank).clone(memory_format=torch.contiguous_format)
        module._parameters[name] = nn.Parameter(part, requires_grad=whole.requires_grad)
    _become(module, trait)
    return module


def _cuts(module: nn.Module, linear: DividedLinear, column: bool) -> Iterator[tuple[str, Cut]]:
    yield "weight", linear.cut
    if column and module._parameters.get("bias") is not None:
        yield "bias", Cut(0, linear.cut.pieces)


def cuts_in_block(block: nn.Module, parts: tuple[DividedPart, ...]) -> dict[str, Cut]:
    """How each divided parameter is cut, by its name in the block, which may be divided already."""
    return {
        f"{linear.path}.{name}": cut
        for part in parts
        for linear in part.linears
        for name, cut in _cuts(_module(block, linear.path), linear, linear is not part.row)
    }


def cuts(model: nn.Module, split: TensorSplit) -> dict[str, Cut]:
    """How each divided parameter is cut, by its name in the model, which may be divided already."""
    return {
        f"{path}.{name}": cut
        for block in split.blocks
        for path in block.paths
        for name, cut in cuts_in_block(_module(model, path), block.parts).items()
    }


def _module(model: nn.Module, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise InputError(f"module {path}", "no such module", "a module of the model that was split") from None

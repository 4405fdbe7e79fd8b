"""Divided modules: what one device of a tensor-parallel group runs of an unedited model.

Rules of this file: nothing here knows how tensors are summed over devices, that is an argument (`Sum`). A divided model
has the names of the whole one, and smaller parameters; its modules get the traits of traits.py.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profile.tensor_split import Cut, DividedLinear, DividedPart, TensorSplit
from hocket.profile.traits import Asking, Column, Drawing, Row, Shared, Sum, Summing, become


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
        shared = Shared(len(group), total)
        for linear in group:
            module: Any = _take(block, linear, Column, width, rank)
            module._shared, module._features_out = shared, linear.cut.dim
            if isinstance(module, nn.Linear):
                module.out_features //= width
    module = _take(block, part.row, Row, width, rank)
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
        become(module, Asking)
    owners: dict[str, list[str]] = {}
    for name in part.summed:
        owners.setdefault(name.rpartition(".")[0], []).append(name.rpartition(".")[2])
    for path, names in owners.items():
        module = _module(block, path)
        module._summed = (tuple(names), total)
        become(module, Summing)
    for draws in part.draws:
        module = _module(block, draws.path)
        module._draws = (draws.dims, width, rank)
        become(module, Drawing)


def _take(block: nn.Module, linear: DividedLinear, trait: type, width: int, rank: int) -> nn.Module:
    module = _module(block, linear.path)
    if isinstance(module, Column | Row):
        raise InputError(f"linear layer {linear.path}", "divided already", "a model that is whole")
    for name, cut in _cuts(module, linear, trait is Column):
        whole: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        part = part_of(whole.detach(), cut, width, rank).clone(memory_format=torch.contiguous_format)
        module._parameters[name] = nn.Parameter(part, requires_grad=whole.requires_grad)
    become(module, trait)
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

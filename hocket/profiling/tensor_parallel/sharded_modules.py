"""Divided modules: one tensor-parallel rank's part of an unedited model.

Rules of this file: communication is an argument (`TensorParallelGroup`). A divided model has the parameter names of
the whole one, and smaller parameters. Its modules get the traits of module_rules.py.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profiling.job.derived_model.placeholders import is_placeholder
from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.module_rules import (
    ColumnParallel,
    DropoutModule,
    Lookup,
    RowParallel,
    Scoring,
    SequenceEdge,
    Shared,
    SizeClaims,
    SizeQuery,
    Summing,
    become,
)
from hocket.profiling.tensor_parallel.sequence_parallel import SequenceSlice
from hocket.profiling.tensor_parallel.split import (
    BlockSplit,
    Cut,
    DividedDraws,
    DividedEmbedding,
    DividedLinear,
    DividedPart,
    TensorSplit,
)
from hocket.profiling.tensor_parallel.vocab_parallel import VocabularyRange


def part_of(tensor: Tensor, cut: Cut, width: int, rank: int) -> Tensor:
    """Return one rank's part of a whole tensor, as a view where possible.

    Raises:
        InputError: the tensor cannot be divided into equal parts, or its size is not the vocabulary size of `cut`.
    """
    size = tensor.shape[cut.dim]
    if cut.words:
        if size != cut.words:
            raise InputError("vocabulary", f"{size} entries", f"{cut.words}")
        own = cut.words_of(width, rank)
        return tensor.narrow(cut.dim, own.start, len(own))
    if size % (cut.pieces * width):
        fused = f"{cut.pieces} pieces of " if cut.pieces > 1 else ""
        raise InputError("width", str(width), f"a divisor of {fused}{size // cut.pieces} features")
    before, after = tensor.shape[: cut.dim], tensor.shape[cut.dim + 1 :]
    pieces = tensor.reshape(*before, cut.pieces, width, size // (cut.pieces * width), *after)
    return pieces.select(cut.dim + 1, rank).flatten(cut.dim, cut.dim + 1)


def whole_of(parts: list[Tensor], cut: Cut) -> Tensor:
    """Join the parts of all ranks into the whole tensor: the inverse of `part_of`.

    Arguments:
        parts: one part for each rank, in rank order. If `cut` divides a vocabulary, parts may be padded at the end to
            the length of the longest.
    """
    if cut.words:
        return torch.cat(parts, cut.dim).narrow(cut.dim, 0, cut.words)
    return torch.cat([p.chunk(cut.pieces, cut.dim)[k] for k in range(cut.pieces) for p in parts], cut.dim)


def divide(model: nn.Module, split: TensorSplit, rank: int, members: TensorParallelGroup) -> None:
    """Turn a model, in place, into the part that one tensor-parallel rank runs.

    Arguments:
        members: the group, as seen by this rank.

    Raises:
        InputError: the split does not fit the model.
    """
    for block in split.blocks:
        for path in block.paths:
            divide_block(_module(model, path), block, split.width, rank, members)
    kinds = {path: block for block in split.blocks for path in block.paths}
    for run in split.runs:
        for path in dict.fromkeys((run[0], run[-1])):
            sliced = kinds[path].sliced if path in kinds else None
            if sliced is None:
                raise InputError("runs", path, "a sequence-parallel block")
            module = _module(model, path)
            module._along = SequenceSlice(sliced.dim, split.width, rank, members)
            module._entering = sliced.inputs if path == run[0] else ()
            module._leaving = sliced.outputs if path == run[-1] else ()
            become(module, SequenceEdge)
    divide_words(model, split.embedding, split.output, split.width, rank, members)


def divide_words(
    model: nn.Module,
    embedding: DividedEmbedding | None,
    output: DividedLinear | None,
    width: int,
    rank: int,
    members: TensorParallelGroup,
) -> None:
    """Divide an embedding and an output layer over the vocabulary, in place; tied weights stay tied.

    Arguments:
        embedding, output: the two layers and how they are divided; None for a layer that is not divided.
        width: tensor-parallel size.
        rank: index of this rank in the group.
        members: the group, as seen by this rank.

    Raises:
        InputError: the division does not fit the model.
    """
    ends = [end for end in (embedding, output) if end is not None]
    for end in ends:
        if isinstance(_module(model, end.path), Lookup | Scoring):
            raise InputError(f"module {end.path}", "already divided", "an undivided model")
    divided = cuts_of_words(model, embedding, output)
    for name, whole in list(model.named_parameters()):
        if name in divided:
            exchange(model, whole, _part(whole, divided[name], width, rank))
    for end in ends:
        module = _module(model, end.path)
        module._words = words = VocabularyRange.of(end.cut, width, rank, members)
        if isinstance(end, DividedEmbedding):
            if isinstance(module, nn.Embedding):
                own, padding = words.own, module.padding_idx
                module.num_embeddings = len(own)
                module.padding_idx = padding - own.start if padding is not None and padding in own else None
            become(module, Lookup)
        else:
            module._shared, module._features_out = Shared(1, members), end.cut.dim
            if isinstance(module, nn.Linear):
                module.out_features = len(words.own)
            become(module, Scoring)


def exchange(model: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Replace a parameter in every module that has it."""
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is old:
                module._parameters[key] = new


def divide_block(block: nn.Module, split: BlockSplit, width: int, rank: int, members: TensorParallelGroup) -> None:
    """Turn one block, in place, into the part that one tensor-parallel rank runs.

    Arguments:
        width: tensor-parallel size.
        rank: index of this rank in the group.
        members: the group, as seen by this rank.

    Raises:
        InputError: the split does not fit the block.
    """
    sliced = split.sliced
    along = SequenceSlice(sliced.dim, width, rank, members) if sliced else None
    claims: dict[str, SizeClaims] = {}
    for part in split.parts:
        first = part.columns[0][0]
        features = _module(block, first.path).weight.shape[1 - first.cut.dim]
        asking = {linear.path.rpartition(".")[0] for group in part.columns for linear in group}
        for path in asking.union(part.narrowed):
            narrower = path in part.narrowed or (path in claims and claims[path].narrower > 1)
            longer = along if sliced and path in sliced.longer else None
            if narrower or longer is not None:
                claims[path] = SizeClaims(features, width if narrower else 1, longer)
        _divide_part(block, part, width, rank, members, along)
    for path, claim in claims.items():
        _module(block, path)._claims = claim
        become(_module(block, path), SizeQuery)
    summed = [name for part in split.parts for name in part.summed]
    _sum(block, (*summed, *(sliced.summed if sliced else ())), members)
    draws = sliced.draws if sliced else tuple(one for part in split.parts for one in part.draws)
    _draw(block, draws, width, rank)


def _divide_part(
    block: nn.Module,
    part: DividedPart,
    width: int,
    rank: int,
    members: TensorParallelGroup,
    along: SequenceSlice | None,
) -> None:
    for group in part.columns:
        shared = Shared(len(group), members, along)
        for linear in group:
            module: Any = _take(block, linear, ColumnParallel, width, rank)
            module._shared, module._features_out = shared, linear.cut.dim
            if isinstance(module, nn.Linear):
                module.out_features //= width
    module = _take(block, part.row, RowParallel, width, rank)
    module._members, module._along, module._features_out = members, along, 1 - part.row.cut.dim
    if isinstance(module, nn.Linear):
        module.in_features //= width
    for attribute in part.attributes:
        owner = _module(block, attribute.path)
        found = getattr(owner, attribute.name, None)
        if found != attribute.whole or attribute.whole % width:
            place = f"{attribute.path}.{attribute.name}"
            raise InputError(place, f"{found}, width {width}", f"{attribute.whole}, and a width that divides it")
        setattr(owner, attribute.name, attribute.whole // width)


def _sum(block: nn.Module, weights: tuple[str, ...], members: TensorParallelGroup) -> None:
    owners: dict[str, list[str]] = {}
    for name in weights:
        owners.setdefault(name.rpartition(".")[0], []).append(name.rpartition(".")[2])
    for path, names in owners.items():
        module = _module(block, path)
        module._summed = (tuple(names), members)
        become(module, Summing)


def _draw(block: nn.Module, draws: tuple[DividedDraws, ...], width: int, rank: int) -> None:
    for one in draws:
        module = _module(block, one.path)
        module._draws = (one.dims, width, rank)
        become(module, DropoutModule)


def _take(block: nn.Module, linear: DividedLinear, trait: type, width: int, rank: int) -> nn.Module:
    module = _module(block, linear.path)
    if isinstance(module, ColumnParallel | RowParallel):
        raise InputError(f"linear layer {linear.path}", "already divided", "an undivided model")
    for name, cut in _cuts(module, linear, trait is ColumnParallel):
        whole: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        module._parameters[name] = _part(whole, cut, width, rank)
    become(module, trait)
    return module


def _part(whole: nn.Parameter, cut: Cut, width: int, rank: int) -> nn.Parameter:
    """Return one rank's part of a parameter, with memory of its own; the part of a placeholder is one, too."""
    part = part_of(whole.detach(), cut, width, rank)
    if not is_placeholder(part):
        part = part.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(part, requires_grad=whole.requires_grad)


def _cuts(module: nn.Module, linear: DividedLinear, column: bool) -> Iterator[tuple[str, Cut]]:
    yield "weight", linear.cut
    if column and module._parameters.get("bias") is not None:
        yield "bias", Cut(0, linear.cut.pieces)


def cuts_in_block(block: nn.Module, parts: tuple[DividedPart, ...]) -> dict[str, Cut]:
    """Return the cut of each divided parameter, by its name in the block.

    The block may be divided already.
    """
    return {
        f"{linear.path}.{name}": cut
        for part in parts
        for linear in part.linears
        for name, cut in _cuts(_module(block, linear.path), linear, linear is not part.row)
    }


def cuts_of_words(model: nn.Module, embedding: DividedEmbedding | None, output: DividedLinear | None) -> dict[str, Cut]:
    """Return the cuts of embedding and output layer, by parameter name.

    A shared parameter has an entry for each of its names in the model.
    """
    found: dict[int, Cut] = {}
    for end in (embedding, output):
        if end is not None:
            module = _module(model, end.path)
            found[id(module._parameters["weight"])] = end.cut
            if end is output and module._parameters.get("bias") is not None:
                found[id(module._parameters["bias"])] = Cut(0, words=end.cut.words)
    names = model.named_parameters(remove_duplicate=False) if found else ()
    return {name: found[id(p)] for name, p in names if id(p) in found}


def cuts(model: nn.Module, split: TensorSplit) -> dict[str, Cut]:
    """Return the cut of each divided parameter, by its name in the model.

    The model may be divided already.
    """
    in_blocks = {
        f"{path}.{name}": cut
        for block in split.blocks
        for path in block.paths
        for name, cut in cuts_in_block(_module(model, path), block.parts).items()
    }
    return in_blocks | cuts_of_words(model, split.embedding, split.output)


def _module(model: nn.Module, path: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise InputError(f"module {path}", "no such module", "a module of the model that was split") from None

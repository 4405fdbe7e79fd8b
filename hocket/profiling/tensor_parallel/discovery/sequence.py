"""Search for sequence parallelism: blocks that can work on slices of the sequence.

Rules of this file: the tensors of one run show which blocks pass hidden states to each other. A block on slices is
proved to give equal results by running it (equivalence.py). A block that cannot be proved keeps whole hidden states,
and the reason is recorded. No model class is known here.
Source: Korthikanti et al. 2022, section 4.2.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from hocket.profiling.analytic.block_calls import BlockCall, calls_of_blocks
from hocket.profiling.capture.recorded_graph import flatten
from hocket.profiling.tensor_parallel.discovery.equivalence import Inequality, Proof
from hocket.profiling.tensor_parallel.sharded_modules import cuts_in_block
from hocket.profiling.tensor_parallel.split import BlockSplit, Sliced, TensorSplit


def with_slices(model: nn.Module, split: TensorSplit, /, *args: Any, **kwargs: Any) -> TensorSplit:
    """Add sequence parallelism to every block of a split where it is proved.

    The model is unchanged.

    Arguments:
        args, kwargs: arguments of one call of the model, such as the tensors of a small batch.
    """
    links = _links(model, list(dict.fromkeys(path for kind in split.blocks for path in kind.paths)), args, kwargs)
    calls, fewer = calls_of_blocks(model, args, kwargs), _fewer_samples(model, args, kwargs)
    blocks = []
    for kind in split.blocks:
        path = kind.paths[-1]  # the last block: its input has a gradient; the first block's input may have none
        handed = {leaf for one in kind.paths for leaf in links.inputs(one)}
        search = _SequenceSearch(model.get_submodule(path), calls[path], kind, split.width, handed)
        sliced, reason = search.sliced(_shapes(fewer[path]) if path in fewer else {})
        if any(links.order.count(one) > 1 for one in kind.paths):
            sliced, reason = None, "it runs more than once per forward"
        blocks.append(replace(kind, sliced=sliced, unsliced=reason))
    return replace(split, blocks=tuple(blocks), runs=_runs(blocks, links))


# -- links between blocks


@dataclass
class _Links:
    """Tensors that blocks pass to each other.

    A leaf is a tensor or another value in the nested arguments or results of a block; leaves are numbered in pytree
    order.

    Attributes:
        order: paths of blocks in execution order.
        into: for each block, the sources of its argument leaves: leaf number to (source block, number of its result).
        outside: results that are read outside of blocks, as (block, leaf number).
    """

    order: list[str] = field(default_factory=list)
    into: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)
    outside: set[tuple[str, int]] = field(default_factory=set)

    def inputs(self, path: str) -> set[int]:
        """Numbers of a block's argument leaves that another block returned."""
        return set(self.into.get(path, {}))

    def readers(self, made: tuple[str, int]) -> list[str]:
        """Return the blocks that read a result, given as (block, leaf number)."""
        return [path for path, leaves in self.into.items() if made in leaves.values()]


class _Outside(TorchFunctionMode):
    """Mode that records which results of a block are read by other blocks, and which by code outside of blocks.

    It is active during one run of the model; hooks call `begin` and `end` around each block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links, self.depth = _Links(), 0
        self._made: dict[int, tuple[str, int]] = {}
        self._kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.depth:
            self.read((args, kwargs))
        return func(*args, **(kwargs or {}))

    def read(self, thing: Any) -> None:
        """Note results of blocks among these tensors: code outside of blocks reads them."""
        self.links.outside.update(self._made[id(x)] for _, x in flatten(thing) if id(x) in self._made)

    def begin(self, path: str, given: Any) -> None:
        """Note the start of a block's call, and which of its arguments are results of other blocks.

        Arguments:
            path: path of the block in the model.
            given: positional and named arguments of the call.
        """
        if not self.depth:
            self.links.order.append(path)
            found = {i: self._made[id(x)] for i, x in enumerate(tree_leaves(given)) if id(x) in self._made}
            self.links.into.setdefault(path, {}).update(found)
        self.depth += 1

    def end(self, path: str, result: Any) -> None:
        """Note the end of a block's call, and the tensors that it returned.

        Arguments:
            path: path of the block in the model.
            result: return value of the call.
        """
        self.depth -= 1
        for i, x in enumerate(tree_leaves(result)):
            if isinstance(x, Tensor) and x.is_floating_point():
                self._made[id(x)] = (path, i)
                self._kept.append(x)  # kept alive: another tensor could get the same id


def _links(model: nn.Module, paths: list[str], args: Any, kwargs: Any) -> _Links:
    handles, watch = [], _Outside()
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for path in paths:
            block = model.get_submodule(path)
            handles.append(
                block.register_forward_pre_hook(lambda _, a, k, path=path: watch.begin(path, (a, k)), with_kwargs=True)
            )
            handles.append(block.register_forward_hook(lambda _, __, result, path=path: watch.end(path, result)))
        with torch.no_grad(), torch.random.fork_rng(), watch:
            result = model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    last = watch.links.order[-1:]
    watch.depth = 0
    watch.read([x for _, x in flatten(result)])
    watch.links.outside -= {made for made in watch.links.outside if [made[0]] == last}
    return watch.links


def _runs(blocks: list[BlockSplit], links: _Links) -> tuple[tuple[str, ...], ...]:
    """Group consecutive blocks that pass slices to each other; return their paths.

    Within a group, each block reads only the output of the block before it, sliced along the same dimension.
    """
    kinds = {path: block.sliced for block in blocks if block.sliced is not None for path in block.paths}
    runs: list[list[str]] = []
    for path in links.order:
        before = runs[-1][-1] if runs else ""
        if path not in kinds:
            continue
        if before and _hands_on(before, kinds[before], path, kinds[path], links):
            runs[-1].append(path)
        else:
            runs.append([path])
    return tuple(map(tuple, runs))


def _hands_on(before: str, given: Sliced, path: str, taken: Sliced, links: _Links) -> bool:
    made = {(before, leaf) for leaf in given.outputs}
    read = {links.into.get(path, {}).get(leaf) for leaf in taken.inputs}
    alone = all(links.readers(one) == [path] for one in made) and made.isdisjoint(links.outside)
    return given.dim == taken.dim and read == made and alone


# -- a block on slices


class _SequenceSearch:
    """Search for the sequence-parallel form of one block.

    Arguments:
        handed: numbers of the block's argument leaves that other blocks return.
    """

    def __init__(self, block: nn.Module, call: BlockCall, split: BlockSplit, width: int, handed: set[int]) -> None:
        self.block, self.split, self.width, self.handed = block, split, width, handed
        self.proof = Proof(block, call)

    def sliced(self, of_fewer: dict[int, torch.Size]) -> tuple[Sliced | None, str]:
        """Find the sequence-parallel form of the block, proved by running it.

        Arguments:
            of_fewer: shapes of the block's argument tensors for one sample, by leaf number; empty if unknown. They
                tell the batch dimension, which is no candidate.

        Returns:
            The form and an empty text, or None and the reason.
        """
        reason: Inequality | None = None
        for proposal in self._proposals(of_fewer):
            problem = self.proof.problem(self.split.parts, self.width, sliced=proposal)
            if problem is None:
                return self._with_draws(proposal)
            if reason is None or (problem.is_a_difference and not reason.is_a_difference):
                reason = problem
        return None, reason.text if reason else f"no dimension of positions that {self.width} divides"

    def _with_draws(self, found: Sliced) -> tuple[Sliced | None, str]:
        try:
            found = replace(found, draws=self.proof.draws(self.split.parts, self.width, found))
        except ValueError as error:
            return None, str(error)
        problem = self.proof.problem(self.split.parts, self.width, True, found) if found.draws else None
        return (found, "") if problem is None else (None, f"with dropout: {problem.text}")

    def _proposals(self, of_fewer: dict[int, torch.Size]) -> Iterator[Sliced]:
        arguments, results = self.proof.shapes()
        for shape in dict.fromkeys(tuple(shape) for shape in results.values()):
            outputs = tuple(i for i, one in results.items() if tuple(one) == shape)
            alike = tuple(i for i, one in arguments.items() if tuple(one) == shape)
            inputs = tuple(i for i in alike if i in self.handed) or alike
            for dim in reversed(range(len(shape) - 1)):
                samples = any(of_fewer[i][dim] != shape[dim] for i in inputs if i in of_fewer)
                if not inputs or samples or shape[dim] % self.width:
                    continue
                for longer in dict.fromkeys((self._asking(), ())):
                    yield Sliced(dim, inputs, outputs, longer, self._summed())

    def _asking(self) -> tuple[str, ...]:
        """Paths of the modules that directly contain column-parallel layers."""
        columns = [linear.path for part in self.split.parts for group in part.columns for linear in group]
        return tuple(dict.fromkeys(path.rpartition(".")[0] for path in columns))

    def _summed(self) -> tuple[str, ...]:
        """Names of undivided weights that are applied to slices.

        Row-parallel layers are left out, and so are weights that `summed` of a divided part names.
        """
        divided = cuts_in_block(self.block, self.split.parts)
        summed = {name for part in self.split.parts for name in part.summed}
        rows = tuple(f"{part.row.path}." for part in self.split.parts)
        return tuple(
            name
            for name, _ in self.block.named_parameters()
            if name not in divided and name not in summed and not name.startswith(rows)
        )


def _fewer_samples(model: nn.Module, args: Any, kwargs: Any) -> dict[str, BlockCall]:
    """Calls of blocks, by path, in a run of the first sample; empty if it fails."""
    tensors = [x for _, x in flatten((args, kwargs)) if x.dim()]
    samples = len(tensors[0]) if tensors else 0

    def first(x: Any) -> Any:
        return x[:1] if isinstance(x, Tensor) and x.dim() and len(x) == samples else x

    if samples < 2:
        return {}
    try:
        return calls_of_blocks(model, *tree_map(first, (args, kwargs)))
    except Exception:  # a model may raise anything on arguments that it was not given
        return {}


def _shapes(call: BlockCall) -> dict[int, torch.Size]:
    return {i: x.shape for i, x in enumerate(tree_leaves((call.args, call.kwargs))) if isinstance(x, Tensor)}

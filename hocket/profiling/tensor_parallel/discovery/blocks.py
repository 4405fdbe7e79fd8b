"""Search for the tensor-parallel split of an unedited model.

The split is found in the model's structure and proved by running it.

Rules of this file: the structure only proposes. It gives repeated blocks of the module tree and, inside a block,
linear layers that feed another linear layer. A proposal runs forward and backward on simulated devices
(threaded_group.py), in float64 on random weights. A proposal with results other than those of the undivided block is
refused with the reason. No model class is known here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import RefusedError
from hocket.profiling.analytic.block_calls import BlockCall, alike, calls_of_blocks, has_matrix, nearest_nodes, numbers
from hocket.profiling.tensor_parallel.discovery.equivalence import TOLERANCE, Inequality, Proof, told
from hocket.profiling.tensor_parallel.sharded_modules import cuts, cuts_in_block
from hocket.profiling.tensor_parallel.split import (
    BlockSplit,
    Cut,
    DividedAttribute,
    DividedLinear,
    DividedPart,
    TensorSplit,
)

_MOST_ATTRIBUTES = 3  # most integer attributes (such as the number of heads) that one proposal divides
_MOST_SUMMED = 4  # most undivided weights of one part (such as a norm's) with gradients summed over the ranks
_OTHER_WIDTHS = (2, 3, 4, 5, 7)  # group sizes tried for the error message if the wanted one does not work


def find_split(model: nn.Module, width: int, /, *args: Any, **kwargs: Any) -> TensorSplit:
    """Find the tensor-parallel split of a model's blocks over `width` devices.

    The model is unchanged.

    Arguments:
        args, kwargs: arguments of one call of the model, such as the tensors of a small batch.

    Raises:
        RefusedError: `width` is below 2, the model has no blocks that this width can divide, a weight to divide is
            tied, or a block cannot run alone or has dropout that cannot be divided. The error names the module and
            the reason.
    """
    if width < 2:
        raise RefusedError("width", str(width), "2 or more devices: one device needs no split")
    calls = calls_of_blocks(model, args, kwargs)
    kinds: list[list[str]] = []
    for path in calls:
        same = next((paths for paths in kinds if alike(model, paths[0], path)), None)
        if same is None:
            kinds.append([path])
        else:
            same.append(path)
    blocks, reasons = [], []
    for paths in kinds:
        found = _BlockSearch(model.get_submodule(paths[0]), paths[0], calls[paths[0]], width).split()
        if found.parts:
            blocks.append(replace(found, paths=tuple(paths)))
        reasons += [f"{paths[0]}.{path} {why}" for path, why in found.undivided.items()]
    if not blocks:
        found_ = "; ".join(reasons[:3]) or "no repeated module with two linear layers that runs once per forward"
        expected = "blocks with a linear layer that reads the results of other linear layers, as in a transformer"
        raise RefusedError("model", found_, expected, "Without such blocks, train with a tensor-parallel size of 1.")
    split = TensorSplit(width, tuple(blocks))
    _refuse_ties(model, split)
    return split


def _refuse_ties(model: nn.Module, split: TensorSplit) -> None:
    names: dict[int, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(name)
    divided = cuts(model, split)
    for tied in names.values():
        if len(tied) > 1 and not divided.keys().isdisjoint(tied):
            raise RefusedError(
                f"parameter {tied[0]}",
                f"a weight that is tied to {tied[1]}",
                "no tied weights in layers that are divided",
                "Untie the weights, or train with a tensor-parallel size of 1.",
            )


@dataclass(frozen=True)
class _Linear:
    """A linear layer in one forward of a block.

    Attributes:
        features_out: index of the weight's output-feature dimension, 0 or 1.
        x: input tensor of the layer.
        sources: paths of the nearest linear layers that the input depends on.
    """

    features_out: int
    x: Tensor
    sources: tuple[str, ...]


class _BlockSearch:
    """Search for the divided parts of one block."""

    def __init__(self, block: nn.Module, name: str, call: BlockCall, width: int) -> None:
        self.block, self.name, self.width = block, name, width
        self.proof = Proof(block, call)
        self.linears = self._look()

    # -- proposals

    def split(self) -> BlockSplit:
        """Divide the block into tensor-parallel parts that were proved by running.

        The result also lists the matrices that stay whole, with the reason for each.

        Raises:
            RefusedError: a part of the block can be divided, but not by this width; a dropout mask inside a part
                cannot be divided; or the parts are equal to the whole block one by one, but not together.
        """
        parts: list[DividedPart] = []
        taken: set[str] = set()
        reasons: dict[str, str] = {}
        for row, linear in self.linears.items():
            if linear.sources and taken.isdisjoint((row, *linear.sources)):
                found, reason = self._part(row, self.width)
                if found is None:
                    others = [w for w in _OTHER_WIDTHS if w != self.width and self._part(row, w)[0] is not None]
                    if others:
                        names = ", ".join(linear.sources)
                        raise RefusedError(
                            f"{self.name}: {names} and {row}", f"width {self.width}: {reason}",
                            f"a width that divides heads and features, such as {' or '.join(map(str, others))}",
                        )  # fmt: skip
                    reasons[row] = reason
                else:
                    found = self._with_draws(found)
                    parts.append(found)
                    taken.update(linear.path for linear in found.linears)
        dropout = any(part.draws for part in parts)
        if len(parts) > 1 and (problem := self.proof.problem(tuple(parts), self.width, dropout)):
            found_ = f"parts that are equal one by one, but not together: {problem.text}"
            raise RefusedError(self.name, found_, "the results of the undivided block")
        divided = cuts_in_block(self.block, tuple(parts))
        undivided = {
            name: reasons.get(_parent(name), "no linear layer that feeds another one, or reads one")
            for name, p in self.block.named_parameters()
            if p.dim() > 1 and name not in divided
        }
        return BlockSplit((self.name,), tuple(parts), undivided)

    def _with_draws(self, part: DividedPart) -> DividedPart:
        try:
            found = replace(part, draws=self.proof.draws((part,), self.width))
            problem = self.proof.problem((found,), self.width, dropout=True) if found.draws else None
        except ValueError as error:
            problem = Inequality(str(error))
        if problem is not None:
            raise RefusedError(
                f"{self.name}: before {part.row.path}", f"dropout whose mask cannot be divided: {problem.text}",
                "dropout with probability 0 between these linear layers, or masks over heads or features",
            )  # fmt: skip
        return found

    def _part(self, row: str, width: int) -> tuple[DividedPart | None, str]:
        """Find the divided part that ends with a given row-parallel linear layer.

        Arguments:
            row: path of the layer.

        Returns:
            The part with the fewest divided attributes and an empty text, or None and the reason.
        """
        reason: Inequality | None = None
        for part in self._proposals(row, width):
            problem = self.proof.problem((part,), width)
            while problem is not None and self._may_sum(problem.weight, part):
                part = replace(part, summed=(*part.summed, problem.weight))
                problem = self.proof.problem((part,), width)
            if problem is None:
                return part, ""
            if reason is None or (problem.is_a_difference and not reason.is_a_difference):
                reason = problem
        return None, reason.text if reason else ""

    def _may_sum(self, weight: str, part: DividedPart) -> bool:
        divided = cuts_in_block(self.block, (part,))
        return bool(weight) and weight not in (*divided, *part.summed) and len(part.summed) < _MOST_SUMMED

    def _proposals(self, row: str, width: int) -> Iterator[DividedPart]:
        linear = self.linears[row]
        groups: dict[int, list[str]] = {}
        for path in linear.sources:
            groups.setdefault(id(self.linears[path].x), []).append(path)
        end = DividedLinear(row, Cut(1 - linear.features_out))
        columns = [
            tuple(
                tuple(DividedLinear(path, Cut(self.linears[path].features_out, pieces[path])) for path in group)
                for group in groups.values()
            )
            for pieces in (dict(zip(linear.sources, option, strict=True)) for option in self._pieces(row))
        ]
        paths = (*linear.sources, row)
        attributes = [
            DividedAttribute(path, name, value)
            for path in self._owners(paths)
            for name, value in numbers(self.block.get_submodule(path))
            if value >= width and value % width == 0
        ]
        asking = tuple(dict.fromkeys(_parent(path) for path in linear.sources))
        for count in range(_MOST_ATTRIBUTES + 1):
            for narrowed in ((), asking):
                for divided in combinations(attributes, count):
                    for groups_ in columns:
                        yield DividedPart(groups_, end, divided, narrowed)

    def _pieces(self, row: str) -> Iterator[tuple[int, ...]]:
        """Yield candidates for the number of fused projections in each source layer.

        A source is a linear layer that the row-parallel layer reads from. It may be a fused projection (such as
        query, key and value) if its output size is a multiple of the row-parallel layer's input size.

        Arguments:
            row: path of the row-parallel layer.

        Yields:
            One number for each source of `row`: that multiple, or 1 for a source that is not fused.
        """
        read = self._weight(row).shape[1 - self.linears[row].features_out]
        made = [self._weight(path).shape[self.linears[path].features_out] for path in self.linears[row].sources]
        return product(*((n // read, 1) if n > read and n % read == 0 else (1,) for n in made))

    def _owners(self, paths: tuple[str, ...]) -> list[str]:
        """Paths of the modules that contain some linear layers.

        They go from each layer's parent to the layers' common ancestor, which is included.

        Arguments:
            paths: paths of the layers.
        """
        chains = [list(_around(path)) for path in paths]
        common = max(set.intersection(*map(set, chains)), key=len)
        return list(dict.fromkeys(path for one in chains for path in one if len(path) >= len(common)))

    def _weight(self, path: str) -> Tensor:
        weight: Tensor = self.block.get_submodule(path).weight  # type: ignore[assignment]
        return weight

    # -- the block's linear layers

    def _look(self) -> dict[str, _Linear]:
        """Linear layers that run once in a forward of the block, by path, in order.

        Raises:
            RefusedError: the block cannot run alone, on the CPU in float64.
        """
        block = self.proof.copy()
        seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

        def note(path: str, given: Any, made: Any) -> None:
            if len(given) == 1 and isinstance(given[0], Tensor) and isinstance(made, Tensor):
                seen.setdefault(path, []).append((given[0], made))

        for path, module in block.named_modules():
            if has_matrix(module):
                module.register_forward_hook(lambda _, given, made, path=path: note(path, given, made))
        args, kwargs, _ = self.proof.call.fresh(all_leaves=True)
        try:
            block(*args, **kwargs)
        except Exception as error:
            raise RefusedError(self.name, told(error), "a block that runs alone, on the CPU in float64") from error
        once = {path: runs[0] for path, runs in seen.items() if len(runs) == 1}
        ways = {path: features_out(block.get_submodule(path), *run) for path, run in once.items()}
        nodes = {once[path][1].grad_fn: path for path, way in ways.items() if way is not None}
        return {
            path: _Linear(way, once[path][0], _sources(once[path][0], nodes))
            for path, way in ways.items()
            if way is not None
        }


def features_out(module: nn.Module, x: Tensor, y: Tensor, tolerance: float = TOLERANCE) -> int | None:
    """Index of the weight's output-feature dimension, if a module is a linear layer.

    Arguments:
        x: input of one call of the module.
        y: output of that call.
        tolerance: for `y`, relative to its expected elements and to the largest of them.

    Returns:
        0 or 1. None if the module computes anything but a product with its weight, plus a bias.
    """
    weight, bias = module._parameters["weight"], module._parameters.get("bias")
    if weight is None or not x.is_floating_point() or not x.dim():
        return None
    for dim, matrix in ((0, weight.t()), (1, weight)):
        if x.shape[-1] == matrix.shape[0] and y.shape == (*x.shape[:-1], matrix.shape[1]):
            product = x.detach() @ matrix.detach()
            product = product if bias is None else product + bias.detach()
            if torch.allclose(product, y.detach(), rtol=tolerance, atol=tolerance * float(product.abs().max())):
                return dim
    return None


def _sources(x: Tensor, nodes: Mapping[Any, str]) -> tuple[str, ...]:
    """Paths of the nearest linear layers that a tensor depends on, in execution order.

    Arguments:
        nodes: path of each linear layer, by the autograd node of its output.
    """
    found = nearest_nodes([x.grad_fn], nodes)
    return tuple(path for node, path in nodes.items() if node in found)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _around(path: str) -> Iterator[str]:
    while path:
        path = _parent(path)
        yield path

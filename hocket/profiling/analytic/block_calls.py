"""Repeated blocks of a model, and the arguments of one call of each.

Rules of this file: blocks are found in the module tree and in one run, never by the names of classes. The model is
unchanged.
"""

import copy
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hocket.profiling.capture.recorded_graph import flatten


@dataclass
class BlockCall:
    """Arguments of one call of a block, and the use of its results.

    Attributes:
        needs: for each leaf of the arguments, True if it is a tensor that needs a gradient.
        used: numbers of the result leaves that receive a gradient.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    needs: list[bool] = field(default_factory=list)
    used: frozenset[int] = frozenset()

    def fresh(
        self, all_leaves: bool = False, cut: Callable[[int, Tensor], Tensor] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        """Copy the arguments to the CPU, floating-point tensors as float64.

        Arguments:
            all_leaves: True to let all floating-point tensors require gradients, and not only those in `needs`.
            cut: function from a leaf's number (in pytree order) and its copy to the tensor that replaces the copy.

        Returns:
            Positional arguments, keyword arguments, and a list of the tensors among them that require gradients.
        """
        leaves: list[Tensor] = []
        needs = iter(enumerate(self.needs))

        def leaf(x: Any) -> Any:
            number, needed = next(needs)
            if not isinstance(x, Tensor):
                return x
            y = x.detach().cpu().clone()
            y = y if cut is None else cut(number, y)
            if y.is_floating_point():
                y = y.double()
                if needed or all_leaves:
                    leaves.append(y.requires_grad_())
            return y

        args, kwargs = tree_map(leaf, copy.deepcopy((self.args, self.kwargs)))
        return args, kwargs, leaves


def calls_of_blocks(model: nn.Module, args: Any, kwargs: Any) -> dict[str, BlockCall]:
    """Return the first call of each repeated block of a model, by path of the block.

    Blocks are the outermost modules with a path that ends in a digit (such as "layers.3") and with at least two linear
    or embedding layers. The model runs twice.

    Arguments:
        args, kwargs: arguments of the model.
    """
    calls: dict[str, BlockCall] = {}
    made: dict[str, dict[Any, int]] = {}
    candidates = {path: model.get_submodule(path) for path in _candidates(model)}
    modes = [(module, module.training) for module in model.modules()]
    handles: list[Any] = []

    def keep(path: str, given: Any, named: Any) -> None:
        if path not in calls:
            calls[path] = BlockCall(*copy.deepcopy((given, dict(named))))

    def note(path: str, given: Any, named: Any) -> None:
        if path not in made:
            calls[path].needs = [_has_gradient(x) for x in tree_leaves((given, dict(named)))]

    def note_result(path: str, result: Any) -> None:
        made.setdefault(path, {x.grad_fn: i for i, x in enumerate(tree_leaves(result)) if _has_gradient(x)})

    try:
        model.eval()
        for path, module in candidates.items():
            handles.append(
                module.register_forward_pre_hook(lambda _, a, k, path=path: keep(path, a, k), with_kwargs=True)
            )
        with torch.no_grad(), torch.random.fork_rng():  # tensors with a gradient graph cannot be copied
            model(*args, **kwargs)
        while handles:
            handles.pop().remove()
        for path in calls:
            module = candidates[path]
            handles.append(
                module.register_forward_pre_hook(lambda _, a, k, path=path: note(path, a, k), with_kwargs=True)
            )
            handles.append(module.register_forward_hook(lambda _, __, result, path=path: note_result(path, result)))
        with torch.enable_grad(), torch.random.fork_rng():
            results = [x.grad_fn for _, x in flatten(model(*args, **kwargs))]
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    for path, nodes in made.items():
        # Attention weights that are returned and not used have a gradient graph, but no gradient.
        used = nearest_nodes(results, nodes) if len(nodes) > 1 else nodes
        calls[path].used = frozenset(nodes[node] for node in used)
    return calls


def nearest_nodes(starts: Iterable[Any], wanted: Container[Any]) -> set[Any]:
    """Return the wanted autograd nodes that are nearest upstream of some nodes.

    A start node that is wanted itself is among the results. Nodes behind a wanted node are not searched.
    """
    found, done, stack = set(), set(), list(starts)
    while stack:
        node = stack.pop()
        if node is None or node in done:
            continue
        done.add(node)
        if node in wanted:
            found.add(node)
        else:
            stack += [before for before, _ in node.next_functions]
    return found


def _has_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _candidates(model: nn.Module) -> list[str]:
    """Paths of a model's repeated blocks.

    These are the outermost modules with a path that ends in a digit and with at least two linear or embedding layers.
    """
    found: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if re.search(r"\d$", path) and not inside and sum(has_matrix(m) for m in module.modules()) >= 2:
            found.append(path)
    return found


def has_matrix(module: nn.Module) -> bool:
    """True if a module's only parameters are a weight matrix and perhaps a bias.

    The module may be a linear layer or an embedding.
    """
    if next(module.children(), None) is not None or not set(module._parameters) <= {"weight", "bias"}:
        return False
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 2 and weight.is_floating_point()


def alike(model: nn.Module, one: str, other: str) -> bool:
    """True if two blocks have equal classes, parameter shapes and integer attributes.

    An attribute may also be the block's own number in both. Such blocks can be divided in the same way.

    Arguments:
        one, other: paths of the blocks; they end with the block's number.
    """

    def shapes(path: str) -> Any:
        block = model.get_submodule(path)
        return type(block), [(name, p.shape) for name, p in block.named_parameters()]

    def sizes(path: str) -> dict[tuple[str, str], tuple[int, bool]]:
        own = int(re.findall(r"\d+$", path)[0])
        inside = model.get_submodule(path).named_modules()
        return {(place, name): (value, value == own) for place, m in inside for name, value in numbers(m)}

    a, b = sizes(one), sizes(other)
    return (
        shapes(one) == shapes(other)
        and a.keys() == b.keys()
        and all(a[k][0] == b[k][0] or (a[k][1] and b[k][1]) for k in a)
    )


def numbers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield names and values of the integer attributes of a module."""
    for name, value in vars(module).items():
        if type(value) is int:
            yield name, value

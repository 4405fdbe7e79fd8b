"""The repeated blocks of a model, and the arguments of one call of each.

Rules of this file: blocks are found in the module tree and in one run, never by the names of classes; the model is left as
it was.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


@dataclass
class BlockCall:
    """The arguments of one call of a block, and which of the tensors in them need gradients."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    needs: list[bool]

    def fresh(self, all_leaves: bool = False) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor]]:
        """Arguments of their own on the CPU, in float64, for one run, and the leaves among them that need gradients (or all do)."""
        leaves: list[Tensor] = []
        needs = iter(self.needs)

        def leaf(x: Any) -> Any:
            needed = next(needs)
            if not isinstance(x, Tensor):
                return x
            y = x.detach().cpu().clone()
            if y.is_floating_point():
                y = y.double()
                if needed or all_leaves:
                    leaves.append(y.requires_grad_())
            return y

        args, kwargs = tree_map(leaf, copy.deepcopy((self.args, self.kwargs)))
        return args, kwargs, leaves


def calls_of_blocks(model: nn.Module, args: Any, kwargs: Any) -> dict[str, BlockCall]:
    """The first call of each block, by path."""
    calls: dict[str, BlockCall] = {}
    candidates = _candidates(model)
    modes = [(module, module.training) for module in model.modules()]
    handles = []

    def keep(path: str, module: nn.Module, given: Any, named: Any) -> None:
        if path not in calls:
            calls[path] = BlockCall(*copy.deepcopy((given, dict(named))), [])

    def note(path: str, module: nn.Module, given: Any, named: Any) -> None:
        if not calls[path].needs:
            flat = tree_leaves((given, dict(named)))
            calls[path].needs = [isinstance(x, Tensor) and x.requires_grad for x in flat]

    try:
        model.eval()
        for hook, gradients in ((keep, False), (note, True)):  # tensors with a history cannot be copied
            for path in candidates:
                module = model.get_submodule(path)
                bound = lambda m, a, k, path=path, hook=hook: hook(path, m, a, k)  # noqa: E731
                handles.append(module.register_forward_pre_hook(bound, with_kwargs=True))
            with torch.set_grad_enabled(gradients), torch.random.fork_rng():
                model(*args, **kwargs)
            while handles:
                handles.pop().remove()
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return calls


def _candidates(model: nn.Module) -> list[str]:
    """Paths of the outermost numbered modules that hold at least two matrices."""
    found: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if re.search(r"\d$", path) and not inside and sum(has_matrix(m) for m in module.modules()) >= 2:
            found.append(path)
    return found


def has_matrix(module: nn.Module) -> bool:
    """Whether a module's own work is with a matrix, and perhaps a bias: it may be a linear layer."""
    if next(module.children(), None) is not None or not set(module._parameters) <= {"weight", "bias"}:
        return False
    weight = module._parameters.get("weight")
    return weight is not None and weight.dim() == 2 and weight.is_floating_point()


def alike(model: nn.Module, one: str, other: str) -> bool:
    """Whether two blocks may be divided alike: all is equal but their own numbers, which some blocks keep."""

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
    """The whole numbers among a module's attributes."""
    for name, value in vars(module).items():
        if type(value) is int:
            yield name, value

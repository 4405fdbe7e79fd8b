"""Entries of a parameter's optimizer state: which have its shape, and on which device they are kept."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["counts_on_device", "elementwise_keys", "moved", "part_of"]


def elementwise_keys(
    scalars: Mapping[str, Tensor], make: Callable[[Mapping[str, nn.Parameter]], Optimizer | None]
) -> dict[str, frozenset[str]]:
    """Find the optimizer state with an element for each element of a weight.

    For a weight without dimensions its shape does not tell. So the optimizer is tried on weights of two elements.

    Arguments:
        scalars: weights without dimensions, by name; for their dtype and device.
        make: makes the optimizer of some parameters.

    Returns:
        Keys of the optimizer state, by name of the weight; empty without weights.
    """
    tried = {name: nn.Parameter(torch.ones(2).to(weight)) for name, weight in scalars.items()}
    optimizer = make(tried) if tried else None
    if optimizer is None:
        return {}
    for p in tried.values():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return {
        name: frozenset(k for k, v in optimizer.state[p].items() if isinstance(v, Tensor) and v.shape == p.shape)
        for name, p in tried.items()
    }


def counts_on_device(optimizer: Optimizer, parameter: Tensor) -> bool:
    """True if a parameter's step counter is kept on the parameter's device, as in torch."""
    group = next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    return bool(group.get("fused") or group.get("capturable"))


def moved(value: object, device: torch.device | None) -> object:
    """Copy an entry of optimizer state to a device; None to let it stay where it is."""
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def part_of(value: object, shape: Sequence[int], run: tuple[int, int], elementwise: bool = False) -> object:
    """Cut an optimizer entry to a range of its weight's elements.

    Entries that do not have the weight's shape are returned unchanged.

    Arguments:
        value: entry of the unsharded optimizer state.
        shape: shape of the weight.
        run: (begin, end) of the elements.
        elementwise: True if the entry has an element for each element of the weight; only needed for a weight without
            dimensions, of which all entries may have the shape.
    """
    if isinstance(value, Tensor) and tuple(value.shape) == tuple(shape) and (value.dim() or elementwise):
        return value.reshape(-1)[slice(*run)]
    return value

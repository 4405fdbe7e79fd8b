"""Draws: dropout inside a divided part of a model, where every device must draw its part of one mask.

Rules of this file: a device draws the mask of the whole tensor and takes its part, so that masks are those of the undivided
model, and the random numbers that follow are the same on all devices. Attention with dropout is written out for that: the
fused kernels tell nobody what they drew.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Dropped = Callable[[Tensor, float], Tensor]


class _Dropping(TorchFunctionMode):
    """Asks `draws` wherever a function would draw a dropout mask, and then `dropped` instead of it."""

    def draws(self) -> bool:
        """True if the next mask is drawn here instead of by the function."""
        return True

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """A tensor with some elements zero and the others larger."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _WHOLE:  # from a mode above: look inside
            with self:
                return _WHOLE[func](args[0].dropped, *args[1], **args[2])
        if func in _PROBABILITY and _PROBABILITY[func](*args, **kwargs) > 0 and self.draws():
            return (self._attention if func in _ATTENTION else self._dropout)(args, kwargs)
        return func(*args, **kwargs)

    def _dropout(self, args: Any, kwargs: Any) -> Tensor:
        return _drop(self.dropped, *args, **kwargs)

    def _attention(self, args: Any, kwargs: Any) -> Tensor:
        return _attend(self.dropped, *args, **kwargs)


def _drop(dropped: Dropped, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    found = dropped(input, p)
    return input.copy_(found) if inplace else found


def _attend(
    dropped: Dropped,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as PyTorch documents it for scaled_dot_product_attention."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    if is_causal:
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    nothing = scores.isneginf().all(-1, keepdim=True)  # nobody may be attended to: zeros, as the kernels say
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return dropped(weights, dropout_p) @ value


@dataclass(frozen=True)
class MaskPlace:
    """Part of a mask: the divided dimension, the number of devices, and this device's index."""

    dim: int
    width: int
    rank: int

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Draw the whole mask and take the part; the backward keeps one byte for each element."""
        size = x.shape[self.dim]
        shape = (*x.shape[: self.dim], size * self.width, *x.shape[self.dim + 1 :])
        mask = torch.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), p, True)
        kept = mask.narrow(self.dim, self.rank * size, size) != 0
        return x * kept * (1 / (1 - p) if p < 1 else 0.0)


def dropout(place: MaskPlace, args: Any, kwargs: Any) -> Tensor:
    """torch.nn.functional.dropout of a part: one operation for whoever follows functions, as that is."""
    return _as_one(dropout, place, args, kwargs)


def scaled_dot_product_attention(place: MaskPlace, args: Any, kwargs: Any) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention of a part of the heads, in the same way."""
    return _as_one(scaled_dot_product_attention, place, args, kwargs)


def _as_one(function: Callable[..., Tensor], place: MaskPlace, args: Any, kwargs: Any) -> Tensor:
    relevant = (*args[:1], *kwargs.values())
    if torch.overrides.has_torch_function(relevant):
        found: Tensor = torch.overrides.handle_torch_function(function, relevant, place, args, kwargs)
        return found
    return _WHOLE[function](place.dropped, *args, **kwargs)


_RANDOM = (torch.rand, torch.randn, torch.bernoulli, Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_)
_WHOLE: dict[Any, Callable[..., Tensor]] = {dropout: _drop, scaled_dot_product_attention: _attend}
_ATTENTION = functional.scaled_dot_product_attention, scaled_dot_product_attention
_PROBABILITY: dict[Any, Callable[..., float]] = {
    functional.dropout: lambda input, p=0.5, training=True, inplace=False: p if training else 0.0,
    torch.dropout: lambda input, p, train: p if train else 0.0,
    functional.scaled_dot_product_attention: (
        lambda query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs: dropout_p
    ),
}


class MaskPart(_Dropping):
    """This device's part of each mask.

    Arguments:
        dims: for each mask that is drawn inside, in order, the dimension that is divided; None for one that is not.
    """

    def __init__(self, dims: Sequence[int | None], width: int, rank: int) -> None:
        super().__init__()
        self._dims, self._width, self._rank = iter(dims), width, rank
        self._dim = 0

    def draws(self) -> bool:
        """True if the next mask is divided."""
        dim = next(self._dims, None)
        self._dim = self._dim if dim is None else dim
        return dim is not None

    def _dropout(self, args: Any, kwargs: Any) -> Tensor:
        return dropout(MaskPlace(self._dim, self._width, self._rank), args, kwargs)

    def _attention(self, args: Any, kwargs: Any) -> Tensor:
        return scaled_dot_product_attention(MaskPlace(self._dim, self._width, self._rank), args, kwargs)


class Dice(_Dropping):
    """Random numbers from a generator of its own, so that simulated devices do not take turns at one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.multi_head_attention_forward:  # draws where nobody sees it
            kwargs = {**(kwargs or {}), "training": False}
        elif func in _RANDOM:
            kwargs = {**(kwargs or {}), "generator": self._draw}
        return super().__torch_function__(func, types, args, kwargs)

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Any mask."""
        mask = torch.rand(x.shape, generator=self._draw, dtype=torch.float64) >= p
        return x * mask.to(x.device, x.dtype) / (1 - p)


@dataclass(frozen=True)
class Draw:
    """One mask: the path of the innermost module around it, and its shape."""

    path: str
    shape: tuple[int, ...]


class _Listing(_Dropping):
    """Draws nothing, and notes what would be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Draw] = []
        self.inside = [""]

    def dropped(self, x: Tensor, p: float) -> Tensor:
        self.found.append(Draw(self.inside[-1], tuple(x.shape)))
        return x


@contextmanager
def _followed(module: nn.Module, inside: list[str]) -> Iterator[None]:
    handles = []

    def leave(*_: Any) -> None:
        inside.pop()

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, path=path: inside.append(path)))
        handles.append(part.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def draws_of(module: nn.Module, run: Callable[[], Any]) -> tuple[tuple[Draw, ...], Tensor]:
    """Masks that a run of a module draws, and the state of other random numbers after it, from a fixed state."""
    listing = _Listing()
    with torch.random.fork_rng(devices=[]), _followed(module, listing.inside), listing:
        torch.default_generator.manual_seed(0)
        run()
        return tuple(listing.found), torch.get_rng_state()


def divided_draws(whole: Sequence[Draw], part: Sequence[Draw], width: int) -> dict[str, tuple[int | None, ...]]:
    """Divided dimension of each mask drawn inside modules that draw divided masks themselves (see `MaskPart`).

    Raises:
        ValueError: the two draw different masks, and not because one is divided.
    """
    dims: list[int | None] = []
    for a, b in zip(whole, part, strict=True):
        differing = [d for d, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n]
        if a.path != b.path or any(a.shape[d] != width * b.shape[d] for d in differing) or len(differing) > 1:
            raise ValueError(f"masks of shape {a.shape} in {a.path} and {b.shape} in {b.path}")
        dims.append(differing[0] if differing else None)
    owners = dict.fromkeys(a.path for a, dim in zip(whole, dims, strict=True) if dim is not None)
    found = {}
    for owner in owners:
        inside = f"{owner}." if owner else ""
        found[owner] = tuple(
            dim if a.path == owner else None
            for a, dim in zip(whole, dims, strict=True)
            if a.path == owner or (a.path.startswith(inside) and a.path not in owners)
        )
    return found

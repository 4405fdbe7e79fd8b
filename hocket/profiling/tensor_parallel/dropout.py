"""Dropout inside tensor-parallel layers: each device uses its part of one mask.

Rules of this file: a device draws the mask of the whole tensor and takes its part. So masks are equal to those of the
undivided model, and the random numbers that follow are the same on all devices. Attention with dropout is computed by
separate operations, because the fused kernels do not give out their masks.
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
    """Base of modes that replace the dropout masks of functions.

    The mode calls `draws` before each mask. If the result is True, `dropped` applies dropout in place of the function.
    """

    def draws(self) -> bool:
        """True if this mode, and not the function, draws the next mask."""
        return True

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Return a tensor with some elements set to zero and the others scaled up."""
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
    """Attention, as PyTorch documents `scaled_dot_product_attention`."""
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
    nothing = scores.isneginf().all(-1, keepdim=True)  # rows whose keys are all masked: zeros, as from the kernels
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return dropped(weights, dropout_p) @ value


@dataclass(frozen=True)
class MaskPlace:
    """Place of a rank's part in a mask: divided dimension, number of ranks, rank."""

    dim: int
    width: int
    rank: int

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Draw a whole mask and apply this rank's part; autograd saves 1 byte an element."""
        size = x.shape[self.dim]
        shape = (*x.shape[: self.dim], size * self.width, *x.shape[self.dim + 1 :])
        mask = torch.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), p, True)
        kept = mask.narrow(self.dim, self.rank * size, size) != 0
        return x * kept * (1 / (1 - p) if p < 1 else 0.0)


def dropout(place: MaskPlace, args: Any, kwargs: Any) -> Tensor:
    """`nn.functional.dropout` of a rank's part: one operation for function modes."""
    return _as_one(dropout, place, args, kwargs)


def scaled_dot_product_attention(place: MaskPlace, args: Any, kwargs: Any) -> Tensor:
    """`scaled_dot_product_attention` of some heads: one operation for function modes."""
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
    """Mode that gives this device its part of each dropout mask.

    Arguments:
        dims: the divided dimension of each mask drawn inside, in order; None for a mask that is not divided.
    """

    def __init__(self, dims: Sequence[int | None], width: int, rank: int) -> None:
        super().__init__()
        self._dims, self._width, self._rank = iter(dims), width, rank
        self._dim = 0

    def draws(self) -> bool:
        """Go to the next mask; True if it is divided, so that this rank takes its part."""
        dim = next(self._dims, None)
        self._dim = self._dim if dim is None else dim
        return dim is not None

    def _dropout(self, args: Any, kwargs: Any) -> Tensor:
        return dropout(MaskPlace(self._dim, self._width, self._rank), args, kwargs)

    def _attention(self, args: Any, kwargs: Any) -> Tensor:
        return scaled_dot_product_attention(MaskPlace(self._dim, self._width, self._rank), args, kwargs)


class Dice(_Dropping):
    """Mode with its own random generator: simulated ranks would share the default one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draw = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.multi_head_attention_forward:  # it draws its mask inside, where this mode does not see it
            kwargs = {**(kwargs or {}), "training": False}
        elif func in _RANDOM:
            kwargs = {**(kwargs or {}), "generator": self._draw}
        return super().__torch_function__(func, types, args, kwargs)

    def dropped(self, x: Tensor, p: float) -> Tensor:
        """Apply a mask of independent elements, drawn from the mode's own generator."""
        mask = torch.rand(x.shape, generator=self._draw, dtype=torch.float64) >= p
        return x * mask.to(x.device, x.dtype) / (1 - p)


@dataclass(frozen=True)
class Draw:
    """One mask: the path of the innermost module around it, and its shape."""

    path: str
    shape: tuple[int, ...]


class _Listing(_Dropping):
    """Mode that draws no masks and records each mask that would be drawn."""

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
    """Dropout masks of one run of a module, and the random generator's state after it.

    The run starts from a fixed seed and draws no masks, so the state depends on other random numbers only.
    """
    listing = _Listing()
    with torch.random.fork_rng(devices=[]), _followed(module, listing.inside), listing:
        torch.default_generator.manual_seed(0)
        run()
        return tuple(listing.found), torch.get_rng_state()


def divided_draws(whole: Sequence[Draw], part: Sequence[Draw], width: int) -> dict[str, tuple[int | None, ...]]:
    """Divided dimension of each dropout mask (None for none), by path of the module.

    The masks of the whole module are compared with those of one rank's part. Modules without divided masks are left
    out; the module around them lists their masks, as `MaskPart` needs it.

    Raises:
        ValueError: the masks of the two runs differ in their modules, or in more than one divided dimension.
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

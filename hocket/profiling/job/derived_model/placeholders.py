"""Placeholders: zeros without memory, in place of weights on torch's `meta` device.

A job file may create its model under `torch.device("meta")`, where tensors have shapes and no values. A run that reads
its weights from files then needs memory for the weights of its own stages alone: capturing works with placeholders, and
the stages of a worker replace their placeholders by tensors of their own.
A placeholder is one zero that is expanded to the shape of the weight, so all of its strides are 0.
"""

import torch
from torch import Tensor, nn

from hocket.errors import InputError


def on_meta(model: nn.Module) -> bool:
    """True if a parameter or buffer of the model is on `meta`."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def with_placeholders(model: nn.Module) -> None:
    """Replace parameters on `meta` by placeholders, and buffers by zeros; tied parameters stay tied.

    Raises:
        InputError: a buffer on `meta` is in no state dict, so no file has its values.
    """
    made: dict[int, Tensor] = {}
    for place, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is not None and p.is_meta:
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(placeholder(p), requires_grad=p.requires_grad)
                module._parameters[key] = made[id(p)]  # type: ignore[assignment]
        for key, b in module._buffers.items():
            if b is None or not b.is_meta:
                continue
            if key in module._non_persistent_buffers_set:
                name = f"{place}.{key}" if place else key
                raise InputError(
                    "Job.model",
                    f"the buffer {name!r} on `meta`, which is in no state dict",
                    "a buffer with values",
                    f"Create {place or 'the model'!r} outside of torch.device('meta').",
                )
            module._buffers[key] = made.setdefault(id(b), torch.zeros(b.shape, dtype=b.dtype))


def placeholder(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Make a placeholder with the shape of a tensor, and by default with its type."""
    return torch.zeros((), dtype=dtype or like.dtype).expand(like.shape)


def is_placeholder(tensor: Tensor) -> bool:
    """True for a tensor of several elements that are one element in memory."""
    return tensor.numel() > 1 and not any(tensor.stride())


def fill(tensor: Tensor) -> None:
    """Give a placeholder memory of its own; other tensors stay as they are."""
    if is_placeholder(tensor):
        tensor.data = torch.zeros(tensor.shape, dtype=tensor.dtype)

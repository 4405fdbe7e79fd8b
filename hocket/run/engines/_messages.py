"""Messages: what goes from device to device, as one contiguous tensor each.

A border of one tensor is sent as it is, if its bytes lie side by side in whatever order, and arrives in that order; a
border of several is packed into one tensor of bytes. Both sides know the layout from the captured model, for full and for
ragged microbatches: no sizes are sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.plan.plan import Plan
from hocket.profile.capture import Captured
from hocket.profile.layout import Dims, inverse, memory_order
from hocket.program.instruction import Value, What
from hocket.run.split import StagePart

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Layout:
    """Shapes, types, places and orders in memory (see profile/layout.py) of the tensors of one border."""

    shapes: tuple[Dims, ...]
    orders: tuple[Dims, ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    size_bytes: int

    @classmethod
    def of(cls, tensors: Sequence[tuple[Dims, Dims, torch.dtype]]) -> "Layout":
        """The layout of tensors of these shapes, strides (empty for the usual ones) and types."""
        offsets, at = [], 0
        for shape, _, dtype in tensors:
            offsets.append(at)
            at += -(-prod(shape) * dtype.itemsize // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        orders = tuple(memory_order(shape, stride) for shape, stride, _ in tensors)
        return cls(tuple(s for s, _, _ in tensors), orders, tuple(d for _, _, d in tensors), tuple(offsets), at)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """One contiguous tensor with what is in these.

        Raises:
            InternalError: a tensor of another shape or type than the layout says.
        """
        for tensor, shape, dtype in zip(tensors, self.shapes, self.dtypes, strict=True):
            if tensor.shape != shape or tensor.dtype != dtype:
                raise InternalError(f"a border tensor is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")
        if len(tensors) == 1:
            return tensors[0].permute(self.orders[0]).contiguous()
        buffer = self.empty(tensors[0].device)
        for view, tensor in zip(self.unpack(buffer), tensors, strict=True):
            view.copy_(tensor)
        return buffer

    def empty(self, device: torch.device) -> Tensor:
        """A tensor that a message can be received into."""
        if len(self.shapes) == 1:
            return torch.empty(self._lying(0), dtype=self.dtypes[0], device=device)
        return torch.empty(self.size_bytes, dtype=torch.uint8, device=device)

    def within(self, memory: Tensor) -> Tensor:
        """The same in `size_bytes` bytes that are there already."""
        return self._view(memory, 0) if len(self.shapes) == 1 else memory

    def unpack(self, message: Tensor) -> tuple[Tensor, ...]:
        """The tensors in a message, as views of it."""
        if len(self.shapes) == 1:
            return (message.permute(inverse(self.orders[0])),)
        return tuple(self._view(message, k).permute(inverse(order)) for k, order in enumerate(self.orders))

    def _view(self, buffer: Tensor, k: int) -> Tensor:
        """Tensor k in a message's bytes, its dimensions in the order in which they lie in memory."""
        at, size_bytes = self.offsets[k], prod(self.shapes[k]) * self.dtypes[k].itemsize
        return buffer[at : at + size_bytes].view(self.dtypes[k]).view(self._lying(k))

    def _lying(self, k: int) -> Dims:
        """The shape of tensor k with its dimensions in the order in which they lie in memory."""
        return tuple(self.shapes[k][d] for d in self.orders[k])


class Layouts:
    """The layouts of all borders of one device."""

    def __init__(self, captured: Captured, plan: Plan, parts: Mapping[int, StagePart]) -> None:
        self._captured, self._plan, self._parts = captured, plan, parts
        self._known: dict[tuple[What, int, int, int], Layout] = {}

    def of(self, value: Value) -> Layout:
        """The layout of an activation or gradient that this device sends or receives."""
        samples = self._plan.samples(value.index)
        key = (value.what, value.stage, value.part, samples)
        if key not in self._known:
            tensor = self._captured.for_size(samples).tensor
            self._known[key] = Layout.of(
                [(tensor[name].shape, tensor[name].stride, tensor[name].dtype) for name in self._names(value)]
            )
        return self._known[key]

    def _names(self, value: Value) -> tuple[str, ...]:
        source, target = self._parts.get(value.stage), self._parts.get(value.part)
        if value.what is What.ACTIVATION:
            names = source.leaving[value.part] if source else target.arriving[value.stage] if target else None
        elif value.what is What.GRADIENT:
            flowing = (source.leaving_gradients, value.part) if source else None
            flowing = flowing or ((target.arriving_gradients, value.stage) if target else None)
            names = flowing[0][flowing[1]] if flowing else None
        else:
            names = None
        if names is None:
            raise InternalError(f"{value} does not go from device to device")
        return names

"""Messages: what goes from device to device, as one contiguous tensor each.

A border of one tensor is sent as it is, if its bytes lie side by side in whatever order, and arrives in that order; a
border of several is packed into one tensor of bytes. Both sides know the layout from the captured model, for full and for
ragged microbatches: no sizes are sent.

With `slices` a member of a tensor-parallel group sends a part of the message only (scatter/gather, dissertation section 4.4.1),
if all members have the same: a border inside of a divided part of a block, which is different on each, goes as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.profiling.capture.capture import Captured
from hocket.profiling.capture.memory_layout import Dims, inverse, memory_order
from hocket.program.instruction import Value, ValueKind
from hocket.program.order import piece
from hocket.program.rank_layout import RankLayout
from hocket.runtime.stage.stage_layout import StagePart
from hocket.runtime.tensor_parallel.shard_model import divided_tensors

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class BorderLayout:
    """Layout of the tensors of one stage boundary.

    Shapes, dtypes, offsets and memory orders (profiling/capture/memory_layout.py).

    Attributes:
        slices: into how many parts the message is cut, of which each member of a group sends its own; 1 for the whole.
    """

    shapes: tuple[Dims, ...]
    orders: tuple[Dims, ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    size_bytes: int
    slices: int = 1

    @classmethod
    def of(cls, tensors: Sequence[tuple[Dims, Dims, torch.dtype]], slices: int = 1) -> "BorderLayout":
        """The layout of tensors with these shapes, strides and types.

        Strides are empty for the usual ones.

        Arguments:
            slices: see the attribute; a message without a byte for each is not cut.
        """
        offsets, at = [], 0
        for shape, _, dtype in tensors:
            offsets.append(at)
            at += -(-prod(shape) * dtype.itemsize // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        orders = tuple(memory_order(shape, stride) for shape, stride, _ in tensors)
        shapes, dtypes = tuple(s for s, _, _ in tensors), tuple(d for _, _, d in tensors)
        whole = cls(shapes, orders, dtypes, tuple(offsets), at)
        if whole._slice_bytes(slices) * (slices - 1) >= whole.message_bytes:
            return whole
        return replace(whole, slices=slices)

    @property
    def message_bytes(self) -> int:
        """Bytes of a message: a border of one tensor is not aligned."""
        return prod(self.shapes[0]) * self.dtypes[0].itemsize if len(self.shapes) == 1 else self.size_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes of all slices; each has the same room, the last may not fill its own."""
        return self._slice_bytes(self.slices) * self.slices

    def room_of(self, member: int) -> slice:
        """The bytes, of `room_bytes`, that are a member's."""
        size_bytes = self._slice_bytes(self.slices)
        return slice(member * size_bytes, (member + 1) * size_bytes)

    def slice_of(self, member: int) -> slice:
        """The bytes of a message that a member sends."""
        room = self.room_of(member)
        return slice(room.start, min(room.stop, self.message_bytes))

    def _slice_bytes(self, slices: int) -> int:
        return -(-self.message_bytes // slices)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Pack tensors into one contiguous tensor.

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
        """Pack into existing memory of `size_bytes` bytes (slices: `room_bytes`)."""
        return self._view(memory, 0) if len(self.shapes) == 1 else memory

    def unpack(self, message: Tensor) -> tuple[Tensor, ...]:
        """The tensors in a message, as views of it."""
        if len(self.shapes) == 1:
            return (message.permute(inverse(self.orders[0])),)
        return tuple(self._view(message, k).permute(inverse(order)) for k, order in enumerate(self.orders))

    def _view(self, buffer: Tensor, k: int) -> Tensor:
        """Tensor k in a message's bytes, with its dimensions in memory order."""
        at, size_bytes = self.offsets[k], prod(self.shapes[k]) * self.dtypes[k].itemsize
        return buffer[at : at + size_bytes].view(self.dtypes[k]).view(self._lying(k))

    def _lying(self, k: int) -> Dims:
        """The shape of tensor k, with its dimensions in memory order."""
        return tuple(self.shapes[k][d] for d in self.orders[k])


class Layouts:
    """The layouts of all borders of one device."""

    def __init__(self, captured: Captured, layout: RankLayout, parts: Mapping[int, StagePart]) -> None:
        self._captured, self._layout, self._parts = captured, layout, parts
        self._known: dict[tuple[ValueKind, int, int, int], BorderLayout] = {}
        self._divided = divided_tensors(captured) if layout.slices else frozenset()

    def of(self, value: Value) -> BorderLayout:
        """The layout of an activation or gradient that this device sends or receives."""
        samples = self._layout.batches.samples(value.index, piece(self._layout.shapes, value.stage, value.part))
        key = (value.what, value.stage, value.part, samples)
        if key not in self._known:
            tensor, names = self._captured.for_size(samples).tensor, self._names(value)
            slices = self._layout.tensor if self._layout.slices and self._divided.isdisjoint(names) else 1
            self._known[key] = BorderLayout.of(
                [(tensor[name].shape, tensor[name].stride, tensor[name].dtype) for name in names], slices
            )
        return self._known[key]

    def _names(self, value: Value) -> tuple[str, ...]:
        source, target = self._parts.get(value.stage), self._parts.get(value.part)
        if value.what is ValueKind.ACTIVATION:
            names = source.leaving[value.part] if source else target.arriving[value.stage] if target else None
        elif value.what is ValueKind.GRADIENT:
            flowing = (source.leaving_gradients, value.part) if source else None
            flowing = flowing or ((target.arriving_gradients, value.stage) if target else None)
            names = flowing[0][flowing[1]] if flowing else None
        else:
            names = None
        if names is None:
            raise InternalError(f"{value} does not go from device to device")
        return names

"""Messages between devices; each is one contiguous tensor.

A stage boundary of one tensor is sent in its own memory order, without a copy if its memory is dense. A boundary of
several tensors is packed into one tensor of bytes. Both sides know the layout from the captured model, for full and for
ragged microbatches, so no sizes are sent.

With `slices`, a rank of a tensor-parallel group sends only a part of the message (scatter/gather, Narayanan's
dissertation, section 4.4.1). This requires that all ranks have the same tensors. A boundary inside a divided part of a
block differs between ranks, so it is sent whole.
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

    Attributes:
        shapes, dtypes: shape and dtype of each tensor.
        orders: memory order of each tensor's dimensions (profiling/capture/memory_layout.py).
        offsets: byte offset of each tensor in a packed message.
        size_bytes: bytes of a packed message.
        slices: number of equal slices of the message; each rank of a tensor-parallel group sends one of them. 1 if the
            message is sent whole.
    """

    shapes: tuple[Dims, ...]
    orders: tuple[Dims, ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    size_bytes: int
    slices: int = 1

    @classmethod
    def of(cls, tensors: Sequence[tuple[Dims, Dims, torch.dtype]], slices: int = 1) -> "BorderLayout":
        """Build the layout of tensors with these shapes, strides and dtypes.

        Arguments:
            tensors: (shape, strides, dtype) of each tensor; empty strides mean contiguous memory.
            slices: wanted number of slices. A message that is too short for a byte in each slice is not cut.
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
        """Bytes of a message; the message of a single tensor has no padding."""
        return prod(self.shapes[0]) * self.dtypes[0].itemsize if len(self.shapes) == 1 else self.size_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes of a buffer for all slices: equal space for each, also for a shorter last."""
        return self._slice_bytes(self.slices) * self.slices

    def room_of(self, member: int) -> slice:
        """Return the byte range of a rank's space in a buffer of `room_bytes`.

        Arguments:
            member: tensor-parallel rank.
        """
        size_bytes = self._slice_bytes(self.slices)
        return slice(member * size_bytes, (member + 1) * size_bytes)

    def slice_of(self, member: int) -> slice:
        """Return the byte range of the message that a tensor-parallel rank sends."""
        room = self.room_of(member)
        return slice(room.start, min(room.stop, self.message_bytes))

    def _slice_bytes(self, slices: int) -> int:
        return -(-self.message_bytes // slices)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Pack tensors into one contiguous tensor.

        A single tensor that is dense in memory is not copied.

        Raises:
            InternalError: a tensor's shape or dtype differs from the layout.
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
        """Allocate a tensor to receive a message into."""
        if len(self.shapes) == 1:
            return torch.empty(self._lying(0), dtype=self.dtypes[0], device=device)
        return torch.empty(self.size_bytes, dtype=torch.uint8, device=device)

    def within(self, memory: Tensor) -> Tensor:
        """Return the message in a buffer, as a view that `unpack` takes.

        Arguments:
            memory: uint8 tensor of `size_bytes` elements, or of `room_bytes` for slices.
        """
        return self._view(memory, 0) if len(self.shapes) == 1 else memory

    def unpack(self, message: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors in a message, as views of it."""
        if len(self.shapes) == 1:
            return (message.permute(inverse(self.orders[0])),)
        return tuple(self._view(message, k).permute(inverse(order)) for k, order in enumerate(self.orders))

    def _view(self, buffer: Tensor, k: int) -> Tensor:
        """Return tensor k as a view of a message's bytes, with dimensions in memory order."""
        at, size_bytes = self.offsets[k], prod(self.shapes[k]) * self.dtypes[k].itemsize
        return buffer[at : at + size_bytes].view(self.dtypes[k]).view(self._lying(k))

    def _lying(self, k: int) -> Dims:
        """Return the shape of tensor k, with its dimensions in memory order."""
        return tuple(self.shapes[k][d] for d in self.orders[k])


class Layouts:
    """Layouts of all stage boundaries of one device."""

    def __init__(self, captured: Captured, layout: RankLayout, parts: Mapping[int, StagePart]) -> None:
        self._captured, self._layout, self._parts = captured, layout, parts
        self._known: dict[tuple[ValueKind, int, int, int], BorderLayout] = {}
        self._divided = divided_tensors(captured) if layout.slices else frozenset()

    def of(self, value: Value) -> BorderLayout:
        """Return the layout of an activation or gradient that is sent or received."""
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

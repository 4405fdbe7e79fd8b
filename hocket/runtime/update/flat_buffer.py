"""Flat buffers: tensors side by side in one memory per dtype.

The memory is cut into equal parts, one per device, as reduce-scatter and all-gather require. So a part may begin inside
a tensor. A device's part of a tensor is a range of its elements, without its shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 16  # elements: an alignment that suits vector units and NCCL


class _Place(NamedTuple):
    """Place of a tensor in flat memory.

    Attributes:
        memory: number of the flat tensor.
        at: index of the first element in the flat tensor.
        shape: shape of the tensor.
    """

    memory: int
    at: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.at + prod(self.shape)


@dataclass(frozen=True)
class Flat:
    """Layout of tensors in flat memory.

    Attributes:
        dtypes: dtype of each flat tensor.
        sizes: number of elements of each flat tensor; a multiple of `parts`.
        places: place of each tensor.
        parts: number of equal parts of each flat tensor.
    """

    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]
    places: tuple[_Place, ...]
    parts: int = 1

    @classmethod
    def of(cls, tensors: Sequence[Tensor], parts: int = 1) -> "Flat":
        """Lay out tensors in this order, in one flat tensor for each dtype."""
        dtypes = list(dict.fromkeys(t.dtype for t in tensors))
        sizes, places = [0] * len(dtypes), []
        for t in tensors:
            memory = dtypes.index(t.dtype)
            places.append(_Place(memory, sizes[memory], tuple(t.shape)))
            sizes[memory] += _rounded(t.numel(), _ALIGNMENT)
        step = parts * _ALIGNMENT if parts > 1 else 1
        return cls(tuple(dtypes), tuple(_rounded(size, step) for size in sizes), tuple(places), parts)

    def of_types(self, dtypes: Sequence[torch.dtype]) -> "Flat":
        """Return the same layout for other dtypes.

        Arguments:
            dtypes: dtype of each tensor; equal for all tensors in the same flat tensor.
        """
        found = list(self.dtypes)
        for place, dtype in zip(self.places, dtypes, strict=True):
            found[place.memory] = dtype
        return replace(self, dtypes=tuple(found))

    def memory(self, device: torch.device) -> tuple[Tensor, ...]:
        """Allocate the flat tensors, filled with zeros."""
        pairs = zip(self.sizes, self.dtypes, strict=True)
        return tuple(torch.zeros(size, dtype=dtype, device=device) for size, dtype in pairs)

    def views(self, memory: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return all tensors as views of the flat tensors `memory`."""
        return tuple(memory[p.memory][p.at : p.end].view(p.shape) for p in self.places)

    def part(self, memory: Tensor, number: int) -> Tensor:
        """Return part `number` of one flat tensor, as a view."""
        size = memory.numel() // self.parts
        return memory[number * size : (number + 1) * size]

    def runs(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return the range of each tensor's elements that lie in part `number`.

        Each range is (begin, end), counted within the tensor. Begin and end are equal if the part has no element of
        the tensor.
        """
        found = []
        for p in self.places:
            size = self.sizes[p.memory] // self.parts
            first = min(max(p.at, number * size), p.end) - p.at
            last = max(min(p.end, (number + 1) * size), p.at) - p.at
            found.append((first, max(first, last)))
        return tuple(found)

    def pieces(self, parts: Sequence[Tensor], number: int) -> tuple[Tensor, ...]:
        """Return the elements of each tensor that lie in one device's parts.

        Arguments:
            parts: the device's part of each flat tensor.
            number: number of the part.

        Returns:
            A one-dimensional view for each tensor; empty if the part has no element of the tensor.
        """
        found = []
        for p, (first, last) in zip(self.places, self.runs(number), strict=True):
            at = p.at + first - number * (self.sizes[p.memory] // self.parts)
            found.append(parts[p.memory][at : at + last - first] if last > first else parts[p.memory][:0])
        return tuple(found)


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step

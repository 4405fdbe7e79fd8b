"""Flat buffers: tensors side by side in one piece of memory for each type.

The memory is cut into equal parts, one for each device.

Rules of this file: a part begins anywhere in a tensor, as parts must be equal to be scattered and gathered; what a device has of
a tensor is then one run of its numbers, without its shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 16  # elements: every tensor begins on a boundary that vector units and NCCL like


class _Place(NamedTuple):
    """Place of a tensor: its memory and first element."""

    memory: int
    at: int
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.at + prod(self.shape)


@dataclass(frozen=True)
class Flat:
    """See the head of this file.

    Attributes:
        dtypes, sizes: of each memory; sizes in elements, a multiple of `parts`.
        parts: into how many each is cut.
    """

    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]
    places: tuple[_Place, ...]
    parts: int = 1

    @classmethod
    def of(cls, tensors: Sequence[Tensor], parts: int = 1) -> "Flat":
        """A place for each tensor, in this order."""
        dtypes = list(dict.fromkeys(t.dtype for t in tensors))
        sizes, places = [0] * len(dtypes), []
        for t in tensors:
            memory = dtypes.index(t.dtype)
            places.append(_Place(memory, sizes[memory], tuple(t.shape)))
            sizes[memory] += _rounded(t.numel(), _ALIGNMENT)
        step = parts * _ALIGNMENT if parts > 1 else 1
        return cls(tuple(dtypes), tuple(_rounded(size, step) for size in sizes), tuple(places), parts)

    def of_types(self, dtypes: Sequence[torch.dtype]) -> "Flat":
        """Same places for tensors of other dtypes.

        One dtype for each tensor; equal within one memory.
        """
        found = list(self.dtypes)
        for place, dtype in zip(self.places, dtypes, strict=True):
            found[place.memory] = dtype
        return replace(self, dtypes=tuple(found))

    def memory(self, device: torch.device) -> tuple[Tensor, ...]:
        """Memory for all of them, of zeros."""
        pairs = zip(self.sizes, self.dtypes, strict=True)
        return tuple(torch.zeros(size, dtype=dtype, device=device) for size, dtype in pairs)

    def views(self, memory: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors in such memory, shaped as they are."""
        return tuple(memory[p.memory][p.at : p.end].view(p.shape) for p in self.places)

    def part(self, memory: Tensor, number: int) -> Tensor:
        """One part of one memory, as a view."""
        size = memory.numel() // self.parts
        return memory[number * size : (number + 1) * size]

    def runs(self, number: int) -> tuple[tuple[int, int], ...]:
        """Range of elements of each tensor in one part.

        Begin and end, equal if it has none.
        """
        found = []
        for p in self.places:
            size = self.sizes[p.memory] // self.parts
            first = min(max(p.at, number * size), p.end) - p.at
            last = max(min(p.end, (number + 1) * size), p.at) - p.at
            found.append((first, max(first, last)))
        return tuple(found)

    def pieces(self, parts: Sequence[Tensor], number: int) -> tuple[Tensor, ...]:
        """Elements of each tensor in the parts with this number.

        One part for each memory, as one-dimensional views.
        """
        found = []
        for p, (first, last) in zip(self.places, self.runs(number), strict=True):
            at = p.at + first - number * (self.sizes[p.memory] // self.parts)
            found.append(parts[p.memory][at : at + last - first] if last > first else parts[p.memory][:0])
        return tuple(found)


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step

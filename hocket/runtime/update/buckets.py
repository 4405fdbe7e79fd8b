"""Buckets of one stage: which weights and gradients lie side by side, and what of them is this device's.

Rules of this file: buckets are numbered in the order in which they are summed; memory is flat where something is summed over
devices or stepped in parts (flat_buffer.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.runtime.swapping.cuda_streams import has_streams
from hocket.runtime.update.flat_buffer import Flat


class Bucket:
    """Weight gradients of one bucket of one update, summed over microbatches so far.

    Attributes:
        gradients: one for each parameter of the bucket; None where none has arrived.
        flats: one tensor for each type, of which the gradients are views, if the bucket is summed over devices; else ().
        released: on a GPU, event behind the work of another stream that used them last; else None.
        parts: what of each is this device's when sums are scattered; else all.
    """

    __slots__ = ("flats", "gradients", "number", "parts", "released", "views")

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.gradients: list[Tensor | None] = [None] * size
        self.flats: tuple[Tensor, ...] = ()
        self.parts: tuple[Tensor, ...] = ()
        self.views: tuple[Tensor, ...] = ()
        self.released: torch.cuda.Event | None = None

    def own_part(self) -> None:
        """Before sums are scattered: this device's part gets memory of its own."""
        self.parts = tuple(torch.empty_like(part) for part in self.parts)

    def drop_whole(self) -> None:
        """Sums have been scattered: nothing but the part is needed any more."""
        self.gradients = [None if g is None else g.new_empty(0) for g in self.gradients]
        self.flats = self.views = ()


Ready = Callable[[Bucket], None]


class Buckets:
    """See the head of this file.

    Attributes:
        names: of each bucket's parameters; summed, scattered: of each, as given.
        part: this device's number.
        flats: where each bucket's weights lie, if they lie side by side; sums: where its gradients do.
        places: bucket and position in it, by name; runs: which numbers of each scattered parameter are this device's.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        names: Sequence[Sequence[str]],
        summed: Sequence[bool],
        scattered: Sequence[bool],
        part: tuple[int, int],
        long: Mapping[str, torch.dtype],
    ) -> None:
        """No memory yet.

        Arguments:
            tensors: trainable parameters by global name.
            names: of each bucket; every name in exactly one.
            summed: for each bucket, whether it is summed over devices.
            scattered: for each, whether this device gets a part of the sum only, and steps that part; none of them if empty.
            part: which part, of how many.
            long: type in which gradients are summed, by name.
        """
        if sorted(tensors) != sorted(name for bucket in names for name in bucket):
            raise InternalError(f"buckets {list(names)} are not a partition of {list(tensors)}")
        self.names, self.summed = tuple(tuple(bucket) for bucket in names), tuple(summed)
        self.scattered, self.part = tuple(scattered) or (False,) * len(self.names), part[0]
        self.places = {name: (b, k) for b, own in enumerate(self.names) for k, name in enumerate(own)}
        self.flats = tuple(
            Flat.of([tensors[name] for name in own], part[1] if scatters else 1)
            for own, scatters in zip(self.names, self.scattered, strict=True)
        )
        self.sums = tuple(
            flat.of_types([long[name] for name in own]) for own, flat in zip(self.names, self.flats, strict=True)
        )
        self.runs = {
            name: run for own, flat in self.sharded() for name, run in zip(own, flat.runs(self.part), strict=True)
        }
        self._device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        self._free: dict[int, list[Bucket]] = {b: [] for b in range(len(self.names))}

    def sharded(self) -> Iterator[tuple[tuple[str, ...], Flat]]:
        """Names and places of each bucket of which replicas step a part each."""
        for names, flat, scatters in zip(self.names, self.flats, self.scattered, strict=True):
            if scatters and names:
                yield names, flat

    def steps(self, name: str) -> bool:
        """True if this device steps a part of the weight."""
        first, last = self.runs.get(name, (0, 1))
        return first < last

    def part_of(self, name: str, tensor: Tensor) -> Tensor:
        """Part of a whole weight that this device steps."""
        return tensor.reshape(-1)[slice(*self.runs[name])] if name in self.runs else tensor

    def named(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """The gradients in a bucket that this device's step is to use, by name."""
        names, own = self.names[bucket.number], bucket.gradients
        if self.scattered[bucket.number]:
            own = list(self.flats[bucket.number].pieces(bucket.parts, self.part))
        for name, arrived, gradient in zip(names, bucket.gradients, own, strict=True):
            if arrived is not None and gradient is not None and self.steps(name):
                yield name, gradient

    def take(self, number: int) -> Bucket:
        """An empty bucket."""
        if self._free[number]:
            bucket = self._free[number].pop()
            if bucket.released is not None:
                torch.cuda.current_stream(self._device).wait_event(bucket.released)
                bucket.released = None
            return bucket
        bucket = Bucket(number, len(self.names[number]))
        if self.summed[number]:
            flat = self.sums[number]
            bucket.flats = bucket.parts = flat.memory(self._device)
            bucket.views = flat.views(bucket.flats)
            if self.scattered[number]:
                bucket.parts = tuple(flat.part(memory, self.part) for memory in bucket.flats)
        return bucket

    def added(self, number: int, buckets: Sequence[Bucket]) -> Bucket:
        """Sum of gradients of the same weights, as a bucket of this stage.

        Added in the given order, in new memory.
        """
        total = Bucket(number, len(self.names[number]))
        with torch.no_grad():
            for position in range(len(total.gradients)):
                for bucket in buckets:
                    gradient, before = bucket.gradients[position], total.gradients[position]
                    if gradient is not None:
                        total.gradients[position] = gradient.clone() if before is None else before.add_(gradient)
        return total

    def recycle(self, bucket: Bucket, elsewhere: bool = False) -> None:
        """Release sums: their flat memory is reused for a later update.

        Arguments:
            elsewhere: another lane of compute than that of the stage used them last.
        """
        if bucket.flats:
            if elsewhere and has_streams(self._device):
                bucket.released = torch.cuda.current_stream(self._device).record_event()
            bucket.gradients = [None] * len(bucket.gradients)
            self._free[bucket.number].append(bucket)

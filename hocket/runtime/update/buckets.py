"""Gradient buckets of one stage: memory of gradients, and this device's shard.

Buckets are numbered in the order of their all-reduces. Memory is flat (flat_buffer.py) if gradients are summed over
devices or the step is sharded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.runtime.swapping.cuda_streams import has_streams
from hocket.runtime.update.flat_buffer import Flat


class Bucket:
    """Weight gradients of one bucket of one update, summed over microbatches so far.

    Attributes:
        number: number of the bucket in its stage.
        gradients: gradient of each parameter of the bucket; None if it is not computed yet.
        flats: flat memory, one tensor for each dtype, if the bucket is summed over devices; else (). The gradients are
            views of it.
        parts: this device's shard of each flat tensor, if the sum is reduce-scattered; else the whole tensors.
        views: view of each parameter's gradient in the flat memory.
        released: on a GPU, event after the work of another stream that used the memory last; else None.
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
        """Give this device's shard its own memory, before a reduce-scatter."""
        self.parts = tuple(torch.empty_like(part) for part in self.parts)

    def drop_whole(self) -> None:
        """Free everything but the shard, after a reduce-scatter."""
        self.gradients = [None if g is None else g.new_empty(0) for g in self.gradients]
        self.flats = self.views = ()


Ready = Callable[[Bucket], None]


@dataclass(frozen=True)
class GradientBucket:
    """Parameters of a stage with gradients in one bucket.

    Attributes:
        names: global names of the trainable parameters.
        summed: True if the bucket is summed over devices and therefore in flat memory.
        scattered: True if the sum is reduce-scattered, and this device updates only its shard of the weights.
        tied: names of the parameters that get a gradient in this stage or in another one with the same weights.
    """

    names: tuple[str, ...]
    summed: bool = False
    scattered: bool = False
    tied: Set[str] = frozenset()


class Buckets:
    """Gradient buckets of one stage.

    Attributes:
        names: names of each bucket's parameters.
        summed: for each bucket, True if it is summed over devices.
        scattered: for each bucket, True if its sum is reduce-scattered.
        tied: for each bucket, names of tied parameters that get a gradient in some stage.
        part: number of this device's shard.
        flats: layout of each bucket's weights in flat memory.
        sums: layout of each bucket's gradients in flat memory.
        places: (bucket, position in it) by parameter name.
        runs: (begin, end) of the elements of a parameter that are in this device's shard, by parameter name, for
            scattered buckets.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        buckets: Sequence[GradientBucket],
        part: tuple[int, int],
        long: Mapping[str, torch.dtype],
    ) -> None:
        """Compute the layouts, without allocating memory.

        Arguments:
            tensors: trainable parameters by global name.
            buckets: buckets of the stage; every name is in exactly one bucket.
            part: (number of this device's shard, number of shards).
            long: dtype in which gradients are summed, by parameter name.
        """
        self.names, self.summed = tuple(b.names for b in buckets), tuple(b.summed for b in buckets)
        self.scattered, self.part = tuple(b.scattered for b in buckets), part[0]
        self.tied = tuple(b.tied for b in buckets)
        if sorted(tensors) != sorted(name for own in self.names for name in own):
            raise InternalError(f"buckets {list(self.names)} are not a partition of {list(tensors)}")
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
        """Yield names and layout of each bucket with a sharded step."""
        for names, flat, scatters in zip(self.names, self.flats, self.scattered, strict=True):
            if scatters and names:
                yield names, flat

    def steps(self, name: str) -> bool:
        """True if this device's optimizer updates the weight, or a shard of it."""
        first, last = self.runs.get(name, (0, 1))
        return first < last

    def part_of(self, name: str, tensor: Tensor) -> Tensor:
        """Return the part of a whole weight that this device's optimizer updates.

        For a scattered bucket it is a one-dimensional range of elements, else the weight itself.
        """
        return tensor.reshape(-1)[slice(*self.runs[name])] if name in self.runs else tensor

    def named(self, bucket: Bucket) -> Iterator[tuple[str, Tensor]]:
        """Yield (parameter name, gradient) for this device's optimizer step.

        Gradients of a scattered bucket are one-dimensional parts, see `part_of`.
        """
        names, own = self.names[bucket.number], bucket.gradients
        if self.scattered[bucket.number]:
            own = list(self.flats[bucket.number].pieces(bucket.parts, self.part))
        for name, arrived, gradient in zip(names, bucket.gradients, own, strict=True):
            if arrived is not None and gradient is not None and self.steps(name):
                yield name, gradient

    def take(self, number: int) -> Bucket:
        """Return an empty bucket with this number, with reused memory if possible."""
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
        """Sum gradients of shared weights into a new bucket of this stage.

        They are added in the given order, in new memory.

        Arguments:
            number: number of the new bucket.
            buckets: the buckets of all stages that share the weights.
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
        """Release a bucket; its flat memory is reused for a later update.

        Arguments:
            elsewhere: True if another compute lane than the stage's used the bucket last.
        """
        if bucket.flats:
            if elsewhere and has_streams(self._device):
                bucket.released = torch.cuda.current_stream(self._device).record_event()
            bucket.gradients = [None] * len(bucket.gradients)
            self._free[bucket.number].append(bucket)

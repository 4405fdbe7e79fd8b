"""Extents: the bytes of memory behind a value, and copies of them.

Memory is identified by its storage, and data keep their place in it. A storage that is freed and allocated again is the
same object, so autograd's graph, aliases and optimizers find their data. This file does not decide whether a storage
may be freed.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.profiling.capture.storage_tracker import storage_key
from hocket.runtime.stage.stash import Stash
from hocket.runtime.update.buckets import Bucket
from hocket.runtime.update.slots import WeightSlot
from hocket.runtime.update.weight_versions import StageWeights

_ALIGNMENT_BYTES = 16  # of the widest dtype
_CHUNK_BYTES = 2**20
"""Bytes that are copied at once if a simulated link delays the copies."""

Pace = Callable[[int], None]
"""Callback with copied bytes; it returns when a simulated link has carried them."""


@dataclass(frozen=True)
class Extent:
    """Bytes `start` to `stop` of a storage.

    Attributes:
        reference: the storage. The reference is weak, because a backward frees saved activations one by one.
        key: identity of the storage while it exists.
    """

    reference: weakref.ref[torch.UntypedStorage]
    key: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Number of bytes of the extent."""
        return self.stop - self.start

    @property
    def alive(self) -> bool:
        """True if the storage still exists."""
        return self.reference() is not None

    @property
    def storage(self) -> torch.UntypedStorage:
        """Torch storage that has these bytes.

        Raises:
            InternalError: the storage was destroyed.
        """
        found = self.reference()
        if found is None:
            raise InternalError("the storage of an extent was destroyed")
        return found


def extents_of(thing: Any, device: torch.device) -> tuple[Extent, ...]:
    """Return the device memory behind a value, each byte once.

    Arguments:
        thing: the engine's object for the value (hocket/runtime/stage/device.py).
        device: memory on other devices, such as an optimizer's counters on the CPU, is left out.
    """
    found: dict[int, tuple[torch.UntypedStorage, list[tuple[int, int]]]] = {}
    for storage, start, stop in _pieces(thing):
        if storage.device == device or (storage.device.type == device.type and device.index is None):
            found.setdefault(storage._cdata, (storage, []))[1].append((start, stop))
    return tuple(
        Extent(weakref.ref(storage), key, start, stop)
        for key, (storage, pieces) in found.items()
        for start, stop in _joined(sorted(pieces))
    )


def _pieces(thing: Any) -> Iterator[tuple[torch.UntypedStorage, int, int]]:
    if isinstance(thing, Stash):
        for storage in thing.storages():
            yield storage, 0, storage.nbytes()
        return
    for tensor in _tensors(thing):
        first = int(tensor.storage_offset()) * tensor.element_size()
        yield tensor.untyped_storage(), first, first + _span_bytes(tensor)


def _tensors(thing: Any) -> Iterable[Tensor]:
    match thing:
        case tuple():
            return thing
        case dict():
            return thing.values()
        case WeightSlot():
            return thing.data
        case Bucket():
            return thing.views or [g for g in thing.gradients if g is not None]
        case StageWeights():
            return thing.apart()
    if hasattr(thing, "flats"):
        return tuple(thing.flats)
    raise InternalError(f"a {type(thing).__name__} is not known to have memory")


def _span_bytes(tensor: Tensor) -> int:
    """Return the number of bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _joined(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge ranges (start, stop) that overlap or touch; yield them in ascending order.

    Arguments:
        pieces: ranges sorted by start.
    """
    start, stop = pieces[0]
    for first, last in pieces[1:]:
        if first > stop:
            yield start, stop
            start, stop = first, last
        stop = max(stop, last)
    yield start, stop


def copy_out(extents: Sequence[Extent], buffer: Tensor, pace: Pace | None = None) -> None:
    """Copy device memory to a host buffer.

    On a GPU the copies run asynchronously in the current stream.

    Arguments:
        extents: source, in the layout of `_offsets`.
        buffer: target, a uint8 tensor.
        pace: delays the copies as a simulated link would; None for no delay.
    """
    for extent, held in _places(extents, buffer):
        _copy(held, _bytes_of(extent), pace)


def copy_in(extents: Sequence[Extent], buffer: Tensor, pace: Pace | None = None) -> None:
    """Copy a host buffer to device memory; the inverse of `copy_out`.

    On a GPU the copies run asynchronously in the current stream.
    """
    for extent, held in _places(extents, buffer):
        _copy(_bytes_of(extent), held, pace)


def on_host(tensor: Tensor, extents: Sequence[Extent], buffer: Tensor) -> Tensor | None:
    """Return a view of a host buffer with a tensor's data; None if there is no copy.

    Arguments:
        tensor: tensor in device memory, which may be freed.
        extents: parts of device memory that were copied to the buffer.
        buffer: host buffer with the copies, a uint8 tensor.
    """
    key = storage_key(tensor)
    first = tensor.storage_offset() * tensor.element_size()
    for extent, held in _places(extents, buffer):
        if extent.key == key and extent.start <= first and first + _span_bytes(tensor) <= extent.stop:
            own = held[first - extent.start : first - extent.start + _span_bytes(tensor)]
            return torch.as_strided(own.view(tensor.dtype), tensor.shape, tensor.stride())
    return None


def blank_of(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return meta tensors with the same shapes, strides and dtypes."""
    return tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors)


def size_of(blank: Iterable[Tensor]) -> int:
    """Return the size of a host buffer for copies of all these tensors, in bytes.

    There is no padding between the copies.

    Arguments:
        blank: meta tensors with the shapes, strides and dtypes.
    """
    return sum(map(_span_bytes, blank))


def views_of(blank: Sequence[Tensor], buffer: Tensor) -> Iterator[Tensor]:
    """Yield views of a host buffer, with the shapes, strides and dtypes of tensors."""
    sizes = [_span_bytes(tensor) for tensor in blank]
    for tensor, at, size_bytes in zip(blank, _offsets(sizes), sizes, strict=True):
        own = buffer[at : at + size_bytes].view(tensor.dtype)
        yield torch.as_strided(own, tensor.shape, tensor.stride())


def _places(extents: Sequence[Extent], buffer: Tensor) -> Iterator[tuple[Extent, Tensor]]:
    for extent, at in zip(extents, _offsets([extent.nbytes for extent in extents]), strict=True):
        yield extent, buffer[at : at + extent.nbytes]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Compute the offset of each extent in a host buffer without gaps, in bytes.

    The alignment of an extent is the largest power of two, at most 16 bytes, that divides its size. Extents with larger
    alignment come first in the buffer. So each extent can be read in its own dtype, without padding.

    Arguments:
        sizes: bytes of each extent.

    Returns:
        Offsets in the order of `sizes`.
    """
    found, at = [0] * len(sizes), 0
    for k in sorted(range(len(sizes)), key=lambda k: -_divides(sizes[k])):
        found[k] = at
        at += sizes[k]
    return found


def _divides(size_bytes: int) -> int:
    """Return the largest power of two, at most 16 bytes, that divides a size."""
    return min(size_bytes & -size_bytes or _ALIGNMENT_BYTES, _ALIGNMENT_BYTES)


def _bytes_of(extent: Extent) -> Tensor:
    return all_of(extent.storage)[extent.start : extent.stop]


def all_of(storage: torch.UntypedStorage) -> Tensor:
    """Return all bytes of a storage as a tensor."""
    # A new tensor, so that writes to it bypass autograd's version counters.
    found: Tensor = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]
    return found


def _copy(target: Tensor, source: Tensor, pace: Pace | None) -> None:
    if pace is None:
        target.copy_(source, non_blocking=True)
        return
    for start in range(0, source.nbytes, _CHUNK_BYTES):
        part = source[start : start + _CHUNK_BYTES]
        target[start : start + _CHUNK_BYTES].copy_(part, non_blocking=True)
        pace(part.nbytes)

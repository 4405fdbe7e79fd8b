"""Device storages of swapped values, and their allocated bytes.

A storage may hold several values. Its memory is freed when none of them needs it, and allocated again when the first of
them returns. Memory counts until its storage is destroyed. The callers decide which storages are freed.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hocket.errors import InternalError
from hocket.program.instruction import Value
from hocket.runtime.swapping.cuda_streams import Streams
from hocket.runtime.swapping.extents import Extent, all_of, extents_of
from hocket.runtime.swapping.states import STATE, SwappedValue

# Maximum wait for a transfer's thread to release memory, and the polling interval.
_PATIENCE_S, _LOOK_S = 0.5, 5e-4


@dataclass
class DeviceStorage:
    """One storage: its bytes, and the values that use it.

    Attributes:
        whole_bytes: bytes of the storage when its memory is allocated.
        there_bytes: bytes that are allocated now.
        users: values in this storage that are needed on the device.
        leaving: values in this storage that a pending send still reads.
        waiting: values on the host that will return to this storage.
        fixed: True if the memory is never freed.
    """

    whole_bytes: int
    there_bytes: int = 0
    users: set[Value] = field(default_factory=set)
    leaving: set[Value] = field(default_factory=set)
    waiting: set[SwappedValue] = field(default_factory=set)
    fixed: bool = False

    @property
    def missing_bytes(self) -> int:
        """Bytes to allocate until the storage has all its memory."""
        return self.whole_bytes - self.there_bytes


class Storages:
    """Torch storages of the swapped values on one device, with their allocated bytes.

    Callers hold the lock that they pass to the constructor, except for `keep`. The destruction of a storage never
    waits for the lock.

    Attributes:
        there_bytes: allocated bytes of all storages now.
        peak_bytes: peak of `there_bytes`.
        resized: called with a tensor of all bytes of a storage that was freed or allocated; None without an observer.
    """

    def __init__(self, streams: Streams, device: torch.device, budget_bytes: float, lock: threading.RLock) -> None:
        """Create the table, without storages.

        Arguments:
            streams: CUDA streams of the device.
            budget_bytes: maximum bytes of all storages together.
            lock: lock that callers hold.
        """
        self._streams, self._device, self._budget_bytes, self._lock = streams, device, budget_bytes, lock
        self._blocks: dict[int, tuple[weakref.ref[torch.UntypedStorage], DeviceStorage]] = {}
        self._dead: deque[int] = deque()
        self.there_bytes = self.peak_bytes = 0
        self.resized: Callable[[Iterable[Tensor]], None] | None = None

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Never free the memory of these tensors, even if values share it.

        They are tensors that are not values of the program, such as constants.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device == self._device:
                self._of(Extent(weakref.ref(storage), storage._cdata, 0, storage.nbytes())).fixed = True

    def enter(self, held: SwappedValue) -> None:
        """Note that a value is on the device."""
        for extent in held.extents:
            self._of(extent).users.add(held.value)

    def leave(self, held: SwappedValue, sending: bool = False) -> list[Extent]:
        """Note that a value no longer needs its storages; return the unused ones.

        Arguments:
            sending: True if a message needs the storages until `sent`.

        Returns:
            One extent of each storage that no value and no message needs.
        """
        for block in self._alive(held):
            block.users.discard(held.value)
            if sending:
                block.leaving.add(held.value)
        return self._alone(held)

    def sent(self, held: SwappedValue) -> list[Extent]:
        """Note that a value's message is complete; return unused storages as `leave` does."""
        for block in self._alive(held):
            block.leaving.discard(held.value)
        return self._alone(held)

    def expect(self, held: SwappedValue) -> None:
        """Note that a value is on the host only, and will return to its storages."""
        for block in self._alive(held):
            block.waiting.add(held)

    def forget(self, held: SwappedValue) -> None:
        """Note that a value will not return to its storages."""
        for block in self._alive(held):
            block.waiting.discard(held)

    def expected(self, extents: Iterable[Extent]) -> Iterator[Extent]:
        """Yield the extents in storages to which a value will return."""
        return (extent for extent in extents if self._of(extent).waiting)

    def empty(self, extents: Iterable[Extent]) -> None:
        """Free the memory of the extents' storages; the storage objects remain.

        Raises:
            InternalError: a storage has memory that the device did not allocate itself.
        """
        for extent in extents:
            if not extent.storage.resizable():
                raise InternalError("memory that this device did not allocate cannot be swapped")
            self._resize(extent, self._of(extent), 0)

    def of(self, held: SwappedValue) -> dict[int, DeviceStorage]:
        """Return a value's storages, by `Extent.key`."""
        return {extent.key: self._of(extent) for extent in held.extents}

    def fill(self, held: SwappedValue, blocks: dict[int, DeviceStorage]) -> None:
        """Allocate the memory of the storages to which a value returns.

        Arguments:
            blocks: the value's storages, from `of`.
        """
        for extent in held.extents:
            block = blocks[extent.key]
            if block.there_bytes < block.whole_bytes:
                self._resize(extent, block, block.whole_bytes)
                # A swap lane allocates memory in its own stream. If compute may drop the value, the memory must be
                # marked as used by compute. Weights and optimizer state are not dropped but freed after a swap out.
                # With the mark, that release would wait for compute's later work.
                if held.value.what not in STATE:
                    self._streams.used_by_compute(all_of(extent.storage))
                if sum(e.nbytes for e in held.extents if e.key == extent.key) < block.whole_bytes:
                    all_of(extent.storage).zero_()  # the bytes between the extents are undefined
        for block in blocks.values():
            block.users.add(held.value)
            block.waiting.discard(held)

    def make(self, held: SwappedValue) -> None:
        """Allocate new storages for a value that was received on the host."""
        held.thing = tuple(
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=self._device) for t in held.blank
        )
        held.extents, held.blank = extents_of(held.thing, self._device), ()
        for extent in held.extents:
            self._of(extent)
            self._streams.used_by_compute(all_of(extent.storage))
        if self.resized is not None:
            self.resized(held.thing)

    def wait(self, more_bytes: float) -> None:
        """Wait up to half a second until `more_bytes` more fit into the budget.

        Other threads release memory meanwhile. There is no wait if values need all allocated memory.
        """
        until = time.monotonic() + _PATIENCE_S
        self._bury()
        while self.there_bytes + more_bytes > self._budget_bytes and time.monotonic() < until:
            blocks = [block for _, block in list(self._blocks.values())]
            if all(block.users or block.fixed or not block.there_bytes for block in blocks):
                return
            self._lock.release()  # the releasing thread needs the lock
            time.sleep(_LOOK_S)
            self._lock.acquire()
            self._bury()

    def _alive(self, held: SwappedValue) -> Iterator[DeviceStorage]:
        return (self._of(extent) for extent in held.extents if extent.alive)

    def _alone(self, held: SwappedValue) -> list[Extent]:
        alone = {}
        for extent in (extent for extent in held.extents if extent.alive):
            block = self._of(extent)
            if not block.users and not block.leaving and not block.fixed:
                alone[extent.key] = extent
        return list(alone.values())

    def _of(self, extent: Extent) -> DeviceStorage:
        self._bury()
        if extent.key not in self._blocks:
            key, size = extent.key, extent.storage.nbytes()
            # The storage's Python object lives as long as the storage itself, so the callback marks the storage's end.
            reference = weakref.ref(extent.storage, lambda _, key=key: self._died(key))  # type: ignore[misc]
            self._blocks[key] = reference, DeviceStorage(size)
            self._changed(self._blocks[key][1], size)
        return self._blocks[extent.key][1]

    def _died(self, key: int) -> None:
        # A storage may be destroyed anywhere, under any lock, so this callback never waits.
        self._dead.append(key)
        if self._lock.acquire(blocking=False):
            self._bury()
            self._lock.release()

    def _bury(self) -> None:
        while self._dead:
            self._changed(self._blocks.pop(self._dead.popleft())[1], 0)

    def _changed(self, block: DeviceStorage, there_bytes: int) -> None:
        self.there_bytes += there_bytes - block.there_bytes
        block.there_bytes = there_bytes
        self.peak_bytes = max(self.peak_bytes, self.there_bytes)

    def _resize(self, extent: Extent, block: DeviceStorage, size_bytes: int) -> None:
        if not size_bytes:  # the current stream used it last
            self._streams.used_here(all_of(extent.storage))
        extent.storage.resize_(size_bytes)
        self._changed(block, size_bytes)
        if self.resized is not None:
            self.resized((all_of(extent.storage),))

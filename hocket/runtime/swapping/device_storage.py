"""Device storages of swapped values, and how many bytes of each are allocated.

Rules of this file: a storage that several values lie in is emptied when the last of them needs it no more, and filled again with the
first. Memory counts until its storage is gone, whoever holds it. What is counted and emptied here is decided elsewhere.
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

# How long a transfer's thread may take to let go of what it has carried, and between two looks.
_PATIENCE_S, _LOOK_S = 0.5, 5e-4


@dataclass
class DeviceStorage:
    """One storage: its bytes when full and now, and the values that use it.

    These are values needed on the device, values that a pending send still reads, and values on the host that will
    return to it.
    """

    whole_bytes: int
    there_bytes: int = 0
    users: set[Value] = field(default_factory=set)
    leaving: set[Value] = field(default_factory=set)
    waiting: set[SwappedValue] = field(default_factory=set)
    fixed: bool = False

    @property
    def missing_bytes(self) -> int:
        """Bytes that filling the storage adds."""
        return self.whole_bytes - self.there_bytes


class Storages:
    """Storages of one device.

    Callers hold `lock`, except for `keep`; a dying storage waits for no lock.

    Attributes:
        there_bytes: on the device now; peak_bytes: the most so far.
        resized: called with a tensor of all bytes of a storage that was emptied or filled, if somebody looks on.
    """

    def __init__(self, streams: Streams, device: torch.device, budget_bytes: float, lock: threading.RLock) -> None:
        """Start without storages."""
        self._streams, self._device, self._budget_bytes, self._lock = streams, device, budget_bytes, lock
        self._blocks: dict[int, tuple[weakref.ref[torch.UntypedStorage], DeviceStorage]] = {}
        self._dead: deque[int] = deque()
        self.there_bytes = self.peak_bytes = 0
        self.resized: Callable[[Iterable[Tensor]], None] | None = None

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep tensors that are no values.

        Their memory is never released, whichever values share it.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device == self._device:
                self._of(Extent(weakref.ref(storage), storage._cdata, 0, storage.nbytes())).fixed = True

    def enter(self, held: SwappedValue) -> None:
        """A value is on the device."""
        for extent in held.extents:
            self._of(extent).users.add(held.value)

    def leave(self, held: SwappedValue, sending: bool = False) -> list[Extent]:
        """A value does not need its storages any more; returns those that nobody needs.

        Arguments:
            sending: a message is made of it, which needs them until `sent`.
        """
        for block in self._alive(held):
            block.users.discard(held.value)
            if sending:
                block.leaving.add(held.value)
        return self._alone(held)

    def sent(self, held: SwappedValue) -> list[Extent]:
        """The message is over; returns storages that nobody needs."""
        for block in self._alive(held):
            block.leaving.discard(held.value)
        return self._alone(held)

    def expect(self, held: SwappedValue) -> None:
        """A value is on the host, and will come back to its storages."""
        for block in self._alive(held):
            block.waiting.add(held)

    def forget(self, held: SwappedValue) -> None:
        """A value will not come back."""
        for block in self._alive(held):
            block.waiting.discard(held)

    def expected(self, extents: Iterable[Extent]) -> Iterator[Extent]:
        """Yield the extents to which values will return."""
        return (extent for extent in extents if self._of(extent).waiting)

    def empty(self, extents: Iterable[Extent]) -> None:
        """Give back the memory of these.

        Raises:
            InternalError: it is not this device's own.
        """
        for extent in extents:
            if not extent.storage.resizable():
                raise InternalError("memory that is not this device's own cannot be swapped")
            self._resize(extent, self._of(extent), 0)

    def of(self, held: SwappedValue) -> dict[int, DeviceStorage]:
        """A value's, by the key of its extents."""
        return {extent.key: self._of(extent) for extent in held.extents}

    def fill(self, held: SwappedValue, blocks: dict[int, DeviceStorage]) -> None:
        """Make those whole that a value comes back to.

        Arguments:
            blocks: the value's.
        """
        for extent in held.extents:
            block = blocks[extent.key]
            if block.there_bytes < block.whole_bytes:
                self._resize(extent, block, block.whole_bytes)
                # Memory that a lane of swaps made is that lane's. What may die where compute lets it go has to be known to be compute's;
                # state lives on and is emptied (above): said of it here, memory that a lane has written out would be taken for
                # what compute, which has gone on meanwhile, uses still.
                if held.value.what not in STATE:
                    self._streams.used_by_compute(all_of(extent.storage))
                if sum(e.nbytes for e in held.extents if e.key == extent.key) < block.whole_bytes:
                    all_of(extent.storage).zero_()  # nothing is known of what lies between
        for block in blocks.values():
            block.users.add(held.value)
            block.waiting.discard(held)

    def make(self, held: SwappedValue) -> None:
        """Memory for what never was on the device."""
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
        """Wait, before `more_bytes` are allocated, for another thread to release memory.

        Only memory that no value needs is waited for.
        """
        until = time.monotonic() + _PATIENCE_S
        self._bury()
        while self.there_bytes + more_bytes > self._budget_bytes and time.monotonic() < until:
            blocks = [block for _, block in list(self._blocks.values())]
            if all(block.users or block.fixed or not block.there_bytes for block in blocks):
                return
            self._lock.release()  # whoever lets go comes through here
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
            # The storage's Python object lives as long as the storage itself, so its end is the storage's end.
            reference = weakref.ref(extent.storage, lambda _, key=key: self._died(key))  # type: ignore[misc]
            self._blocks[key] = reference, DeviceStorage(size)
            self._changed(self._blocks[key][1], size)
        return self._blocks[extent.key][1]

    def _died(self, key: int) -> None:
        # A storage may die, and call back, anywhere, whatever is locked there: this never waits.
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
        if not size_bytes:  # by whoever used it last, in its own stream
            self._streams.used_here(all_of(extent.storage))
        extent.storage.resize_(size_bytes)
        self._changed(block, size_bytes)
        if self.resized is not None:
            self.resized((all_of(extent.storage),))

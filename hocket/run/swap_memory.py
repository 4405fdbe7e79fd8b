"""MemoryManager: what of a device's values is on the device and what on its host, within hard budgets.

Rules of this file: what is to be swapped or dropped says the program; here it is done, counted and held to the budgets. A storage
that several values lie in leaves the device with the last of them. Memory counts until its storage is gone, whoever holds it.
"""

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InternalError, MemoryExceeded
from hocket.program.instruction import Value, What
from hocket.run.streams import Streams, has_streams, indexed
from hocket.run.swap_buffers import HostBuffers
from hocket.run.swap_extents import (
    Extent,
    Pace,
    all_of,
    blank_bytes,
    blank_of,
    buffer_bytes,
    copy_in,
    copy_out,
    extents_of,
    on_host,
    views_of,
)
from hocket.run.swap_states import Held, HostCopy, State
from hocket.units import show_bytes

_SHOWN = 4  # of what is there, in an error
_STATE = (What.WEIGHTS, What.OPTIMIZER)
# How long a transfer's thread may take to let go of what it has carried, and between two looks.
_PATIENCE_S, _LOOK_S = 0.5, 5e-4


@dataclass
class _Block:
    """One storage: its bytes when it is whole, and those that it has now; the values that need it on the device, and those that are
    on the host and will come back to it."""

    whole_bytes: int
    there_bytes: int = 0
    users: set[Value] = field(default_factory=set)
    waiting: set[Held] = field(default_factory=set)
    fixed: bool = False


class MemoryManager:
    """See the head of this file.

    Attributes:
        out_bytes, in_bytes: swapped so far, by kind of value.
        device_bytes: of values on the device now; device_peak_bytes: the most so far.
        host: the buffers. streams: of the device.
        resized: called with a tensor of all bytes of a storage that was emptied or filled, if somebody looks on.
    """

    def __init__(
        self,
        number: int,
        device: torch.device | str,
        device_budget_bytes: float = float("inf"),
        host_budget_bytes: float = float("inf"),
        pace_out: Pace | None = None,
        pace_in: Pace | None = None,
    ) -> None:
        """No values yet.

        Arguments:
            number: the device's, for errors.
            pace_out, pace_in: called with bytes that were moved; they return when a link would have moved them.
        """
        self._number, self._device = number, indexed(device)
        self.streams = Streams(self._device)
        self._budget_bytes, self._host_budget_bytes = device_budget_bytes, host_budget_bytes
        self._pace_out, self._pace_in = pace_out, pace_in
        self.host = HostBuffers(has_streams(self._device), host_budget_bytes)
        self._held: dict[Value, Held] = {}
        self._blocks: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Block]] = {}
        self._lock = threading.RLock()
        self._dead: deque[int] = deque()
        self.out_bytes: Counter[What] = Counter()
        self.in_bytes: Counter[What] = Counter()
        self.device_bytes = self.device_peak_bytes = 0
        self.resized: Callable[[Iterable[Tensor]], None] | None = None

    # -- values come and go

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that are no values and stay: their memory is never emptied, whatever value lies in it as well."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device == self._device:
                self._block(Extent(weakref.ref(storage), storage._cdata, 0, storage.nbytes())).fixed = True

    def wrote(self, value: Value, thing: Any) -> None:
        """A value has been made on the device, or has come from another one.

        Raises:
            MemoryExceeded: with it there is more than the budget allows.
        """
        extents = extents_of(thing, self._device)
        with self._lock:
            before = self._held.get(value.plain)
            if before is not None:
                raise InternalError(f"{value} is written, and {before.value} is {before.state}")
            held = Held(value.plain, thing, extents, on_device={value.copy})
            self._held[value.plain] = held
            for extent in extents:
                self._block(extent).users.add(value.plain)
            self._check(held, 0)

    def received(self, value: Value, message: Iterable[Tensor]) -> HostCopy:
        """A value has come to the host from another one's.

        Raises:
            MemoryExceeded: the host's budget does not allow it.
        """
        tensors = tuple(message)
        with self._lock:
            held = Held(value.plain, None, (), State.HOST, on_host={value.copy}, blank=blank_of(tensors))
            held.buffer = self.host.take(blank_bytes(held.blank), lambda size, there: self._no_room(held, size, there))
            self._held[value.plain] = held
        for own, tensor in zip(views_of(held.blank, held.buffer), tensors, strict=True):
            own.copy_(tensor)
        return HostCopy(held)

    def carried(self, copy: HostCopy) -> tuple[Tensor, ...]:
        """A border that is on the host, as views of its buffer, to be sent from there."""
        held = copy.held
        assert held.buffer is not None
        found = tuple(on_host(tensor, held.extents, held.buffer) for tensor in held.thing)
        if any(tensor is None for tensor in found):
            raise InternalError(f"{held.value} is sent from the host, and not all of it is there")
        return tuple(tensor for tensor in found if tensor is not None)

    def left(self, value: Value) -> None:
        """A value now belongs to a transfer: what becomes of it is no business of this device's compute."""
        with self._lock:
            held = self._known(value)
            self._forget_users(held)
            held.turn(State.DROPPED)
            del self._held[value.plain]

    def freed(self, value: Value, inherited: bool = False) -> None:
        """A copy is not needed any more; the device's memory of a value that is on the host as well is emptied with the last.

        Arguments:
            inherited: another value was written into its memory.
        """
        with self._lock:
            held = self._known(value)
            names = held.on_host if value.on_host else held.on_device
            if value.copy not in names:
                raise InternalError(f"{value} is freed, and {held.value} is {held.state}, not under that name")
            names.discard(value.copy)
            held.inherited |= inherited
            if not names and value.on_host:
                self._drop_buffer(held)
            elif not names:
                gone = self._forget_users(held)
                held.turn(State.HOST if held.on_host else State.DROPPED)
                if held.on_host and not held.inherited:
                    self._wait_outside(held)
                # What is dropped may be the last that kept memory whole to which others come back.
                self._empty(extent for extent in gone if held.on_host or self._block(extent).waiting)
            if not held.on_host and not held.on_device:
                held.thing = None
                del self._held[value.plain]

    def swap_out(self, value: Value, copy: Value, frees: Iterable[Value] = (), counted: bool = True) -> HostCopy:
        """Write a value that is on the device to the host, and free what the swap frees.

        Arguments:
            copy: the name of the copy. counted: not where it is no part of a program.

        Raises:
            MemoryExceeded: the host's budget does not allow it.
        """
        with self._lock:
            held = self._known(value)
            gone = tuple(frees)
            for one in gone:  # first, so that the new copy takes the old one's buffer
                if one.on_host:
                    self.freed(one)
            held.turn(State.OUTGOING)
            if held.buffer is None:
                held.buffer = self.host.take(
                    buffer_bytes(held.extents), lambda size, there: self._no_room(held, size, there)
                )
        copy_out(held.extents, held.buffer, self._pace_out if counted else None)
        self.streams.settle()
        with self._lock:
            if counted:
                self.out_bytes[value.what] += held.nbytes
            held.turn(State.BOTH)
            held.on_host.add(copy.copy)
            for one in gone:
                if not one.on_host:
                    self.freed(one)
        return HostCopy(held)

    def swap_in(self, copy: Value, value: Value, frees: Iterable[Value] = (), counted: bool = True) -> Any:
        """Bring a value back from the host: the very thing that was swapped out, in the same storages.

        Arguments:
            copy: the name of the copy; value: of what is on the device then. counted: not where it is no part of a program.

        Raises:
            MemoryExceeded: the device's budget does not allow it.
        """
        with self._lock:
            held = self._known(copy)
            if copy.copy not in held.on_host or held.buffer is None:
                raise InternalError(f"{copy} is read, and {held.value} is {held.state}, not under that name")
            held.turn(State.INCOMING)
            if held.blank:
                self._make(held)
            blocks = {extent.key: self._block(extent) for extent in held.extents}
            self._check(held, sum(block.whole_bytes - block.there_bytes for block in blocks.values()))
            self._fill(held, blocks)
            for block in blocks.values():
                block.users.add(value.plain)
                block.waiting.discard(held)
        copy_in(held.extents, held.buffer, self._pace_in if counted else None)
        self.streams.settle()
        with self._lock:
            if counted:
                self.in_bytes[value.what] += held.nbytes
            held.turn(State.BOTH)
            held.on_device.add(value.copy)
            for one in frees:
                self.freed(one)
        return held.thing

    # -- between segments

    def rename(self, copy: HostCopy, value: Value) -> None:
        """A copy on the host that stays from segment to segment gets the name that it has in the next."""
        held = copy.held
        with self._lock:
            if held.state is not State.HOST:
                raise InternalError(f"{held.value} is {held.state}, and not {State.HOST}, between segments")
            self._held.pop(held.value, None)
            held.value, held.on_host = value.plain, {value.copy}
            self._held[value.plain] = held

    def readable(self, tensor: Tensor) -> Tensor:
        """A tensor, or a view of the host buffer where its numbers are while its own memory is empty."""
        if tensor.numel() == 0 or tensor.untyped_storage().nbytes():
            return tensor
        with self._lock:
            for held in self._held.values():
                if held.state is State.HOST and held.buffer is not None and not held.inherited:
                    found = on_host(tensor, held.extents, held.buffer)
                    if found is not None:
                        return found
        raise InternalError("a tensor without memory that is in no value on the host")

    def state(self, value: Value) -> State:
        """Where a value is; DROPPED if it is nowhere, or never was."""
        held = self._held.get(value.plain)
        return State.DROPPED if held is None else held.state

    # -- storages

    def _known(self, value: Value) -> Held:
        held = self._held.get(value.plain)
        if held is None:
            raise InternalError(f"device {self._number}: {value} is {State.DROPPED}, or was never made")
        return held

    def _block(self, extent: Extent) -> _Block:
        self._bury()
        if extent.key not in self._blocks:
            key, size = extent.key, extent.storage.nbytes()
            # The storage's Python object lives as long as the storage itself, so its end is the storage's end.
            reference = weakref.ref(extent.storage, lambda _, key=key: self._died(key))  # type: ignore[misc]
            self._blocks[key] = reference, _Block(size)
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

    def _changed(self, block: _Block, there_bytes: int) -> None:
        self.device_bytes += there_bytes - block.there_bytes
        block.there_bytes = there_bytes
        self.device_peak_bytes = max(self.device_peak_bytes, self.device_bytes)

    def _forget_users(self, held: Held) -> list[Extent]:
        """A value does not need its storages any more; returns those that no value needs."""
        alone = {}
        for extent in (extent for extent in held.extents if extent.alive):
            block = self._block(extent)
            block.users.discard(held.value)
            if not block.users and not block.fixed:
                alone[extent.key] = extent
        return list(alone.values())

    def _wait_outside(self, held: Held) -> None:
        for extent in held.extents:
            if extent.alive:
                self._block(extent).waiting.add(held)

    def _empty(self, extents: Iterable[Extent]) -> None:
        for extent in extents:
            if not extent.storage.resizable():
                raise InternalError("memory that is not this device's own cannot be swapped")
            self._resize(extent, self._block(extent), 0)

    def _fill(self, held: Held, blocks: dict[int, _Block]) -> None:
        for extent in held.extents:
            block = blocks[extent.key]
            if block.there_bytes < block.whole_bytes:
                self._resize(extent, block, block.whole_bytes)
                # Memory that a lane of swaps made is that lane's. What may die where compute lets it go has to be known to be compute's;
                # state lives on and is emptied (above): said of it here, memory that a lane has written out would be taken for
                # what compute, which has gone on meanwhile, uses still.
                if held.value.what not in _STATE:
                    self.streams.used_by_compute(all_of(extent.storage))
                if sum(e.nbytes for e in held.extents if e.key == extent.key) < block.whole_bytes:
                    all_of(extent.storage).zero_()  # nothing is known of what lies between

    def _make(self, held: Held) -> None:
        """Memory on the device for what never was there."""
        self._check(held, held.nbytes)
        held.thing = tuple(
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=self._device) for t in held.blank
        )
        held.extents, held.blank = extents_of(held.thing, self._device), ()
        for extent in held.extents:
            self._block(extent)
            self.streams.used_by_compute(all_of(extent.storage))
        if self.resized is not None:
            self.resized(held.thing)

    def _resize(self, extent: Extent, block: _Block, size_bytes: int) -> None:
        if not size_bytes:  # by whoever used it last, in its own stream
            self.streams.used_here(all_of(extent.storage))
        extent.storage.resize_(size_bytes)
        self._changed(block, size_bytes)
        if self.resized is not None:
            self.resized((all_of(extent.storage),))

    def _drop_buffer(self, held: Held) -> None:
        if held.buffer is not None:
            self.host.give_back(held.buffer)
        held.buffer = None
        held.turn(State.DEVICE if held.on_device else State.DROPPED)
        for extent in held.extents:
            if extent.alive:
                self._block(extent).waiting.discard(held)

    # -- budgets

    def make_room(self, more_bytes: float) -> None:
        """Before so many bytes are taken: wait for memory that no value needs and that another thread has not let go yet."""
        with self._lock:
            self._wait(more_bytes)

    def _wait(self, more_bytes: float) -> None:
        until = time.monotonic() + _PATIENCE_S
        self._bury()
        while self.device_bytes + more_bytes > self._budget_bytes and time.monotonic() < until:
            blocks = [block for _, block in list(self._blocks.values())]
            if all(block.users or block.fixed or not block.there_bytes for block in blocks):
                return
            self._lock.release()  # whoever lets go comes through here
            time.sleep(_LOOK_S)
            self._lock.acquire()
            self._bury()

    def _check(self, held: Held, more_bytes: int) -> None:
        self._wait(more_bytes)
        if self.device_bytes + more_bytes > self._budget_bytes:
            there_bytes = self.device_bytes - (0 if more_bytes else held.nbytes)
            own = [one for one in self._held.values() if one is not held and one.on_device]
            raise MemoryExceeded(
                f"device {self._number}: {held.value}",
                f"{show_bytes(held.nbytes)}, beside {show_bytes(there_bytes)} that are there{_largest(own)}",
                f"at most {show_bytes(self._budget_bytes)} on the device",
                "Allow more bytes on the device, cut smaller stages, or take smaller microbatches.",
                held.nbytes,
            )

    def _no_room(self, held: Held, size_bytes: int, there_bytes: int) -> Exception:
        own = [one for one in self._held.values() if one is not held and one.buffer is not None]
        return MemoryExceeded(
            f"host of device {self._number}: {held.value}",
            f"{show_bytes(size_bytes)}, beside {show_bytes(there_bytes)} that are there{_largest(own)}",
            f"at most {show_bytes(self._host_budget_bytes)} on the host",
            "Allow more bytes on the host, or plan for more devices.",
            size_bytes,
        )


def _largest(there: list[Held]) -> str:
    """What takes most, for people."""
    if not there:
        return ""
    most = sorted(there, key=lambda one: (-one.nbytes, one.value))[:_SHOWN]
    named = ", ".join(f"{one.value} {show_bytes(one.nbytes)}" for one in most)
    return f" ({named}{', ...' if len(there) > _SHOWN else ''})"

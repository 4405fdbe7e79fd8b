"""Memory manager: places a device's values on device or host, within hard budgets.

The program decides which values are swapped or dropped. This file executes the decisions, counts bytes, and enforces
the budgets. device_storage.py frees and allocates the memory.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from hocket.errors import InternalError, MemoryExceeded
from hocket.program.instruction import Value, ValueKind
from hocket.runtime.swapping.cuda_streams import Streams, has_streams, indexed
from hocket.runtime.swapping.device_storage import Storages
from hocket.runtime.swapping.extents import Pace, blank_of, copy_in, copy_out, extents_of, on_host, views_of
from hocket.runtime.swapping.host_buffers import HostBuffers
from hocket.runtime.swapping.states import HostCopy, SwappedValue, ValueState
from hocket.util.units import show_bytes

_SHOWN = 4  # values that an error lists


class MemoryManager:
    """Memory manager of one device.

    Attributes:
        out_bytes, in_bytes: bytes swapped out and in so far, by kind of value.
        storages: storages of values on the device.
        host: buffers of values on the host.
        streams: CUDA streams of the device.
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
        """Create the memory manager, without values.

        Arguments:
            number: number of the device, for errors.
            device_budget_bytes, host_budget_bytes: limits of the device's and the host's memory.
            pace_out, pace_in: delay copies of each direction, to simulate a link (HostLink.out, HostLink.back).
        """
        self._number, self._device = number, indexed(device)
        self.streams = Streams(self._device)
        self._budget_bytes, self._host_budget_bytes = device_budget_bytes, host_budget_bytes
        self._pace_out, self._pace_in = pace_out, pace_in
        self.host = HostBuffers(has_streams(self._device), host_budget_bytes)
        self._held: dict[Value, SwappedValue] = {}
        self._leaving: dict[Value, SwappedValue] = {}  # only their memory is tracked
        self._lock = threading.RLock()
        self.storages = Storages(self.streams, self._device, device_budget_bytes, self._lock)
        self.out_bytes: Counter[ValueKind] = Counter()
        self.in_bytes: Counter[ValueKind] = Counter()

    # -- values come and go

    def wrote(self, value: Value, thing: Any) -> None:
        """Register a value that was computed on the device or received by it.

        Arguments:
            thing: the engine's object for the value (stage/device.py).

        Raises:
            MemoryExceeded: the device's budget is exceeded.
        """
        extents = extents_of(thing, self._device)
        with self._lock:
            before = self._held.get(value.plain)
            if before is not None:
                raise InternalError(f"{value} is written, and {before.value} is {before.state}")
            held = SwappedValue(value.plain, thing, extents, on_device={value.copy})
            self._held[value.plain] = held
            self.storages.enter(held)
            self._check(held, 0)

    def received(self, value: Value, message: Iterable[Tensor]) -> HostCopy:
        """Copy a value that this host received from another host to a host buffer.

        Arguments:
            message: the received tensors.

        Returns:
            The engine's object for the copy.

        Raises:
            MemoryExceeded: the host's budget does not allow the copy.
        """
        tensors = tuple(message)
        with self._lock:
            held = SwappedValue(value.plain, None, (), ValueState.HOST, on_host={value.copy}, blank=blank_of(tensors))
            held.buffer = self.host.take(held.nbytes, lambda size, there: self._no_room(held, size, there))
            self._held[value.plain] = held
        for own, tensor in zip(views_of(held.blank, held.buffer), tensors, strict=True):
            own.copy_(tensor)
        return HostCopy(held)

    def carried(self, copy: HostCopy) -> tuple[Tensor, ...]:
        """Return the tensors of a value on the host, as views of its buffer, to send them."""
        held = copy.held
        assert held.buffer is not None
        found = tuple(on_host(tensor, held.extents, held.buffer) for tensor in held.thing)
        if any(tensor is None for tensor in found):
            raise InternalError(f"{held.value} is sent from the host, but parts of it are missing")
        return tuple(tensor for tensor in found if tensor is not None)

    def left(self, value: Value, sending: bool = False) -> None:
        """Remove a value that was handed over to a transfer.

        Arguments:
            sending: True if the transfer reads the value's memory until `sent`. Other values in the same storage may
                be swapped out meanwhile.
        """
        with self._lock:
            held = self._known(value)
            self.storages.leave(held, sending)
            held.turn(ValueState.DROPPED)
            held.thing = None
            del self._held[value.plain]
            if sending:
                self._leaving[value.plain] = held

    def sent(self, value: Value) -> None:
        """Note that the send of a value is complete.

        The memory of unused storages to which other values will return from the host is freed until then. All other
        storages are destroyed with their last tensor.
        """
        with self._lock:
            self.storages.empty(self.storages.expected(self.storages.sent(self._leaving.pop(value.plain))))

    def freed(self, value: Value, inherited: bool = False) -> None:
        """Free one named copy of a value.

        If the value has a copy on the host, its device memory is freed with its last device copy.

        Arguments:
            inherited: True if another value was written into the same memory.
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
                gone = self.storages.leave(held)
                held.turn(ValueState.HOST if held.on_host else ValueState.DROPPED)
                if held.on_host and not held.inherited:
                    self.storages.expect(held)
                # A dropped value may be the last user of a storage to which other values will return.
                self.storages.empty(gone if held.on_host else self.storages.expected(gone))
            if not held.on_host and not held.on_device:
                held.thing = None
                del self._held[value.plain]

    def swap_out(self, value: Value, copy: Value, frees: Iterable[Value] = (), counted: bool = True) -> HostCopy:
        """Copy a value from device to host, and free the values that the swap frees.

        Arguments:
            value: name of the copy on the device.
            copy: name of the copy on the host.
            frees: values that the swap frees.
            counted: False if the swap is not part of a program; it is then neither counted nor delayed.

        Returns:
            The engine's object for the copy on the host.

        Raises:
            MemoryExceeded: the host's budget does not allow the copy.
        """
        with self._lock:
            held = self._known(value)
            gone = tuple(frees)
            for one in gone:  # first, so that the new copy takes the old one's buffer
                if one.on_host:
                    self.freed(one)
            held.turn(ValueState.OUTGOING)
            if held.buffer is None:
                held.buffer = self.host.take(held.nbytes, lambda size, there: self._no_room(held, size, there))
        copy_out(held.extents, held.buffer, self._pace_out if counted else None)
        self.streams.settle()
        with self._lock:
            if counted:
                self.out_bytes[value.what] += held.nbytes
            held.turn(ValueState.BOTH)
            held.on_host.add(copy.copy)
            for one in gone:
                if not one.on_host:
                    self.freed(one)
        return HostCopy(held)

    def swap_in(self, copy: Value, value: Value, frees: Iterable[Value] = (), counted: bool = True) -> Any:
        """Copy a value from host to device, and free the values that the swap frees.

        The value gets the same tensor objects and storages as before its swap out.

        Arguments:
            copy: name of the copy on the host.
            value: name of the copy on the device.
            frees: values that the swap frees.
            counted: False if the swap is not part of a program; it is then neither counted nor delayed.

        Returns:
            The engine's object for the value.

        Raises:
            MemoryExceeded: the device's budget does not allow the copy.
        """
        with self._lock:
            held = self._known(copy)
            if copy.copy not in held.on_host or held.buffer is None:
                raise InternalError(f"{copy} is read, and {held.value} is {held.state}, not under that name")
            held.turn(ValueState.INCOMING)
            if held.blank:
                self._check(held, held.nbytes)
                self.storages.make(held)
            blocks = self.storages.of(held)
            self._check(held, sum(block.missing_bytes for block in blocks.values()))
            self.storages.fill(held, blocks)
        copy_in(held.extents, held.buffer, self._pace_in if counted else None)
        self.streams.settle()
        with self._lock:
            if counted:
                self.in_bytes[value.what] += held.nbytes
            held.turn(ValueState.BOTH)
            held.on_device.add(value.copy)
            for one in frees:
                self.freed(one)
        return held.thing

    # -- between segments

    def rename(self, copy: HostCopy, value: Value) -> None:
        """Rename a host copy that was kept between segments.

        Arguments:
            value: name of the copy in the next segment.
        """
        held = copy.held
        with self._lock:
            if held.state is not ValueState.HOST:
                raise InternalError(f"{held.value} is {held.state}, and not {ValueState.HOST}, between segments")
            self._held.pop(held.value, None)
            held.value, held.on_host = value.plain, {value.copy}
            self._held[value.plain] = held

    def readable(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or a view of its host copy if its device memory is freed."""
        if tensor.numel() == 0 or tensor.untyped_storage().nbytes():
            return tensor
        with self._lock:
            for held in self._held.values():
                if held.state is ValueState.HOST and held.buffer is not None and not held.inherited:
                    found = on_host(tensor, held.extents, held.buffer)
                    if found is not None:
                        return found
        what = f"a tensor of shape {list(tensor.shape)} and {tensor.dtype}"
        raise InternalError(f"{what} has neither device memory nor a host copy")

    def state(self, value: Value) -> ValueState:
        """State of a value; DROPPED if it has no copy, or never existed."""
        held = self._held.get(value.plain)
        return ValueState.DROPPED if held is None else held.state

    def _known(self, value: Value) -> SwappedValue:
        held = self._held.get(value.plain)
        if held is None:
            raise InternalError(f"device {self._number}: {value} is {ValueState.DROPPED}, or was never made")
        return held

    def _drop_buffer(self, held: SwappedValue) -> None:
        if held.buffer is not None:
            self.host.give_back(held.buffer)
        held.buffer = None
        held.turn(ValueState.DEVICE if held.on_device else ValueState.DROPPED)
        self.storages.forget(held)

    # -- budgets

    def make_room(self, more_bytes: float) -> None:
        """Wait up to half a second until `more_bytes` more fit into the device's budget.

        Other threads release memory meanwhile. There is no wait if values need all allocated memory.
        """
        with self._lock:
            self.storages.wait(more_bytes)

    def _check(self, held: SwappedValue, more_bytes: int) -> None:
        self.storages.wait(more_bytes)
        if self.storages.there_bytes + more_bytes > self._budget_bytes:
            there_bytes = self.storages.there_bytes - (0 if more_bytes else held.nbytes)
            own = [one for one in self._held.values() if one is not held and one.on_device]
            raise MemoryExceeded(
                f"device {self._number}: {held.value}",
                f"{show_bytes(held.nbytes)}, in addition to {show_bytes(there_bytes)} already there{_largest(own)}",
                f"at most {show_bytes(self._budget_bytes)} on the device",
                "Allow more bytes on the device, or use smaller stages or smaller microbatches.",
                held.nbytes,
            )

    def _no_room(self, held: SwappedValue, size_bytes: int, there_bytes: int) -> Exception:
        own = [one for one in self._held.values() if one is not held and one.buffer is not None]
        return MemoryExceeded(
            f"host of device {self._number}: {held.value}",
            f"{show_bytes(size_bytes)}, in addition to {show_bytes(there_bytes)} already there{_largest(own)}",
            f"at most {show_bytes(self._host_budget_bytes)} on the host",
            "Allow more bytes on the host, or plan for more devices.",
            size_bytes,
        )


def _largest(there: list[SwappedValue]) -> str:
    """List the largest values, for an error."""
    if not there:
        return ""
    most = sorted(there, key=lambda one: (-one.nbytes, one.value))[:_SHOWN]
    named = ", ".join(f"{one.value} {show_bytes(one.nbytes)}" for one in most)
    return f" ({named}{', ...' if len(there) > _SHOWN else ''})"

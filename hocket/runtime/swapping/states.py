"""States of a swapped value: its location, and allowed transitions.

A value has one state, even if it has several named copies. The numbers of copies that are in use are kept for each
location. A transition that is not in the table is an error, which names the value.

Source: Harmony's memory manager keeps "a state machine tracking the lifetime of all tensors used" (section 3). The
states are Hocket's.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from hocket.errors import InternalError
from hocket.program.instruction import Value, ValueKind
from hocket.runtime.swapping.extents import Extent, size_of

STATE = (ValueKind.WEIGHTS, ValueKind.OPTIMIZER)
"""Kinds of values that persist from iteration to iteration."""


class ValueState(StrEnum):
    """Place of a swapped value: on the device, on the host, on both, on its way, or nowhere."""

    DEVICE = "on the device"
    HOST = "on the host"
    BOTH = "on the device and the host"
    OUTGOING = "on its way out"
    INCOMING = "on its way in"
    DROPPED = "dropped"


_NEXT = {
    ValueState.DEVICE: {ValueState.OUTGOING, ValueState.DROPPED},
    ValueState.OUTGOING: {ValueState.BOTH},
    ValueState.BOTH: {ValueState.DEVICE, ValueState.HOST, ValueState.OUTGOING},
    ValueState.HOST: {ValueState.INCOMING, ValueState.DROPPED},
    ValueState.INCOMING: {ValueState.BOTH},
    ValueState.DROPPED: set[ValueState](),
}


@dataclass(eq=False)
class SwappedValue:
    """One value with its location.

    Attributes:
        value: name of the value, without the number of a copy.
        thing: the engine's object for the value; None if it was never on the device.
        extents: memory of the value on the device.
        state: location of the value.
        buffer: memory of the value on the host, if any.
        on_device, on_host: numbers of the copies in use on the device and on the host (`Value.copy`).
        blank: meta tensors of a value that was received on the host and was never on the device.
        inherited: True if a later value was written over its device memory; it can then only be dropped.
    """

    value: Value
    thing: Any
    extents: tuple[Extent, ...]
    state: ValueState = ValueState.DEVICE
    buffer: Tensor | None = None
    on_device: set[int] = field(default_factory=set)
    on_host: set[int] = field(default_factory=set)
    blank: tuple[Tensor, ...] = ()
    inherited: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the value, on the device as on the host."""
        return size_of(self.blank) if self.blank else sum(extent.nbytes for extent in self.extents)

    def turn(self, state: ValueState) -> None:
        """Change the state of the value.

        Raises:
            InternalError: a value in the present state cannot change to this one.
        """
        if state not in _NEXT[self.state] or (state is ValueState.INCOMING and self.inherited):
            why = ", and a later value uses its memory" if self.inherited else ""
            raise InternalError(f"{self.value} is {self.state}{why}: it cannot be {state}")
        self.state = state


@dataclass(frozen=True, eq=False)
class HostCopy:
    """The engine's object for a copy of a value on the host."""

    held: SwappedValue

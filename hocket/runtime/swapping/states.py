"""States of a swapped value: where it is, and how it may move.

Rules of this file: a value has one state, whatever copies of it have names of their own; who holds it where is counted by these
names. A change that is not in the table is an error that names the value.
Source: Harmony's memory manager keeps "a state machine tracking the lifetime of all tensors used" (section 3); the states are ours.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from hocket.errors import InternalError
from hocket.program.instruction import Value, ValueKind
from hocket.runtime.swapping.extents import Extent, size_of

STATE = (ValueKind.WEIGHTS, ValueKind.OPTIMIZER)
"""What lives on from iteration to iteration."""


class ValueState(StrEnum):
    """Location of a value."""

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
        value: its plain name; thing: what the engine's store holds for it while it is on the device.
        extents: its memory there; buffer: its memory on the host, if it has any.
        on_device, on_host: numbers of its copies in each place that somebody still needs.
        blank: of what was received on the host and never was on the device: its tensors, on meta.
        inherited: whether a later value was written over its memory on the device: it can only be dropped.
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
        """Bytes of it."""
        return size_of(self.blank) if self.blank else sum(extent.nbytes for extent in self.extents)

    def turn(self, state: ValueState) -> None:
        """Change the state.

        Raises:
            InternalError: the change is not legal.
        """
        if state not in _NEXT[self.state] or (state is ValueState.INCOMING and self.inherited):
            why = ", and a later value lies in its memory" if self.inherited else ""
            raise InternalError(f"{self.value} is {self.state}{why}: it cannot be {state}")
        self.state = state


@dataclass(frozen=True, eq=False)
class HostCopy:
    """Entry of the store for a copy on the host."""

    held: SwappedValue

"""Copies: values on one device and its host, their copy numbers and last users.

Rules of this file: a copy on the host has an odd number, a copy on the device an even one. 0 is the value as it was
made on the device. Each new copy has a higher number than all before. Values here are named without a copy number; it
is added when an instruction is written. An item is the number of an instruction in the draft (draft.py). An operation
is the number of a group of instructions (operations.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hocket.program.instruction import Value, ValueKind

BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})
"""Values that are sent from stage to stage."""


@dataclass
class Copies:
    """Copies of values at one point of the compute lane.

    Attributes:
        there: by value, the number of its copy on the device.
        host: by value, the number of its copy on the host.
        last: by value, the highest copy number so far.
        touched: by value, the item that last read or wrote it on the device; -1 for a received value.
        used: by value, the operation of the item in `touched`.
        brought: by value, the item of its last swap-in.
    """

    there: dict[Value, int] = field(default_factory=dict)
    host: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    touched: dict[Value, int] = field(default_factory=dict)
    used: dict[Value, int] = field(default_factory=dict)
    brought: dict[Value, int] = field(default_factory=dict)

    def here(self, value: Value) -> Value:
        """Name of a value's copy on the device."""
        copy = self.there[value]
        return value._replace(copy=copy) if copy else value

    def new(self, value: Value, on_host: bool) -> Value:
        """Name of a value's next copy, on the host or on the device."""
        last = self.last[value]
        self.last[value] = last + 1 + (last + 1 + on_host) % 2
        return value._replace(copy=self.last[value])

    def come(self, value: Value, operation: int, item: int) -> None:
        """Record that a value is made on the device, or received there (item -1).

        Arguments:
            operation: number of the operation that makes or needs the value.
            item: instruction that makes the value.
        """
        self.touch(value, operation, item)
        self.there[value] = 0
        self.last.setdefault(value, 0)

    def touch(self, value: Value, operation: int, item: int) -> None:
        """Record that an item of an operation reads or writes a value."""
        self.touched[value], self.used[value] = item, operation

    def bring(self, made: Value, operation: int, item: int) -> None:
        """Record that a copy is swapped in.

        Arguments:
            made: name of the new copy on the device.
            operation: number of the operation during which it is swapped in.
            item: the swap-in.
        """
        value = made._replace(copy=0)
        self.touch(value, operation, item)
        self.there[value], self.brought[value] = made.copy, item


def in_order(values: Iterable[Value]) -> list[Value]:
    """Values in their given order, but activations and gradients between stages first.

    Saved activations may share the memory of these values.
    """
    return sorted(values, key=lambda v: v.what not in BORDER)

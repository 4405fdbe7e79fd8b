"""Copies: which values of one device are there, or on its host, under which number, and who used them last.

Rules of this file: a copy on the host has an odd number and one on the device an even one, 0 for what was made there, each higher than all
before. Values are named without one: a number is put on where an instruction is written.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hocket.program.instruction import Value, ValueKind

BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})
"""What goes from stage to stage."""


@dataclass
class Copies:
    """Copies of values at one point of the compute lane.

    Attributes:
        there, host: numbers of the copies on the device and on its host. last: the highest so far.
        touched: the item that last read or wrote a value on the device. used: the operation that did.
        brought: the swap-in by which a value came last.
    """

    there: dict[Value, int] = field(default_factory=dict)
    host: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    touched: dict[Value, int] = field(default_factory=dict)
    used: dict[Value, int] = field(default_factory=dict)
    brought: dict[Value, int] = field(default_factory=dict)

    def here(self, value: Value) -> Value:
        """The name of the copy on the device."""
        copy = self.there[value]
        return value._replace(copy=copy) if copy else value

    def new(self, value: Value, on_host: bool) -> Value:
        """The name of the next copy, on the host or on the device."""
        last = self.last[value]
        self.last[value] = last + 1 + (last + 1 + on_host) % 2
        return value._replace(copy=self.last[value])

    def come(self, value: Value, operation: int, item: int) -> None:
        """A value is made on the device, or received there (item -1)."""
        self.touch(value, operation, item)
        self.there[value] = 0
        self.last.setdefault(value, 0)

    def touch(self, value: Value, operation: int, item: int) -> None:
        """An item of an operation reads or writes a value."""
        self.touched[value], self.used[value] = item, operation

    def bring(self, made: Value, operation: int, item: int) -> None:
        """A copy is swapped in."""
        value = made._replace(copy=0)
        self.touch(value, operation, item)
        self.there[value], self.brought[value] = made.copy, item


def in_order(values: Iterable[Value]) -> list[Value]:
    """The values in their order, border values first: a stash may share their memory."""
    return sorted(values, key=lambda v: v.what not in BORDER)

"""Values of a device that compute and swap lanes share.

Compute and each swap lane have a thread of their own.

Rules of this file: an instruction borrows what it reads and takes what it frees; what it has written is there for others when it is
over, all at once, its memory given back. So whoever waits for one of its values waits for its end, as the program says it. That
nobody frees what another lane may still read is the program's affair: a host copy is read by swaps in and freed by the swap out of the
next version, which comes behind a step that reads what they have brought (`check` proves it for every timing).

On a GPU a lane of swaps works in a stream of its own: it waits for the kernels of whoever has written what it reads, and is over when
its copies are, so that nobody need wait for it but by this.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hocket.program.instruction import Instruction, Value
from hocket.runtime.engine.compute_lanes import Exchange


class SharedValues(Exchange):
    """See the head of this file."""

    def __init__(self, lanes: int, values: Mapping[Value, Any]) -> None:
        """Make the store for `lanes` lanes beside compute, with the initial values."""
        super().__init__(lanes)
        self._values.update(values)
        self._events: dict[Value, Any] = {}

    def __contains__(self, value: Value) -> bool:
        return value in self._values

    def items(self) -> Iterator[tuple[Value, Any]]:
        """Yield all values. No lane may run meanwhile."""
        yield from self._values.items()

    def look_again(self) -> None:
        """A transfer has begun: it may be what somebody waits for."""
        with self._changed:
            self._changed.notify_all()

    def borrow(
        self, instruction: Instruction, arriving: Callable[[Value], bool], take: Callable[[Value], Any]
    ) -> tuple[dict[Value, Any], list[Any]]:
        """Take the values that an instruction reads, as soon as they are there.

        Values that it frees leave the store. Returns them with the GPU events to wait for.

        Arguments:
            arriving: whether a transfer brings a value. take: what it has brought, when it is there.

        Raises:
            BaseException: what another lane failed with.
        """
        needed = dict.fromkeys((*instruction.reads, *instruction.frees))

        def there(value: Value) -> bool:
            return value in self._values or arriving(value)

        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or all(map(there, needed)))
            if not all(map(there, needed)):
                assert self.failure is not None
                raise self.failure
            # All at once: what is freed is others' until then.
            found = {value: self._values[value] for value in needed if value in self._values}
            events = [self._events[value] for value in needed if value in self._events]
            for value in instruction.frees:
                self._values.pop(value, None)
                self._events.pop(value, None)
        for value in needed:
            if value not in found:
                found[value] = take(value)
                if value not in instruction.frees:
                    self.put({value: found[value]})
        return found, events

    def put(self, values: Mapping[Value, Any], event: Any = None) -> None:
        """Values are there.

        Arguments:
            event: of a GPU, behind the kernels that make them.
        """
        with self._changed:
            self._values.update(values)
            if event is not None:
                self._events.update(dict.fromkeys(values, event))
            self._changed.notify_all()

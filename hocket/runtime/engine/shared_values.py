"""Values of a device that compute and swap lanes share.

The compute lane and each swap lane have their own threads. An instruction borrows the values that it reads, and removes
the values that it frees. All its outputs become visible together when it ends, after its memory is released. So a lane
that waits for one of its values waits for its end, as the program defines.

The program guarantees that no lane frees a value that another lane may still read. A host copy is read by swaps in, and
freed by the swap out of the next version. That swap out comes after a step that reads the values of these swaps in.
`check` proves this for every timing.

On a GPU, a swap lane works in its own stream. It waits for the kernels that compute its inputs, and it ends when its
copies are complete. So no other lane needs to wait for a swap lane's stream.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hocket.program.instruction import Instruction, Value
from hocket.runtime.engine.compute_lanes import Exchange


class SharedValues(Exchange):
    """Store of shared values; see the module's docstring."""

    def __init__(self, lanes: int, values: Mapping[Value, Any]) -> None:
        """Create the store with initial values, for `lanes` swap lanes."""
        super().__init__(lanes)
        self._values.update(values)
        self._events: dict[Value, Any] = {}

    def __contains__(self, value: Value) -> bool:
        return value in self._values

    def items(self) -> Iterator[tuple[Value, Any]]:
        """Yield all values; no lane may run meanwhile."""
        yield from self._values.items()

    def look_again(self) -> None:
        """Wake up waiting lanes: a transfer has begun that may bring a missing value."""
        with self._changed:
            self._changed.notify_all()

    def borrow(
        self, instruction: Instruction, arriving: Callable[[Value], bool], take: Callable[[Value], Any]
    ) -> tuple[dict[Value, Any], list[Any]]:
        """Wait for the values that an instruction reads or frees; remove the freed ones.

        Arguments:
            arriving: returns True if a transfer of the value has begun.
            take: waits for the transfer of a value and returns the received object.

        Returns:
            The values that the instruction reads or frees, and the GPU events after which they are computed.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        needed = dict.fromkeys((*instruction.reads, *instruction.frees))

        def there(value: Value) -> bool:
            return value in self._values or arriving(value)

        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or all(map(there, needed)))
            if not all(map(there, needed)):
                assert self.failure is not None
                raise self.failure
            # Remove all freed values together; other lanes may read them until then.
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
        """Make values visible to all lanes.

        Arguments:
            event: GPU event after the kernels that compute the values; None if they are complete.
        """
        with self._changed:
            self._values.update(values)
            if event is not None:
                self._events.update(dict.fromkeys(values, event))
            self._changed.notify_all()

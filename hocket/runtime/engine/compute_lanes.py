"""Lanes of one device beyond the first compute lane, and their exchange of values.

Waves (program/rule.py) and loads that run ahead (program/passes/prefetch.py) run in these lanes, each in its own
thread. The lane that writes a value publishes it, and the lane that reads it waits for it. If a lane fails, all other
lanes end with its exception. On a GPU, a thread only enqueues kernels into its lane's stream; events order the streams.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from hocket.program.instruction import Value


class Exchange:
    """Exchange between the compute lanes of one device.

    It passes values, and the first lane's decisions whether another period follows.

    Attributes:
        failure: first exception of any lane.
    """

    def __init__(self, lanes: int) -> None:
        """Create the exchange for `lanes` lanes in addition to the first compute lane."""
        self.failure: BaseException | None = None
        self._values: dict[Value, Any] = {}
        self._changed = threading.Condition()
        self._answers: list[SimpleQueue[bool | None]] = [SimpleQueue() for _ in range(lanes)]

    def give(self, value: Value, thing: Any) -> None:
        """Publish a value for the lane that reads it.

        Arguments:
            thing: the engine's object for the value (stage/device.py).
        """
        with self._changed:
            self._values[value] = thing
            self._changed.notify_all()

    def take(self, value: Value) -> Any:
        """Wait for a value of another lane, remove it from the exchange and return it.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: value in self._values or self.failure is not None)
            if value not in self._values:
                assert self.failure is not None
                raise self.failure
            return self._values.pop(value)

    def left(self) -> dict[Value, Any]:
        """Remove all values that no lane has taken, and return them."""
        with self._changed:
            found, self._values = self._values, {}
            return found

    def look_again(self) -> None:
        """Do nothing: compute lanes do not wait here for transfers (see SharedValues)."""

    def answer(self, goes_on: bool) -> None:
        """Tell every additional lane whether one more period follows."""
        for answers in self._answers:
            answers.put(goes_on)

    def goes_on(self, lane: int) -> bool:
        """Wait for the next `answer`; True if one more period follows.

        It is False after a failure.

        Arguments:
            lane: number of the waiting lane, from 0, without the first compute lane.
        """
        return bool(self._answers[lane].get())

    def fail(self, error: BaseException) -> None:
        """Record a lane's exception, if it is the first one, and wake up all waiting lanes.

        A lane that waits in `take` for a missing value raises the first exception. For a lane that waits in `goes_on`,
        the answer is False, so it runs no further period.

        Arguments:
            error: the exception.
        """
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        for answers in self._answers:
            answers.put(None)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Context manager that reports an exception inside it to all lanes, and raises it again."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise


class Lanes:
    """Threads of a device's further lanes; the first compute lane runs in the thread that calls the engine."""

    def __init__(self, exchange: Exchange, works: Sequence[Callable[[int], None]], name: str) -> None:
        """Start one thread for each function.

        Arguments:
            works: functions, called with their index in `works`.
            name: beginning of the threads' names.
        """
        self._exchange = exchange
        self._threads = [
            threading.Thread(target=self._run, args=(work, k), name=f"{name} wave {k + 1}", daemon=True)
            for k, work in enumerate(works)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # waiting lanes raise it
            self._exchange.fail(error)

    def join(self) -> None:
        """Wait until all threads have ended.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        for thread in self._threads:
            thread.join()
        if self._exchange.failure is not None:
            raise self._exchange.failure

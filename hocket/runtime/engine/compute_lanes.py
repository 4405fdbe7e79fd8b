"""Compute lanes of one device beyond the first, and their exchange of values.

Waves run in these lanes, each in its own thread. The lane that writes a value gives it, and the lane that reads it
takes it. A lane that comes first waits. If a lane fails, all other lanes end with its exception. On a GPU, a thread
only enqueues kernels into its lane's stream; events order the streams.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from hocket.program.instruction import Value


class Exchange:
    """Exchange between the compute lanes of one device.

    It passes values, and the decisions of the first lane.

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
        """Publish a value."""
        with self._changed:
            self._values[value] = thing
            self._changed.notify_all()

    def take(self, value: Value) -> Any:
        """Wait for a value of another lane and remove it.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: value in self._values or self.failure is not None)
            if value not in self._values:
                assert self.failure is not None
                raise self.failure
            return self._values.pop(value)

    def look_again(self) -> None:
        """Note that a transfer has begun; waiting lanes check again."""

    def answer(self, goes_on: bool) -> None:
        """Publish whether another period follows the announced ones."""
        for answers in self._answers:
            answers.put(goes_on)

    def goes_on(self, lane: int) -> bool:
        """Wait for the next answer for one lane; False after a failure."""
        return bool(self._answers[lane].get())

    def fail(self, error: BaseException) -> None:
        """Record a lane's failure and wake up all waiting lanes."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()
        for answers in self._answers:
            answers.put(None)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Report an exception of the body to all lanes."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise


class Lanes:
    """Threads of the lanes in addition to the first compute lane."""

    def __init__(self, exchange: Exchange, works: Sequence[Callable[[int], None]], name: str) -> None:
        """Start the threads; each receives its number."""
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
        """Wait for all threads.

        Raises:
            BaseException: the exception of a lane that failed.
        """
        for thread in self._threads:
            thread.join()
        if self._exchange.failure is not None:
            raise self._exchange.failure

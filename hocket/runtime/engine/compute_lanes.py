"""Compute lanes of one device beyond the first, and their exchange of values.

Waves run in these lanes, each in a thread of its own.

Rules of this file: a value is given by the lane that writes it and taken by the one that reads it; who comes first waits. Whoever fails
says so, and all others end with that failure. On a GPU a thread only puts kernels into its lane's stream; events order the streams.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from hocket.program.instruction import Value


class Exchange:
    """Exchange between the compute lanes of one device.

    It passes values, and decisions of the first lane.

    Attributes:
        failure: of any lane.
    """

    def __init__(self, lanes: int) -> None:
        """Make the exchange for `lanes` compute lanes beside the first."""
        self.failure: BaseException | None = None
        self._values: dict[Value, Any] = {}
        self._changed = threading.Condition()
        self._answers: list[SimpleQueue[bool | None]] = [SimpleQueue() for _ in range(lanes)]

    def give(self, value: Value, thing: Any) -> None:
        """A value is there."""
        with self._changed:
            self._values[value] = thing
            self._changed.notify_all()

    def take(self, value: Value) -> Any:
        """A value of another lane, as soon as it is there.

        Raises:
            BaseException: what another lane failed with.
        """
        with self._changed:
            self._changed.wait_for(lambda: value in self._values or self.failure is not None)
            if value not in self._values:
                assert self.failure is not None
                raise self.failure
            return self._values.pop(value)

    def look_again(self) -> None:
        """A transfer has begun."""

    def answer(self, goes_on: bool) -> None:
        """Publish whether another period follows the announced ones."""
        for answers in self._answers:
            answers.put(goes_on)

    def goes_on(self, lane: int) -> bool:
        """The next answer, for one lane; False where there will be none."""
        return bool(self._answers[lane].get())

    def fail(self, error: BaseException) -> None:
        """A lane has failed: nobody waits any longer."""
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
    """The threads of the lanes beside the first."""

    def __init__(self, exchange: Exchange, works: Sequence[Callable[[int], None]], name: str) -> None:
        """Start them; each is told its number."""
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
        except BaseException as error:  # whoever waits raises it
            self._exchange.fail(error)

    def join(self) -> None:
        """Return when all are at their end.

        Raises:
            BaseException: what one of them failed with.
        """
        for thread in self._threads:
            thread.join()
        if self._exchange.failure is not None:
            raise self._exchange.failure

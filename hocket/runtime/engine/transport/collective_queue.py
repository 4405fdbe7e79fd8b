"""Queue of the all-reduces of one lane.

Each begins as soon as the one before it is over.

Rules of this file: a lane's all-reduces go over several process groups at once (a piece of the bucket each), and what is next may
take another number of them. So a thread of the lane waits for the last piece before it begins what is next; compute goes on
meanwhile. It also knows when each was over, however late compute asks.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from hocket.runtime.engine.transport.shared_memory import SharedTransfer

Begin = Callable[[], list[SharedTransfer]]


class Turn:
    """One all-reduce of a lane, pending or begun. It is a `SharedTransfer`.

    Attributes:
        start_s, end_s: when it was its turn, and when it was over, on the clock of the lane.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin, self._over = begin, threading.Event()
        self._failure: Exception | None = None
        self.start_s = self.end_s = 0.0

    def take(self, clock: Callable[[], float]) -> None:
        """Do it, in the lane's thread."""
        self.start_s = clock()
        try:
            _done(self._begin)
        except Exception as error:  # whoever waits raises it
            self._failure = error
        self.end_s = clock()
        del self._begin  # and the tensors that it holds, before anybody goes on
        self._over.set()

    def wait(self) -> None:
        """See `SharedTransfer`.

        Raises:
            RuntimeError: it failed.
        """
        self._over.wait()
        if self._failure is not None:
            raise self._failure


def _done(begin: Begin) -> None:
    # By itself: its works, and their tensors, are gone when it returns.
    for work in begin():
        work.wait()


class CollectiveQueue:
    """The thread of one lane."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: SimpleQueue[Turn | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, begin: Begin) -> Turn:
        """Append a collective to the queue."""
        turn = Turn(begin)
        self._queue.put(turn)
        return turn

    def end(self) -> None:
        """Return when all are over."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (turn := self._queue.get()) is not None:
            turn.take(self._clock)

"""Queue of the collectives of one lane, which run one after the other.

Gloo would run two collectives of one process group at once. Then the first, which compute needs first, would end
later. An all-reduce uses several process groups at once, one for each piece of the bucket, and the next all-reduce may
use another number of groups. So a thread of the lane waits for the last piece before it begins the next collective.
The compute lane continues meanwhile. The thread also records the end of each collective, even if the compute lane asks
late.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from hocket.runtime.engine.transport.shared_memory import SharedTransfer

Begin = Callable[[], list[SharedTransfer]]


class Turn:
    """One collective of a lane, pending or begun; it is a `SharedTransfer`.

    Attributes:
        start_s, end_s: begin and end on the lane's clock, in seconds.
    """

    def __init__(self, begin: Begin) -> None:
        self._begin, self._over = begin, threading.Event()
        self._failure: Exception | None = None
        self.start_s = self.end_s = 0.0

    def take(self, clock: Callable[[], float]) -> None:
        """Run the collective, in the lane's thread.

        Arguments:
            clock: current time in seconds.
        """
        self.start_s = clock()
        try:
            _done(self._begin)
        except Exception as error:  # `wait` raises it
            self._failure = error
        self.end_s = clock()
        del self._begin  # frees its tensors before `wait` returns
        self._over.set()

    def wait(self) -> None:
        """Wait until the lane's thread has completed this collective.

        Raises:
            RuntimeError: the collective failed.
        """
        self._over.wait()
        if self._failure is not None:
            raise self._failure


def _done(begin: Begin) -> None:
    # A separate function, so that its works and their tensors are freed when it returns.
    for work in begin():
        work.wait()


class CollectiveQueue:
    """Queue of one lane's collectives, with the thread that runs them."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: SimpleQueue[Turn | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, begin: Begin) -> Turn:
        """Append a collective to the queue.

        Arguments:
            begin: begins the collective and returns its pending transfers; the lane's thread calls it.
        """
        turn = Turn(begin)
        self._queue.put(turn)
        return turn

    def end(self) -> None:
        """Wait until all collectives are complete, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (turn := self._queue.get()) is not None:
            turn.take(self._clock)

"""Losses of microbatches, on their way from the compute lane to the observer."""

from collections import deque
from typing import Any

from torch import Tensor

from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.progress.observer import Observer


class Losses:
    """Losses that nobody has looked at yet: reading one waits for a GPU."""

    def __init__(self, handover: StreamHandover, observer: Observer, guard: Guard) -> None:
        self._handover, self._observer, self._guard = handover, observer, guard
        self._made: deque[tuple[int, Any, int, float]] = deque()

    def __bool__(self) -> bool:
        return bool(self._made)

    def note(self, microbatch: int, loss: Tensor, samples: int, weight: float) -> None:
        """A microbatch's loss is made, or will be where the current stream is at."""
        self._made.append((microbatch, self._handover.given((loss,)), samples, weight))

    def report(self) -> None:
        """Tell the observer of all that were noted."""
        while self._made:
            microbatch, loss, samples, weight = self._made.popleft()
            value = float(self._handover.taken(loss)[0])
            self._guard.loss(microbatch, value, samples, weight)
            self._observer.loss(microbatch, value, samples, weight)

"""Losses of microbatches, between the compute lane and the observer."""

from collections import deque
from typing import Any

from torch import Tensor

from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.progress.observer import Observer


class Losses:
    """Losses that are computed but not yet read, because reading one waits for a GPU."""

    def __init__(self, handover: StreamHandover, observer: Observer, guard: Guard) -> None:
        self._handover, self._observer, self._guard = handover, observer, guard
        self._made: deque[tuple[int, Any, int, float]] = deque()

    def __bool__(self) -> bool:
        return bool(self._made)

    def note(self, microbatch: int, loss: Tensor, samples: int, weight: float) -> None:
        """Add a microbatch's loss, which the current stream has computed or will compute."""
        self._made.append((microbatch, self._handover.given((loss,)), samples, weight))

    def report(self) -> None:
        """Read all added losses, and report them to the nan guard and the observer."""
        while self._made:
            microbatch, loss, samples, weight = self._made.popleft()
            value = float(self._handover.taken(loss)[0])
            self._guard.loss(microbatch, value, samples, weight)
            self._observer.loss(microbatch, value, samples, weight)

"""Stopwatch of a measurement: the seconds that each of its parts took, for people."""

import time
from collections.abc import Callable

from hocket.util.units import show_seconds

SPENT = "measuring took "
"""Beginning of the note in a profile that lists the parts of its measurement."""


class Stopwatch:
    """Seconds of the parts of a measurement, in the order in which the parts began.

    Arguments:
        clock: current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._since = clock, clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Add the seconds since the last lap, or since the start, to a part."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    @property
    def note(self) -> str:
        """Text with the whole time and the parts, such as "measuring took 3.00 s: capture 1.00 s, layers 2.00 s"."""
        parts = ", ".join(f"{part} {show_seconds(seconds)}" for part, seconds in self.seconds.items())
        return f"{SPENT}{show_seconds(sum(self.seconds.values()))}: {parts}"

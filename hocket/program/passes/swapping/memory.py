"""Room: the bytes of one device's memory while its program is written.

Rules of this file: how much is there, how much more may be, and who is on the way out; never whose bytes these are.
"""

from collections.abc import Iterable

from hocket.program.instruction import Value
from hocket.program.memory_bound.footprint import Sizes
from hocket.program.order import heir_of
from hocket.program.passes.swapping.operations import Operation


class MemoryBudget:
    """Used bytes of a budget. Without sizes or a limit there is always room.

    Attributes:
        cleared: the last swap-out that room was waited for, -1 for none: whoever comes next may come only when it is over.
    """

    def __init__(self, sizes: Sizes | None, device: int, limit: float | None) -> None:
        self._sizes, self._device, self._limit = sizes, device, limit
        self._level = 0.0
        self._going: list[tuple[int, float]] = []  # swap-outs and their bytes, counted until somebody waits for them
        self.cleared = -1

    def size(self, value: Value) -> float:
        """Bytes of a value on the device."""
        return self._sizes.value(value, self._device) if self._sizes is not None else 0.0

    def added(self, operation: Operation) -> float:
        """The most that an operation adds to what is there when it begins."""
        if self._sizes is None:
            return 0.0
        level = most = 0.0
        for i in operation.instructions:
            most = max(most, level + self._sizes.held(i))
            inherited = {heir_of(i, v) for v in i.writes}
            level += sum(self.size(v) for v in i.writes if heir_of(i, v) is None)
            level -= sum(self.size(v) for v in i.frees if v not in inherited)
        return most

    def total(self, values: Iterable[Value]) -> float:
        """Bytes of several values."""
        return sum(map(self.size, values))

    def over(self, extra: float) -> float:
        """Bytes by which the limit is exceeded when so many come; below 0 or 0 where they fit."""
        if self._limit is None or self._sizes is None:
            return 0.0
        return self._sizes.besides(self._device) + self._level + extra - self._limit

    def fits(self, extra: float) -> bool:
        """True if these bytes fit, possibly after evictions in progress."""
        while self.over(extra) > 0 and self._going:
            self.cleared, size = self._going.pop(0)
            self._level -= size
        return self.over(extra) <= 0

    def take(self, size: float) -> None:
        """Something comes."""
        self._level += size

    def give(self, size: float) -> None:
        """Something is gone."""
        self._level -= size

    def leaving(self, item: int, size: float) -> None:
        """Something goes with a swap-out beside computation: it is there until somebody waits for that."""
        self._going.append((item, size))

    @property
    def last_leaving(self) -> int | None:
        """The last swap-out that nobody has waited for."""
        return self._going[-1][0] if self._going else None

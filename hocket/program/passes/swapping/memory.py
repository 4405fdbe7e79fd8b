"""Memory budget of one device: bytes in use, counted while the device's program is written.

Rules of this file: how much is used, how much may be added, and which bytes are being swapped out; not which values
these bytes belong to.
"""

from collections.abc import Iterable

from hocket.program.instruction import Value
from hocket.program.memory_bound.footprint import Sizes
from hocket.program.order import heir_of
from hocket.program.passes.swapping.operations import Operation


class MemoryBudget:
    """Bytes used of a device's limit. Without sizes or a limit there is always room.

    Attributes:
        cleared: draft number of the last swap-out that must be over so that there is room, -1 for none. The next value
            may be swapped in only after it.
    """

    def __init__(self, sizes: Sizes | None, device: int, limit: float | None) -> None:
        self._sizes, self._device, self._limit = sizes, device, limit
        self._level = 0.0
        self._going: list[tuple[int, float]] = []  # swap-outs and their bytes, in use until an item waits
        self.cleared = -1

    def size(self, value: Value) -> float:
        """Bytes of a value on the device."""
        return self._sizes.value(value, self._device) if self._sizes is not None else 0.0

    def added(self, operation: Operation) -> float:
        """Maximum bytes that an operation adds to the bytes used when it begins."""
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
        """Bytes of several values on the device, added up."""
        return sum(map(self.size, values))

    def over(self, extra: float) -> float:
        """Bytes above the limit if `extra` bytes are added; 0 or less if they fit."""
        if self._limit is None or self._sizes is None:
            return 0.0
        return self._sizes.besides(self._device) + self._level + extra - self._limit

    def fits(self, extra: float) -> bool:
        """True if additional bytes fit, if necessary after pending swap-outs.

        The oldest pending swap-outs are then waited for (`cleared`), and their bytes count as free.
        """
        while self.over(extra) > 0 and self._going:
            self.cleared, size = self._going.pop(0)
            self._level -= size
        return self.over(extra) <= 0

    def take(self, size: float) -> None:
        """Count bytes as used from now on."""
        self._level += size

    def give(self, size: float) -> None:
        """Count bytes as free again that `take` has counted as used."""
        self._level -= size

    def leaving(self, item: int, size: float) -> None:
        """Note a swap-out that runs beside computation.

        Its bytes count as used until `fits` waits for it.

        Arguments:
            item: number of the swap-out in the draft.
            size: its bytes.
        """
        self._going.append((item, size))

    @property
    def last_leaving(self) -> int | None:
        """Draft number of the last swap-out that is not waited for; None if there is none."""
        return self._going[-1][0] if self._going else None

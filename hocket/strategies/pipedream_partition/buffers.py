"""Execution of the search's sweeps: plain Python or compiled, in memory that is kept between sweeps.

Compiled loops are fifty to a hundred times faster, but numba takes 0.3 s to load them, and 5 to 20 s to compile them
once on a machine. So a process begins with plain ones, and goes over to compiled ones when it has done what would have paid for
them. Both are the same functions, and give the same answer to the last bit.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from hocket.strategies.pipedream_partition import kernel

PLAIN_WORK = 1_000_000  # pairs of cuts times positions in all sweeps of a process: about 0.4 s of plain Python
SWEEPS = 40  # that whoever asks for one is taken to ask for
FEW_STATES = 2048  # room for so many more than one stage from one state can reach
_worked = 0


class Loops:
    """The sweeps of one search over a graph of so many cuts on so many devices."""

    def __init__(self, cuts: int, devices: int, levels: int) -> None:
        self._pairs = cuts * (cuts - 1) // 2
        self.compiled = _worked + SWEEPS * self._pairs * devices > PLAIN_WORK
        self._levels = levels
        self._cells = self._states = self._few = 0
        self._reached: tuple[Any, ...] = ()
        self._found: tuple[Any, ...] = ()
        whole = [self._room(size, int) for size in (cuts, cuts, cuts, levels, levels)]
        self._small = (*whole[:3], self._room(4 * cuts, float), self._room(levels, float), *whole[3:])
        self._table: tuple[Any, ...] = ()  # all of these, as the loops take them

    def told(self, figures: np.ndarray) -> Any:
        """A table of one dimension as the loops read it."""
        return figures if self.compiled else figures.tolist()

    def sweep(
        self, limit_s: float, figures: tuple[Any, ...], wishes: tuple[Any, ...], cells: int, own: int, few: int
    ) -> tuple[int, float, int]:
        """`_partition_kernel.sweep`.

        Arguments:
            figures: graph, topology (the number of positions first), memory.
            cells, own: pairs of a cut and a position, where stages are counted once for each number; states in each.
            few: how many states may be reached from one.
        """
        global _worked
        if not self.compiled:
            _worked += self._pairs * figures[1][0]
        self._grow(cells, cells * own, few + FEW_STATES)
        while True:
            stages, cost_s, end = self._loop(limit_s, *figures, wishes, self._table)
            if stages >= 0:
                return stages, cost_s, end
            self._grow(cells, cells * own, 2 * self._few)

    def trail(self, row: int) -> tuple[int, int, int]:
        """(state, row before, replicas) in a row of the last sweep's trail."""
        state, before, replicas = self._found[1][row : row + 3]
        return int(state), int(before), int(replicas)

    @cached_property
    def _loop(self) -> Callable[..., tuple[int, float, int]]:
        if not self.compiled:
            return kernel.sweep
        from hocket.strategies.pipedream_partition.kernel_numba import sweep

        return sweep

    def _grow(self, cells: int, states: int, few: int) -> None:
        """Make room for more, where there is not enough."""
        if cells > self._cells or states > self._states:
            self._cells, self._states = max(cells, self._cells), max(states, self._states)
            self._reached = tuple(self._room(size, int) for size in (self._states, self._cells, self._cells))
        elif few <= self._few:
            return
        if few > self._few:
            self._few = few
            self._found = tuple(self._room((self._levels + 2) * few, kind) for kind in (float, int))
        self._table = *self._reached, *self._found, *self._small

    def _room(self, size: int, kind: type) -> Any:
        """Zeros; whole numbers are never below zero, and the compiler makes use of it."""
        return np.zeros(size, dtype=np.uint32 if kind is int else float) if self.compiled else [kind()] * size

"""Buffers and execution of the search's sweeps, in plain Python or compiled.

Buffers are kept between sweeps. Compiled loops are fifty to a hundred times faster, but numba takes 0.3 s to load
them, and 5 to 20 s to compile them once on a machine. So a process begins with plain loops. It changes to compiled
loops when its work would have paid for them. Both are the same functions, and give the same answer to the last bit.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from hocket.strategies.pipedream_partition import kernel

PLAIN_WORK = 1_000_000  # pairs of cuts times positions in all sweeps of a process: about 0.4 s of plain Python
SWEEPS = 40  # expected number of sweeps of a search
FEW_STATES = 2048  # additional rows, beyond the states that one stage can reach from one state
_worked = 0


class Loops:
    """Sweeps of one search, with their buffers.

    Arguments:
        cuts: number of cuts of the graph.
        devices: number of devices of the cluster.
        levels: number of levels of the cluster.
    """

    def __init__(self, cuts: int, devices: int, levels: int) -> None:
        self._pairs = cuts * (cuts - 1) // 2
        self.compiled = _worked + SWEEPS * self._pairs * devices > PLAIN_WORK
        self._levels = levels
        self._cells = self._states = self._few = 0
        self._reached: tuple[Any, ...] = ()
        self._found: tuple[Any, ...] = ()
        whole = [self._room(size, int) for size in (cuts, cuts, cuts, levels, levels)]
        self._small = (*whole[:3], self._room(4 * cuts, float), self._room(levels, float), *whole[3:])
        self._table: tuple[Any, ...] = ()  # all buffers, in the order of the loops' arguments

    def told(self, figures: np.ndarray) -> Any:
        """A one-dimensional table as the loops read it: an array if compiled, else a list."""
        return figures if self.compiled else figures.tolist()

    def sweep(
        self, limit_s: float, figures: tuple[Any, ...], wishes: tuple[Any, ...], cells: int, own: int, few: int
    ) -> tuple[int, float, int]:
        """Run `kernel.sweep`, and enlarge the buffers until they suffice.

        Arguments:
            limit_s: maximum of every term of the pipeline, in seconds.
            figures: graph, topology (the number of positions first), memory.
            wishes: options of the sweep.
            cells: pairs of a cut and a position; if states are separated by the number of stages, pairs for each
                number.
            own: states of each pair.
            few: number of states that can be reached from one state.
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
        """State, row before it and replicas, from a row of the last sweep's trail."""
        state, before, replicas = self._found[1][row : row + 3]
        return int(state), int(before), int(replicas)

    @cached_property
    def _loop(self) -> Callable[..., tuple[int, float, int]]:
        if not self.compiled:
            return kernel.sweep
        from hocket.strategies.pipedream_partition.kernel_numba import sweep

        return sweep

    def _grow(self, cells: int, states: int, few: int) -> None:
        """Enlarge the buffers that are too small."""
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
        """A buffer of zeros; integers are unsigned, which makes compiled code faster."""
        return np.zeros(size, dtype=np.uint32 if kind is int else float) if self.compiled else [kind()] * size

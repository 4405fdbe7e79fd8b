"""Buffers and execution of sweeps (kernel.py), in plain Python or compiled.

Buffers are reused by all sweeps of a search. Compiled loops are fifty to a hundred times faster, but numba takes 0.3 s
to load them, and 5 to 20 s to compile them once on a machine. So a process begins with plain loops. It changes to
compiled loops when its work would have paid for them. Both are the same functions, and give the same answer to the
last bit.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from hocket.strategies.pipedream_partition import kernel

# Maximum work of a process in plain Python: pairs of cuts times positions, in all sweeps. This takes about 0.4 s.
PLAIN_WORK = 1_000_000
SWEEPS = 40  # expected number of sweeps of a search
FEW_STATES = 2048  # rows of the buffers, in addition to the states that one stage can reach from one state
_worked = 0


class Loops:
    """Sweeps of one search, with their buffers.

    Arguments:
        cuts: number of possible cuts of the layer graph.
        devices: number of devices of the cluster.
        levels: number of levels of the cluster.

    Attributes:
        compiled: True if the sweeps run compiled.
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
        """A one-dimensional array as the loops read it: as it is if compiled, else a list."""
        return figures if self.compiled else figures.tolist()

    def sweep(
        self, limit_s: float, figures: tuple[Any, ...], wishes: tuple[Any, ...], cells: int, own: int, few: int
    ) -> tuple[int, float, int]:
        """Run `kernel.sweep`, and enlarge the buffers until they suffice.

        Arguments:
            limit_s: maximum bottleneck, in seconds.
            figures: `graph`, `topology` and `memory` of `kernel.sweep`.
            wishes: options of the sweep, as in `kernel.sweep`.
            cells: number of pairs of a cut and a position. If states are separated by the number of stages, this is
                the number of pairs times the possible numbers of stages.
            own: number of states of each pair.
            few: number of states that can be reached from one state.

        Returns:
            The result of `kernel.sweep`; the number of stages is never -1.
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
        """Read a row of the last sweep's buffer `trail` (see `kernel.sweep`).

        Arguments:
            row: index of its first entry.

        Returns:
            The state, the row of the state before it, and the replicas of the stage between (0 for idle devices).
        """
        state, before, replicas = self._found[1][row : row + 3]
        return int(state), int(before), int(replicas)

    @cached_property
    def _loop(self) -> Callable[..., tuple[int, float, int]]:
        if not self.compiled:
            return kernel.sweep
        from hocket.strategies.pipedream_partition.kernel_numba import sweep

        return sweep

    def _grow(self, cells: int, states: int, few: int) -> None:
        """Enlarge the buffers that are too small.

        Arguments:
            cells: number of pairs of a cut and a position.
            states: number of states.
            few: number of rows for states that are reached.
        """
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
        """A buffer of zeros: an array if compiled, else a list.

        Integers of an array are unsigned, which makes compiled code faster.
        """
        return np.zeros(size, dtype=np.uint32 if kind is int else float) if self.compiled else [kind()] * size

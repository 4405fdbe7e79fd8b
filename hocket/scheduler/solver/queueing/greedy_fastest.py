"""Turns: who runs where, if one after the other in a line has the fastest workers that are left.

`serve` is in the part of Python that runs as it stands and that numba compiles: both give the same bits. Compiled it is through
in a microsecond where plain Python takes three to ten, but to load it takes 0.25 s of processor time, and to compile it, once
on a machine, another half. So a process begins with the plain one, and goes over when it has done what would have paid for that.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

PLAIN_WORK = 1_000_000  # jobs in the lines of a process: about 0.25 s of plain Python
# What a line where nobody overtakes is taken to count for: whoever wants such queues calls the policy itself, again and again;
# others are asked for by simulations, each once, with much to do in between.
STRICT_WORK = 62_500
_INDEX = np.dtype(np.int64)
_Serve = Callable[[Any, Any, int, bool, Any], tuple[int, int, float]]
_worked = 0


def served(
    steps: np.ndarray, scale: Sequence[int], workers: list[int], kind: list[int], overtake: bool
) -> tuple[np.ndarray, int, float] | None:
    """Columns of those whose turn comes, in the order of the line, -1 of those whom nothing fits; how many run; their worth.

    None if somebody in line can run nowhere, not even if all workers are free.

    Arguments:
        steps: throughputs of those in line; shape (line, columns). scale: their scale factors.
        workers: of each type. kind: each column's type.
        overtake: whether others go on where one fits nowhere; if not, it is the last one whose turn comes.
    """
    global _worked
    table, line = [*workers, *kind, *scale], len(steps)
    fast = None
    if _worked < PLAIN_WORK:
        _worked += line if overtake else STRICT_WORK
    elif (fast := compiled()) is not None:
        try:
            figures = np.fromiter(table, _INDEX, len(table))
        except OverflowError:  # somebody asks for more workers than can be counted so
            fast = None
    if fast is None:
        found = [0] * line
        end, run, worth = serve(steps.tolist(), table, len(workers), overtake, found)
        columns = np.fromiter(found, _INDEX, line)
    else:
        columns = np.empty(line, _INDEX)
        end, run, worth = fast(np.ascontiguousarray(steps, float), figures, len(workers), overtake, columns)
    return None if end < 0 else (columns[:end], run, worth)


def serve(steps: Any, table: Any, types: int, overtake: bool, found: Any) -> tuple[int, int, float]:
    """How many have had their turn (-1: somebody can run nowhere), how many of them run, and what that is worth.

    Arguments: as `served` has them; table: workers of the types, then types of the columns, then scale factors of those in line.
        found: columns, written for those who have had their turn.
    """
    line = len(steps)
    columns = len(table) - types - line
    workers, kind, scale = table[:types], table[types : types + columns], table[types + columns :]
    left = workers.copy()
    free = sum(left)
    end, run = 0, 0
    lost = 0.0  # of what all would be worth on their fastest
    while end < line and free > 0 and (overtake or run == end):
        speeds, needs = steps[end], scale[end]
        best, most, at = 0.0, 0.0, -1  # most: on workers that are left
        for c in range(columns):
            speed = speeds[c]
            if speed > most:
                own = kind[c]
                if needs <= left[own]:
                    most, at = speed, c
                elif speed > best and needs <= workers[own]:
                    best = speed
        if most > best:
            best = most
        if best == 0.0:
            return -1, 0, 0.0
        if at < 0:
            lost += line - end
        else:
            left[kind[at]] -= needs
            free -= needs
            run += 1
            if most < best:
                lost += (line - end) * (1.0 - most / best)
        found[end] = at
        end += 1
    for j in range(end, line):
        for c in range(columns):
            if steps[j][c] > 0.0 and scale[j] <= workers[kind[c]]:
                break
        else:
            return -1, 0, 0.0
    return end, run, end * (2 * line - end + 1) / 2 - lost


@cache
def compiled() -> _Serve | None:
    """`serve` compiled by numba; None where that is not installed, or has no folder for what it compiles."""
    try:
        from numba import njit

        fast: _Serve = njit(cache=True)(serve)
    except (ImportError, RuntimeError):
        return None
    return fast

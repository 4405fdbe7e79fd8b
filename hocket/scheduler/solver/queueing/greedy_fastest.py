"""Greedy queue: jobs take the fastest remaining workers in order.

`serve` is written in the subset of Python that numba can compile; both versions give bitwise equal results. Compiled
it takes one microsecond, and in plain Python three to ten. Loading the compiled version costs 0.25 s of CPU time, and
compiling it, once per machine, another 0.5 s. A process therefore starts with plain Python, and switches when it has
spent about as much time in plain Python as the load costs.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

PLAIN_WORK = 1_000_000  # queued jobs per process: about 0.25 s of plain Python
# Assumed work of a queue without overtaking. Callers of such queues call the policy directly and repeatedly;
# other queues come from simulations, once per round, with much other work in between.
STRICT_WORK = 62_500
_INDEX = np.dtype(np.int64)
_Serve = Callable[[Any, Any, int, bool, Any], tuple[int, int, float]]
_worked = 0


def served(
    steps: np.ndarray, scale: Sequence[int], workers: list[int], kind: list[int], overtake: bool
) -> tuple[np.ndarray, int, float] | None:
    """Give each queued job, in order, the fastest of the remaining workers.

    Arguments:
        steps: throughputs of the queued jobs, in queue order; shape (jobs, columns).
        scale: scale factor (number of workers) of each queued job.
        workers: number of workers of each type.
        kind: worker type of each column.
        overtake: True if later jobs may pass a job that does not fit; False if the queue ends at such a job.

    Returns:
        Column of each considered job in queue order, -1 if it does not fit; the number of running jobs; and the value
            of the running jobs. A job's value is its throughput, relative to its fastest column, times the number of
            jobs from this job to the end of the queue. None if a queued job cannot run even on an idle cluster.
    """
    global _worked
    table, line = [*workers, *kind, *scale], len(steps)
    fast = None
    if _worked < PLAIN_WORK:
        _worked += line if overtake else STRICT_WORK
    elif (fast := compiled()) is not None:
        try:
            figures = np.fromiter(table, _INDEX, len(table))
        except OverflowError:  # a scale factor exceeds 64 bits
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
    """Give each queued job, in order, the fastest of the remaining workers; code for both Python and numba.

    Arguments:
        steps: throughputs of the queued jobs, in queue order; shape (jobs, columns).
        overtake: True if later jobs may pass a job that does not fit; False if the queue ends at such a job.
        table: number of workers of each type, then type of each column, then scale factor of each job.
        types: number of worker types.
        found: output: column of each considered job, -1 if it does not fit.

    Returns:
        Number of considered jobs (-1 if some job cannot run), number of running jobs, and their value.
    """
    line = len(steps)
    columns = len(table) - types - line
    workers, kind, scale = table[:types], table[types : types + columns], table[types + columns :]
    left = workers.copy()
    free = sum(left)
    end, run = 0, 0
    lost = 0.0  # loss of value against all considered jobs on their fastest workers
    while end < line and free > 0 and (overtake or run == end):
        speeds, needs = steps[end], scale[end]
        best, most, at = 0.0, 0.0, -1  # best speed on an idle cluster, and on the remaining workers
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
    """Function `serve`, compiled by numba; None without numba or its cache folder."""
    try:
        from numba import njit

        fast: _Serve = njit(cache=True)(serve)
    except (ImportError, RuntimeError):
        return None
    return fast

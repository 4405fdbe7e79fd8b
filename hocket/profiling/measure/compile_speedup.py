"""Measured speed of compiled runs of layers, relative to eager execution.

A run is some consecutive layers that are compiled together. Runs execute one after the other in a whole forward and
backward.

Rules of this file: compiled and eager iterations alternate, so that a slow spell of the machine affects both. The
first compiled iteration, which compiles the code, is reported separately and not counted.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from hocket.profiling.capture.capture import Stage
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.measure.timing import LayerTimer

_RUNS = 4  # number of runs of layers; each run is compiled separately
_LEAST, _MOST = 5, 40  # iterations


def ends_of(seconds: Sequence[float]) -> tuple[int, ...]:
    """Divide layers into runs with about equal times.

    Arguments:
        seconds: seconds of each layer.

    Returns:
        For each run, the index after its last layer.
    """
    count, total = min(_RUNS, len(seconds)), sum(seconds)
    found, passed = list[int](), 0.0
    for k, each in enumerate(seconds):
        passed += each
        if passed * count >= total * (len(found) + 1) and len(found) < count - 1:
            found.append(k + 1)
    return tuple(dict.fromkeys((*found, len(seconds))))


def speedup(timers: Sequence[LayerTimer], ends: tuple[int, ...], backend: str, budget_s: float) -> Compiled:
    """Measure the speed of compiled runs of layers, relative to eager execution.

    Arguments:
        timers: one for each microbatch size, ascending.
        ends: result of `ends_of`.
        backend: backend of torch.compile.
        budget_s: approximate seconds of measurement over all sizes, without compilation. Each size gets at least
            `_LEAST` iterations.

    Raises:
        CaptureError: torch cannot compile a layer.
        RefusedError: there is no compiler.
    """
    runs = [range(a, b) for a, b in pairwise((0, *ends))]
    forward, backward = ([list[float]() for _ in runs] for _ in range(2))
    cold = []
    for timer in timers:
        at, device, clock = timer.captured, timer.device, timer.clock
        plain, code = ([Stage(at, run, device=device, compile=how) for run in runs] for how in ("", backend))
        timer.once(plain)
        began = clock()
        timer.once(code)
        first_s, began = clock() - began, clock()
        taken: list[tuple[list[list[float]], list[list[float]]]] = [([], []), ([], [])]
        while len(taken[0][0]) < _LEAST or (len(taken[0][0]) < _MOST and clock() - began < budget_s / len(timers)):
            for stages, (ahead, back) in zip((plain, code), taken, strict=True):
                seconds = timer.once(stages)
                ahead.append(seconds[0])
                back.append(seconds[1])
        usual = [[[statistics.median(row) for row in zip(*way, strict=True)] for way in ways] for ways in taken]
        cold.append(first_s - sum(usual[1][0]) - sum(usual[1][1]))
        for k in range(len(runs)):
            forward[k].append(usual[1][0][k] / usual[0][0][k])
            backward[k].append(usual[1][1][k] / usual[0][1][k] if usual[0][1][k] else 1.0)
    rows = [tuple(tuple(row) for row in way) for way in (forward, backward)]
    return Compiled(backend, max(0.0, *cold), ends, *rows)

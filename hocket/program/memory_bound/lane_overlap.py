"""Memory of a device's further compute lanes (waves) and of its load lane, by moment of its first lane.

Rules of this file: a lane runs one instruction after the other. Memory of values that only this lane writes and frees
is bounded at each moment: it is at most the memory at one of the lane's positions that are possible then. Moments are
those of footprint.py and follow from happens_before.py.
"""

from collections.abc import Callable, Iterable

import numpy as np

from hocket.program.instruction import COMPUTE, LOAD, Instruction, Value, computes
from hocket.program.order import heir_of

Run = tuple[str, Instruction, int, int]
"""Lane, instruction, first moment when it may run, and the moment after the last."""


def private(runs: Iterable[Run], pooled: Callable[[Value], bool]) -> frozenset[Value]:
    """Values that only one further compute lane writes and frees.

    Values with pooled memory are left out.
    """
    writers: dict[Value, str] = {}
    strangers: set[Value] = set()
    for lane, instruction, _, _ in runs:
        writers.update(dict.fromkeys(instruction.writes, lane))
        strangers.update(value for value in instruction.frees if writers.get(value) != lane)
    own = {value for value, lane in writers.items() if computes(lane) and lane != COMPUTE}
    return frozenset(value for value in own - strangers if not pooled(value))


def beside(
    runs: Iterable[Run],
    own: frozenset[Value],
    size: Callable[[Value], float],
    held: Callable[[Instruction], float],
    pooled: Callable[[Value], bool],
    moments: int,
) -> np.ndarray:
    """Bytes of further compute lanes and of the load lane at each moment of the first lane.

    Counted are private values, and memory of instructions while they run.

    Arguments:
        runs: instructions of all lanes, each lane in its order.
        own: the private values (see `private`).
        size: bytes of a value.
        held: maximum bytes that an instruction adds while it runs, without pooled values.
        pooled: True for a value with pooled memory.
        moments: number of moments of the first lane.

    Returns:
        Bytes of all these lanes together; shape (moments,).
    """
    found = np.zeros(moments)
    for lane in sorted({lane for lane, *_ in runs if lane == LOAD or (computes(lane) and lane != COMPUTE)}):
        level, there, since = np.zeros(moments), 0.0, 0
        for _, instruction, start, end in (run for run in runs if run[0] == lane):
            np.maximum(level[since:end], there, out=level[since:end])
            new = [v for v in instruction.writes if heir_of(instruction, v) is None and not pooled(v)]
            others = sum(size(value) for value in new if value not in own)  # footprint.py counts these as stretches
            most = there + max(0.0, held(instruction) - others)
            np.maximum(level[start:end], most, out=level[start:end])
            there += sum(size(v) for v in instruction.writes if v in own)
            there -= sum(size(v) for v in instruction.frees if v in own)
            since = start
        np.maximum(level[since:], there, out=level[since:])
        found += level
    return found

"""Order in which one device loads microbatches."""

from collections.abc import Iterator

from hocket.program.instruction import Kind
from hocket.program.program import Program


def loads_of(program: Program, device: int, repeats: int) -> Iterator[tuple[int, int]]:
    """Yield (first microbatch, number of merged microbatches) of a device's loads, in the order of the program.

    All loads of a device are in one lane: the load lane, or the compute lane.

    Arguments:
        repeats: number of repetitions of the period.
    """
    parts = [(program.prologue, 0), *((program.period, r) for r in range(repeats)), (program.epilogue, repeats)]
    for lanes, repetition in parts:
        for (own, _), instructions in lanes.items():
            for one in instructions if own == device else ():
                if one.kind is Kind.LOAD:
                    yield one.index + repetition * program.stride, program.stages[one.stage].merged

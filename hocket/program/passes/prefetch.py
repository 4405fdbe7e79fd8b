"""Loads ahead of compute: in a lane of their own, at most a few microbatches before their forwards.

Every load of a device moves from the compute lane to the lane LOAD, in the order of its forwards. It waits for a permit
(a completion marker). While a forward of a stage runs or is the stage's next one, the inputs of at most N later
microbatches of that stage and device are loaded, for a prefetch of N.

The permits are a semaphore. A run begins with N + 1 permits for each stage that reads the batch, for its first N + 1
microbatches. A load uses up the permit for its microbatch, and a forward writes the one for the microbatch N + 1 turns
later. So prologue, period and epilogue keep their instructions, the state between two periods is the same but for the
numbers, and loads run ahead across the end of a period. N + 1 permits are left at the end.

Rules of this file: permits cannot deadlock. The forward that a load waits for, and the load of that forward, stand
before it and its forward in both lanes.
"""

from dataclasses import replace

from hocket.errors import InputError
from hocket.program.instruction import LOAD, Instruction, Kind, computes
from hocket.program.order import waves
from hocket.program.program import Lane, Lanes, Program, freeze
from hocket.util.compatibility import Feature, check_together

MAX_PREFETCH = 256
"""Largest number of microbatches to load ahead."""


def check_prefetch(count: int) -> None:
    """Refuse a number of microbatches to load ahead that is out of range.

    Raises:
        InputError: it is.
    """
    if type(count) is not int or not 0 <= count <= MAX_PREFETCH:
        raise InputError("prefetch", repr(count), f"a number of microbatches from 0 to {MAX_PREFETCH}")


def with_prefetch(program: Program, count: int) -> Program:
    """Move the loads of a program to lanes of their own.

    Arguments:
        count: number of microbatches that each stage of a device may load ahead, at least 1.

    Raises:
        RefusedError: the program swaps, or has two waves on a device.
    """
    used = [Feature.SWAP] if program.swaps else []
    used += [Feature.WAVES] if waves(program.rule) else []
    check_together("prefetch", Feature.PREFETCH, *used)
    made = replace(program, name=f"{program.name} prefetch {count}", prefetch=count)
    parts = (_moved(made, part) for part in (program.prologue, program.period, program.epilogue))
    prologue, period, epilogue = parts
    return replace(made, prologue=prologue, period=period, epilogue=epilogue)


def _moved(program: Program, part: Lanes) -> Lanes:
    """Move the loads of a part of a program; let forwards write permits."""
    found: dict[Lane, list[Instruction]] = {}
    for (device, lane), instructions in part.items():
        if not computes(lane):
            found[device, lane] = list(instructions)
            continue
        for i in instructions:
            if i.kind is Kind.LOAD:
                permit = (program.permit(i.stage, i.index),)
                found.setdefault((device, LOAD), []).append(replace(i, lane=LOAD, reads=permit, frees=permit))
                continue
            if i.kind is Kind.FORWARD and not i.again and program.stages[i.stage].batch:
                i = replace(i, writes=(*i.writes, program.next_permit(i.stage, i.index)))
            found.setdefault((device, lane), []).append(i)
    return freeze(found)

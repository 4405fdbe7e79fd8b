"""Expansion of a device's tasks to compute instructions.

A task is an entry of a device's compute order (tasks.py). Each task becomes the instructions of its kind; recomputation
becomes a forward. The steps of a device follow the order of its stages. If gradients are clipped, the norm comes before
the first step.
"""

from hocket.program.instruction import Instruction, Kind, ValueKind
from hocket.program.order import (
    added,
    backward_values,
    forward_values,
    left_over,
    norm_of,
    norm_values,
    norms,
    stages_on,
    step_values,
)
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import StageShape
from hocket.program.rule import Rule


def expand(stages: tuple[StageShape, ...], rule: Rule, device: int, task: Task) -> list[Instruction]:
    """Compute instructions of one task on one device.

    Later passes add transfers and collectives, and frees of weights and of gradients that several steps read
    (free_versions.py).
    """
    s, i, lane = task.stage, task.index, stages[task.stage].lane
    match task.work:
        case Work.FORWARD:
            forward = _forward(stages, rule, device, s, i, again=False)
            inputs = tuple(v for v in forward.reads if v.what is ValueKind.INPUT)
            load = Instruction(Kind.LOAD, s, i, device, lane, writes=inputs)
            return [load, forward] if inputs else [forward]
        case Work.BACKWARD:
            reads, writes = backward_values(stages, rule, s, i)
            frees = tuple(v for v in reads if v.what is not ValueKind.WEIGHTS)
            backward = Instruction(Kind.BACKWARD, s, i, device, lane, reads, writes, frees)
            again = [_forward(stages, rule, device, s, i, again=True)] if stages[s].recompute else []
            return [*again, backward]
        case Work.UPDATE:
            reads, writes = step_values(stages, rule, s, i, device)
            frees = tuple(v for v in reads if v.what is not ValueKind.WEIGHTS and not added(stages, v))
            hosted = stages_on(stages, device)
            if norms(stages, rule) and s != hosted[-1]:
                frees = tuple(v for v in frees if v != norm_of(stages, i, device))
            step = Instruction(Kind.STEP, s, i, device, lane, reads, writes, frees)
            if norms(stages, rule) and s == hosted[0]:
                norm = Instruction(Kind.NORM, s, i, device, lane, *norm_values(stages, rule, s, i, device))
                return [norm, step]
            return [step]
        case Work.DROP:
            gone = left_over(stages, rule, i)
            return [Instruction(Kind.DROP, s, i, device, stages[0].lane, gone, (), gone)]


def _forward(stages: tuple[StageShape, ...], rule: Rule, device: int, s: int, i: int, again: bool) -> Instruction:
    reads, writes = forward_values(stages, rule, s, i, again)
    if rule.trains:
        # Weights that were gathered for the forward are gathered again for the backward and its recomputation.
        frees = () if again else tuple(v for v in reads if v.what in (ValueKind.GATHERED, ValueKind.ENDED))
    else:  # no backward will read what the forward has read
        frees = tuple(v for v in reads if v.what is not ValueKind.WEIGHTS)
    return Instruction(Kind.FORWARD, s, i, device, stages[s].lane, reads, writes, frees, again=again)

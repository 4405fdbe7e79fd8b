"""Compute orders to a Program: prologue, period and epilogue.

The parts are found where the schedule repeats itself.
"""

from collections import defaultdict
from dataclasses import replace
from math import lcm

from hocket.errors import InternalError
from hocket.program.instruction import Instruction, Kind
from hocket.program.passes.expand import expand
from hocket.program.passes.fold import REPETITIONS, find_edges, fronts, orders_of
from hocket.program.passes.free_versions import free_old_versions
from hocket.program.passes.gradients import gathers, norm_sum, reductions
from hocket.program.passes.tasks import Order
from hocket.program.passes.transfers import receive_of, sends
from hocket.program.program import Lane, Program, StageShape, freeze
from hocket.program.rule import Rule

Parts = list[dict[Lane, list[Instruction]]]  # prologue, repetitions of the period, epilogue


def assemble(name: str, stages: tuple[StageShape, ...], rule: Rule, stride: int, order: Order) -> Program:
    """Build a legal program from each device's compute order.

    The prologue is the shortest one (in periods) after which the schedule repeats itself. The epilogue is the shortest
    one before which it still does. Both are found by trying, with as few trials as bisection needs.

    Arguments:
        name: name of the program.
        stride: microbatches after which the strategy's order repeats itself; a multiple of every stage's rule.batch.
            The period is the smallest multiple after which it is the first replica's turn again in every stage
            (1F1B-RR: Narayanan's dissertation, section 2.4.2).
        order: function (device, total microbatches of the run) -> tasks of the device in their order.
    """
    if any(stride % batch for batch in rule.batch):
        raise InternalError(f"{name}: a stride of {stride} microbatches does not hold whole batches of {rule.batch}")
    stride = lcm(stride, *(stage.round for stage in stages))

    if rule.synchronous:  # a batch is a period: it ends with a flush, and only weights and optimizer state remain
        parts = _parts(stages, rule, stride, (0, 0), order, 1)
        return Program(name, stages, rule, stride, 0, freeze({}), freeze(parts[1]), freeze({}))
    try:
        edges = find_edges(stages, rule, stride, order)
    except LookupError:
        raise InternalError(f"{name}: the schedule does not become periodic") from None
    parts = _parts(stages, rule, stride, edges, order, REPETITIONS)
    program = Program(name, stages, rule, stride, sum(edges), freeze(parts[0]), freeze(parts[1]), freeze({}))
    shifted = {
        lane: [program.shifted(i, -REPETITIONS) for i in instructions] for lane, instructions in parts[-1].items()
    }
    return replace(program, epilogue=freeze(shifted))


def _parts(
    stages: tuple[StageShape, ...], rule: Rule, stride: int, edges: tuple[int, int], order: Order, repetitions: int
) -> Parts:
    """Prologue, repetitions of the period, and epilogue of one long run, by lane.

    Arguments:
        edges: microbatches that enter the pipeline before the first and after the last repetition.
    """
    before, behind = edges
    parts: Parts = [defaultdict(list) for _ in range(repetitions + 2)]
    orders = orders_of(stages, order, before + repetitions * stride + behind)
    ends = fronts(stages, rule, orders, [before + r * stride for r in range(repetitions + 1)])
    for device, tasks in orders.items():
        cuts = [front[device] for front in ends]
        compute: list[Instruction] = []
        part_of: list[int] = []
        for position, task in enumerate(tasks):
            part = sum(position >= cut for cut in cuts)
            found = expand(stages, rule, device, task)
            compute += found
            part_of += [part] * len(found)
        for instruction, part in zip(free_old_versions(compute), part_of, strict=True):
            parts[part][(device, instruction.lane)].append(instruction)
            for send in sends(stages, instruction):
                receive = receive_of(send)
                parts[part][(device, send.lane)].append(send)
                parts[part][(receive.device, receive.lane)].append(receive)
            collectives: list[Instruction] = []
            if instruction.kind is Kind.BACKWARD:
                collectives = reductions(stages, rule, instruction)
            elif instruction.kind is Kind.NORM:
                collectives = norm_sum(stages, instruction)
            if instruction.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.STEP):
                collectives += gathers(stages, rule, instruction)
            for collective in collectives:
                parts[part][(device, collective.lane)].append(collective)
    return parts

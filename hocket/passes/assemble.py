"""The whole way from compute orders to a Program, and the folding of a long schedule into prologue, period, epilogue."""

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from math import lcm

from hocket.errors import InternalError
from hocket.passes.closing import closed
from hocket.passes.expand import expand
from hocket.passes.gradients import all_reduces
from hocket.passes.tasks import Order, Task, Work
from hocket.passes.transfers import receive_of, sends
from hocket.passes.versions import free_old_versions
from hocket.program.instruction import COMPUTE, Instruction, Kind
from hocket.program.program import Lane, Lanes, Program, StageShape, freeze
from hocket.program.rule import Rule

_REPETITIONS = 3  # two shifts are compared, the third repetition stands before the epilogue
_MAX_PERIODS = 1024

Parts = list[dict[Lane, list[Instruction]]]


def assemble(name: str, stages: tuple[StageShape, ...], rule: Rule, stride: int, order: Order) -> Program:
    """Build a legal program from each device's compute order.

    Arguments:
        stride: microbatches after which the strategy's order repeats itself; a multiple of every stage's rule.batch. The
            period is as many of these as bring every replica the same part again (1F1B-RR, section 2.4.2).
        order: order(device, total microbatches) -> tasks.

    The prologue is the shortest (in periods) after which the schedule repeats itself, and the epilogue the shortest before
    which it still does; both are found by looking, with as few looks as bisection needs.
    """
    if any(stride % batch for batch in rule.batch):
        raise InternalError(f"{name}: a stride of {stride} microbatches does not hold whole batches of {rule.batch}")
    stride = lcm(stride, *(len(stage.devices) for stage in stages))

    if rule.synchronous:  # a flush behind every batch: the first of two batches is the period
        parts = _parts(stages, rule, stride, (0, 0), order, 2)
        return Program(name, stages, rule, stride, 0, freeze({}), freeze(parts[1]), freeze({}))

    @cache
    def folded(before: int, behind: int) -> Program | None:
        return _fold(name, stages, rule, stride, (before * stride, behind * stride), order)

    try:
        before = _least(lambda periods: folded(periods, periods) is not None)
        behind = _least(lambda periods: folded(before, periods) is not None)
    except LookupError:
        raise InternalError(f"{name}: the schedule does not become periodic within {_MAX_PERIODS} periods") from None
    program = folded(before, behind)
    assert program is not None
    return program


def _least(works: Callable[[int], bool]) -> int:
    """The least number for which a property holds that holds for all larger ones: doubling, then bisection.

    Raises:
        LookupError: none up to the bound.
    """
    low, high = -1, 0
    while not works(high):
        low, high = high, max(1, 2 * high)
        if high > _MAX_PERIODS:
            raise LookupError
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _fold(
    name: str, stages: tuple[StageShape, ...], rule: Rule, stride: int, edges: tuple[int, int], order: Order
) -> Program | None:
    """The program with so many microbatches admitted before and behind the period; None when it does not repeat."""
    parts = _parts(stages, rule, stride, edges, order, _REPETITIONS)
    admitted = sum(edges)
    program = Program(name, stages, rule, stride, admitted, *(freeze(p) for p in (parts[0], parts[1], {})))
    if not all(_repeats(program, parts[1 + r], r) for r in range(1, _REPETITIONS)):
        return None
    shifted = {
        lane: [program.shifted(i, -_REPETITIONS) for i in instructions] for lane, instructions in parts[-1].items()
    }
    return Program(name, stages, rule, stride, admitted, program.prologue, program.period, freeze(shifted))


def _repeats(program: Program, part: dict[Lane, list[Instruction]], repeats: int) -> bool:
    found: Lanes = freeze(part)
    if found.keys() != program.period.keys():
        return False
    return all(
        len(found[lane]) == len(period)
        and all(program.shifted(a, repeats) == b for a, b in zip(period, found[lane], strict=True))
        for lane, period in program.period.items()
    )


def _parts(
    stages: tuple[StageShape, ...], rule: Rule, stride: int, edges: tuple[int, int], order: Order, repetitions: int
) -> Parts:
    """Prologue, repetitions and epilogue of one long run, by lane."""
    before, behind = edges
    total = before + repetitions * stride + behind
    parts: Parts = [defaultdict(list) for _ in range(repetitions + 2)]
    ends = [before + r * stride for r in range(repetitions + 1)]
    orders = {device: order(device, total) for device in sorted({d for stage in stages for d in stage.devices})}
    wanted = [{device: _cut(tasks, rule, end) for device, tasks in orders.items()} for end in ends]
    fronts = closed(stages, rule, orders, wanted)
    for device, tasks in orders.items():
        cuts = [front[device] for front in fronts]
        compute: list[Instruction] = []
        part_of: list[int] = []
        for position, task in enumerate(tasks):
            part = sum(position >= cut for cut in cuts)
            found = expand(stages, rule, device, task)
            compute += found
            part_of += [part] * len(found)
        for instruction, part in zip(free_old_versions(compute), part_of, strict=True):
            parts[part][(device, COMPUTE)].append(instruction)
            for send in sends(stages, instruction):
                receive = receive_of(send)
                parts[part][(device, send.lane)].append(send)
                parts[part][(receive.device, receive.lane)].append(receive)
            if instruction.kind is Kind.BACKWARD:
                for collective in all_reduces(stages, rule, instruction):
                    parts[part][(device, collective.lane)].append(collective)
    return parts


def _cut(tasks: list[Task], rule: Rule, admitted: int) -> int:
    """Where a device's list has admitted some microbatches: behind their update if synchronous, else their forward."""
    last, synchronous = 0, rule.synchronous
    for position, task in enumerate(tasks, start=1):
        if synchronous:
            inside = task.work is Work.UPDATE and task.index < admitted // rule.batch[task.stage]
        else:
            inside = task.work is Work.FORWARD and task.index < admitted
        if inside:
            last = position
    return last

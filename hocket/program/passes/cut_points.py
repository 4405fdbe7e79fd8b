"""Cuts between the parts of a program.

The parts are prologue, repetitions of the period, and epilogue. A cut is a position in every device's order, such that
no dependency crosses the cut backwards. A part must be able to end before the next begins: `check` proves each part by
itself, and plans change between periods. So no task before a device's cut may wait for a task after another device's
cut.
"""

from collections.abc import Iterator, Mapping, Sequence

from hocket.program.instruction import ValueKind
from hocket.program.order import last_in_update, pieces, summed
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import StageShape
from hocket.program.rule import Rule

Orders = Mapping[int, Sequence[Task]]  # by device: its tasks in their order
Cuts = dict[int, int]  # by device: number of tasks before the cut


def closed(stages: tuple[StageShape, ...], rule: Rule, orders: Orders, cuts: Sequence[Cuts]) -> list[Cuts]:
    """Move cuts forward until no task before a cut waits for a task after it.

    Each cut moves as little as needed.

    Arguments:
        cuts: wanted cuts, ascending.
    """
    where = {(task, device): position for device, tasks in orders.items() for position, task in enumerate(tasks)}
    found: list[Cuts] = []
    seen = dict.fromkeys(orders, 0)
    front = dict.fromkeys(orders, 0)
    for cut in cuts:
        front = {device: max(front[device], cut[device]) for device in orders}
        todo = list(orders)
        while todo:
            device = todo.pop()
            start, seen[device] = seen[device], max(seen[device], front[device])
            for position in range(start, seen[device]):
                for other, needed in _needs(stages, rule, device, orders[device][position]):
                    at = where.get((needed, other))
                    if at is not None and at >= front[other]:
                        front[other] = at + 1
                        todo.append(other)
        found.append(front)
    return found


def _needs(stages: tuple[StageShape, ...], rule: Rule, device: int, task: Task) -> Iterator[tuple[int, Task]]:
    """Yield the tasks that a task waits for, or must meet in a collective.

    Yields:
        (device, task).
    """
    s, index = task.stage, task.index
    match task.work:
        case Work.FORWARD:
            for source in stages[s].sources:
                for value in pieces(stages, ValueKind.ACTIVATION, source, s, s, index):
                    first = stages[source].first(value.index)
                    yield stages[source].device(first), Task(Work.FORWARD, source, first)
        case Work.BACKWARD:
            for target in stages[s].targets:
                if s in stages[target].gradients:
                    for value in pieces(stages, ValueKind.GRADIENT, s, target, s, index):
                        first = stages[target].first(value.index)
                        yield stages[target].device(first), Task(Work.BACKWARD, target, first)
            update = rule.update(s, index)
            if last_in_update(stages, rule, s, update, device) == index:
                yield from _partners(stages, rule, s, update)
        case Work.UPDATE:
            if stages[s].sharded:
                for other in stages[s].devices:
                    yield other, task


def _partners(stages: tuple[StageShape, ...], rule: Rule, stage: int, update: int) -> Iterator[tuple[int, Task]]:
    """Yield the last backwards of all stages and replicas that sum gradients together.

    Arguments:
        stage, update: stage with the gradients, and the update that sums them.

    Yields:
        (device, task).
    """
    tied = dict(stages[stage].tied)
    members = {stage} if len(stages[stage].devices) > 1 or stages[stage].columns > 1 else set()
    for bucket, group in tied.items():
        if summed(stages, stage, bucket):
            members.update(group)
    for member in sorted(members):
        for device in stages[member].devices:
            last = last_in_update(stages, rule, member, update, device)
            if last is not None:
                yield device, Task(Work.BACKWARD, member, last)

"""Search for the repeating part (period) of an endless schedule.

Rules of this file: only properties that may differ from one period to the next are compared: tasks, the weight
versions that they read, and versions that are no longer read. So even deep pipelines are searched quickly.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from hocket.program.order import twin, waves
from hocket.program.passes.cut_points import closed
from hocket.program.passes.tasks import Order, Task, Work
from hocket.program.program import StageShape
from hocket.program.rule import Rule

REPETITIONS = 3  # the second and third period are compared with the first; the third is before the epilogue
_MAX_PERIODS = 1024
_ALONE = -2  # in place of a weight version, for a task before any task of the other wave

Entry = tuple[Task, int, bool]  # a task, the weight version that it reads, True if it is the last to read it


def find_edges(stages: tuple[StageShape, ...], rule: Rule, stride: int, order: Order) -> tuple[int, int]:
    """Fewest microbatches before and after the periods of a repeating schedule.

    Both numbers are multiples of the stride. They are found by doubling and bisection: a schedule that repeats with
    few microbatches repeats with more.

    Arguments:
        stride: microbatches of one period.
        order: function (device, total microbatches of the run) -> tasks of the device in their order.

    Returns:
        Microbatches that enter the pipeline before the first period, and after the last one.

    Raises:
        LookupError: the schedule does not repeat within 1,024 periods.
    """

    @cache
    def repeats(before: int, behind: int) -> bool:
        return _repeats(stages, rule, stride, (before * stride, behind * stride), order)

    before = _least(lambda periods: repeats(periods, periods))
    behind = _least(lambda periods: repeats(before, periods))
    return before * stride, behind * stride


def fronts(
    stages: tuple[StageShape, ...], rule: Rule, orders: Mapping[int, list[Task]], admitted: Sequence[int]
) -> list[dict[int, int]]:
    """Number of tasks of each device before each cut, as one dict for each cut.

    A cut is where a device has admitted a given number of microbatches: after their update if the rule is synchronous,
    else, and if there are no updates, after their forward. It is moved on as little as needed so that no task before it
    waits for a task after it (cut_points.py).

    Arguments:
        orders: by device, its tasks in their order.
        admitted: for each cut, the number of microbatches before it.
    """
    wanted = [{device: _cut(tasks, rule, count) for device, tasks in orders.items()} for count in admitted]
    return closed(stages, rule, orders, wanted)


def orders_of(stages: tuple[StageShape, ...], order: Order, total: int) -> dict[int, list[Task]]:
    """Every device's tasks in their order, for a run of `total` microbatches."""
    return {device: order(device, total) for device in sorted({d for stage in stages for d in stage.devices})}


def _cut(tasks: list[Task], rule: Rule, admitted: int) -> int:
    last, synchronous = 0, rule.synchronous and rule.trains
    for position, task in enumerate(tasks, start=1):
        if synchronous:
            inside = task.work is Work.UPDATE and task.index < admitted // rule.batch[task.stage]
        else:
            inside = task.work is Work.FORWARD and task.index < admitted
        if inside:
            last = position
    return last


def _repeats(stages: tuple[StageShape, ...], rule: Rule, stride: int, edges: tuple[int, int], order: Order) -> bool:
    before, behind = edges
    orders = orders_of(stages, order, before + REPETITIONS * stride + behind)
    ends = fronts(stages, rule, orders, [before + r * stride for r in range(REPETITIONS + 1)])
    for device, tasks in orders.items():
        entries = list(_entries(stages, rule, tasks))
        periods = [entries[front[device] : after[device]] for front, after in pairwise(ends)]
        for r, other in enumerate(periods[1:], start=1):
            if len(other) != len(periods[0]):
                return False
            if any(_moved(rule, a, r * stride) != b for a, b in zip(periods[0], other, strict=True)):
                return False
    return True


def _entries(stages: tuple[StageShape, ...], rule: Rule, tasks: list[Task]) -> Iterator[Entry]:
    versions = [_ALONE if _alone(stages, rule, task) else _version(rule, task) for task in tasks]
    last = {
        (task.stage, version): position for position, (task, version) in enumerate(zip(tasks, versions, strict=True))
    }
    newest: dict[int, int] = {}
    for task, version in zip(tasks, versions, strict=True):
        if task.work is Work.UPDATE:
            newest[task.stage] = max(newest.get(task.stage, 0), version + 1)
    for position, (task, version) in enumerate(zip(tasks, versions, strict=True)):
        yield task, version, last[task.stage, version] == position and version < newest.get(task.stage, 0)


def _version(rule: Rule, task: Task) -> int:
    match task.work:
        case Work.FORWARD:
            return rule.version(task.stage, task.index)
        case Work.BACKWARD:
            return rule.backward_version(task.stage, task.index)
        case Work.UPDATE:
            return task.index
        case Work.DROP:
            return -1  # it reads no weights


def _alone(stages: tuple[StageShape, ...], rule: Rule, task: Task) -> bool:
    """True if no task of the other wave comes before a task, as at the start of a run."""
    if not waves(rule) or task.work is Work.DROP:
        return False
    if task.work is Work.UPDATE:
        return rule.before(task.stage, task.index) is None
    return twin(stages, rule, task.stage, task.index) is None


def _moved(rule: Rule, entry: Entry, microbatches: int) -> Entry:
    task, version, last = entry
    updates = rule.updates(task.stage, microbatches)
    index = task.index + (updates if task.work is Work.UPDATE else microbatches)
    return Task(task.work, task.stage, index), version + updates, last


def _least(works: Callable[[int], bool]) -> int:
    """Smallest number with a property that also holds for all larger numbers.

    Arguments:
        works: True for a number with the property.

    Raises:
        LookupError: no number up to the bound has it.
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

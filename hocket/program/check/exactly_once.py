"""Every task exactly once, for any number of repetitions of the period.

The stages and the rule determine the expected tasks. Let P, Q, E be the tasks of prologue, period and epilogue, and
`>>` the shift by one period. A program does exactly its tasks after any number of repetitions if and only if
- it does so after none (P + E = all tasks of the microbatches admitted outside of the period), and
- one more repetition adds exactly the tasks of one more stride (Q + (E >> 1) = E + tasks of the microbatches admitted
  in the period).
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hocket.program.check.instruction_rules import PARTS
from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.instruction import (
    GATHER,
    LOAD,
    REDUCE,
    SWAPS,
    UPDATE_KINDS,
    Instruction,
    Kind,
    Value,
    ValueKind,
    receive_lane,
    send_lane,
)
from hocket.program.order import norm_summed, norms, piece, scattered, stages_on, sum_of, summed
from hocket.program.program import Lanes, Program

_ANY_TIMES = SWAPS | {Kind.DROP}
_REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})


class _Task(NamedTuple):
    """Effect of an instruction, without its order and its values.

    Tasks are counted to check that each happens exactly once.
    """

    device: int
    kind: Kind
    again: bool
    stage: int
    number: int  # microbatch, update or version
    what: str  # kind of the value that a transfer carries, or "norm" for an all-reduce of squares; else empty
    part: int  # target stage of that value, bucket of a sum, or 0 and 1 for gathers of one round; else -1
    peer: int


def count_problems(program: Program) -> list[Problem]:
    """Problems of tasks that are missing, done twice, or not expected."""
    prologue, period, epilogue = (Counter(_tasks(program, part)) for part in PARTS)
    first = Counter(_expected(program, 0, program.admitted))
    found = _compare(program, prologue + epilogue, first, ("epilogue", "prologue"), "")
    if found:
        return found
    later = Counter({_moved(program, task): count for task, count in epilogue.items()})
    new = Counter(_expected(program, program.admitted, program.admitted + program.stride))
    return _compare(
        program, period + later, epilogue + new, ("period", "epilogue"), " in each repetition of the period"
    )


def _task(i: Instruction) -> _Task:
    what, part = "", -1
    if i.kind is Kind.SEND or i.kind is Kind.RECEIVE:
        value = (i.reads or i.writes)[0]
        what, part = value.what, value.part
    elif i.kind in _REDUCTIONS:
        what, part = _sum_of(i.writes[0])
    elif i.kind is Kind.ALL_GATHER:
        part = i.writes[0].part  # for weights of one round: 0 for its forwards, 1 for its backwards
    return _Task(i.device, i.kind, i.again, i.stage, i.index, what, part, i.peer)


def _sum_of(value: Value) -> tuple[str, int]:
    """(what, part) of the task of a sum over devices.

    For a sum of gradients, `what` is empty and `part` is the bucket.

    Arguments:
        value: value that the collective writes.
    """
    return (ValueKind.NORM, -1) if value.what is ValueKind.NORM else ("", value.part)


def _tasks(program: Program, part: str) -> Iterator[_Task]:
    lanes: Lanes = getattr(program, part)
    return (_task(i) for lane in lanes.values() for i in lane if i.kind not in _ANY_TIMES)


def _moved(program: Program, task: _Task) -> _Task:
    updates = _counts_updates(task)
    by = program.rule.updates(task.stage, program.stride) if updates else program.stride
    return task._replace(number=task.number + by)


def _counts_updates(task: _Task) -> bool:
    return task.kind in UPDATE_KINDS and not (task.kind is Kind.ALL_GATHER and task.part >= 0)


def _expected(program: Program, start: int, end: int) -> Iterator[_Task]:
    """Yield the tasks that microbatches `start` to `end - 1` and their updates need."""
    stages, rule = program.stages, program.rule
    for s, shape in enumerate(stages):
        kinds = [(Kind.FORWARD, False), *([(Kind.BACKWARD, False)] if rule.trains else [])]
        kinds += [(Kind.LOAD, False)] if shape.batch else []
        kinds += [(Kind.FORWARD, True)] if shape.recompute else []
        for m in (m for m in range(start, end, shape.merged) if rule.takes(s, m)):
            for kind, again in kinds:
                yield _Task(shape.device(m), kind, again, s, m, "", -1, -1)
        for t in shape.targets:
            for m in range(start, end, piece(stages, s, t)):
                device, far = shape.device(m), stages[t].device(m)
                if far != device:
                    yield _Task(device, Kind.SEND, False, s, m, ValueKind.ACTIVATION, t, far)
                    yield _Task(far, Kind.RECEIVE, False, s, m, ValueKind.ACTIVATION, t, device)
                    if s in stages[t].gradients:
                        yield _Task(far, Kind.SEND, False, s, m, ValueKind.GRADIENT, t, device)
                        yield _Task(device, Kind.RECEIVE, False, s, m, ValueKind.GRADIENT, t, far)
        if shape.gathers:
            for first in range(start, end, shape.round):
                for device in shape.devices:
                    yield _Task(device, Kind.ALL_GATHER, False, s, first, "", 0, -1)
                    if rule.trains:
                        yield _Task(device, Kind.ALL_GATHER, False, s, first, "", 1, -1)
        reduced = [
            (b, Kind.REDUCE_SCATTER if scattered(stages, s, b) else Kind.ALL_REDUCE)
            for b in range(shape.buckets)
            if summed(stages, s, b)
        ]
        for u in range(rule.updates(s, start), rule.updates(s, end)):
            for device in shape.devices:
                yield _Task(device, Kind.STEP, False, s, u, "", -1, -1)
                for b, kind in reduced:
                    yield _Task(device, kind, False, s, u, "", b, -1)
                if shape.sharded and not shape.gathers:
                    yield _Task(device, Kind.ALL_GATHER, False, s, u + 1, "", -1, -1)
                if norms(stages, rule) and s == stages_on(stages, device)[0]:
                    yield _Task(device, Kind.NORM, False, s, u, "", -1, -1)
                    if norm_summed(stages):
                        yield _Task(device, Kind.ALL_REDUCE, False, s, u, ValueKind.NORM, -1, -1)


def _compare(
    program: Program, has: "Counter[_Task]", should: "Counter[_Task]", parts: tuple[str, str], when: str
) -> list[Problem]:
    if has == should:
        return []
    found = [_missing(program, task, when) for task in should - has]
    for task in has - should:
        place, instruction = _find(program, task, parts)
        times = "occurs twice" if should[task] else "is not needed"
        if _task(instruction) != task:
            times = f"is {program.shifted(instruction, 1).name} after one repetition of the period, which {times}"
        expected = f"it once{when}" if should[task] else f"only tasks of the stages, the rule and the stride{when}"
        found.append(problem_at(place, instruction, "extra", times, expected, "Remove it."))
    return found


def _missing(program: Program, task: _Task, when: str) -> Problem:
    value = ""
    if task.what:
        value = f" {Value(ValueKind(task.what), task.stage, task.number, task.part)}"
    elif task.kind in _REDUCTIONS:
        made = sum_of(program.stages, task.stage, task.part)
        value = f" {Value(made, task.stage, task.number, task.part)}"
    elif task.kind is Kind.ALL_GATHER:
        what = ValueKind.WEIGHTS if _counts_updates(task) else ValueKind.GATHERED
        value = f" {Value(what, task.stage, task.number, task.part)}"
    lane = program.stages[task.stage].lane
    if task.kind is Kind.LOAD and program.prefetch:
        lane = LOAD
    elif task.kind is Kind.SEND:
        lane = send_lane(task.peer)
    elif task.kind is Kind.RECEIVE:
        lane = receive_lane(task.peer)
    elif task.kind in _REDUCTIONS:
        lane = REDUCE
    elif task.kind is Kind.ALL_GATHER:
        lane = GATHER
    counter = "u" if _counts_updates(task) else "#"
    name = f"{task.kind}{' again' if task.again else ''} {task.stage} {counter}{task.number}{value}"
    message = f"{name} is missing on device {task.device}, lane {lane}; expected it once{when}. Add it."
    return Problem("missing", message, device=task.device, lane=lane)


def _find(program: Program, task: _Task, parts: tuple[str, str]) -> tuple[Place, Instruction]:
    """Last instruction that does a task, with its place.

    Arguments:
        parts: parts to search, in this order. After "period", an epilogue's tasks count as they are one period later.
    """
    for part in parts:
        lanes: Lanes = getattr(program, part)
        for (device, lane), instructions in lanes.items():
            for position in reversed(range(len(instructions))):
                one = instructions[position]
                if device == task.device and one.kind not in _ANY_TIMES:
                    own = _task(one)
                    if own == task or (part == "epilogue" and parts[0] == "period" and _moved(program, own) == task):
                        return Place(part, device, lane, position), one
    raise AssertionError(f"{task} was counted but is not there")

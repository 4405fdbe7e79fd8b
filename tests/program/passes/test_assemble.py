"""Folding: the unrolled program is the schedule of the strategy."""

from collections.abc import Iterator
from math import lcm

import pytest

from hocket.errors import InternalError
from hocket.program.instruction import Instruction, Kind, computes
from hocket.program.passes.assemble import assemble
from hocket.program.passes.expand import expand
from hocket.program.passes.tasks import Task, Work
from hocket.program.program import Program
from hocket.program.rule import Rule
from hocket.strategies.base.orders import one_forward_one_backward, own, warmup
from tests.program.helpers.programs import CASES, Case, pipeline

_KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.STEP)


def row(program: Program, device: int, repeats: int) -> list[Instruction]:
    """One device's compute lane, unrolled; with waves, one lane after the other."""
    lanes = [lane for lane in program.lanes if lane[0] == device and computes(lane[1])]
    parts = [(program.prologue, 0), *((program.period, r) for r in range(repeats)), (program.epilogue, repeats)]
    return [program.shifted(one, by) for lane in lanes for part, by in parts for one in part.get(lane, ())]


def schedule(widths: tuple[int, ...], device: int, total: int) -> Iterator[Task]:
    """1F1B with an update after every round of a stage's replicas."""
    stages = pipeline(widths)
    stage = next(s for s, one in enumerate(stages) if device in one.devices)
    for task in one_forward_one_backward(stage, own(stages, stage, device, range(total)), warmup(stages)[stage]):
        yield task
        if task.work is Work.BACKWARD:
            yield Task(Work.UPDATE, stage, task.index // widths[stage])


@pytest.mark.parametrize("widths", [(1, 1), (1, 1, 1, 1), (2, 1), (3, 1), (1, 2), (3, 2, 1)])
@pytest.mark.parametrize("repeats", [0, 1, 4])
def test_unrolled_it_is_what_was_asked_for(widths: tuple[int, ...], repeats: int) -> None:
    """Each device computes the schedule's tasks of all microbatches, in their order.

    This holds for any number of repetitions.
    """
    stages = pipeline(widths)
    ahead = warmup(stages)
    rule = Rule("stashed", widths, tuple(w - 1 for w in ahead))
    stride = lcm(*widths)
    program = assemble("drawn", stages, rule, stride, lambda device, total: list(schedule(widths, device, total)))
    total = program.microbatches(repeats)
    assert total == program.admitted + repeats * program.stride
    for device in program.devices:
        asked = [
            (one.kind, one.stage, one.index)
            for task in schedule(widths, device, total)
            for one in expand(stages, rule, device, task)
            if one.kind in _KINDS
        ]
        assert [(i.kind, i.stage, i.index) for i in row(program, device, repeats) if i.kind in _KINDS] == asked


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_program_trains_each_microbatch_once(case: Case) -> None:
    """Every program trains each microbatch once, for any number of repetitions.

    Each stage runs one forward and one backward of each microbatch, and every update. Each wave runs its half of a
    batch.
    """
    program = case.program()
    for repeats in (0, 1, 3):
        total = program.microbatches(repeats)
        done: dict[tuple[Kind, int], list[int]] = {}
        for device in program.devices:
            for one in row(program, device, repeats):
                if one.kind in _KINDS and not one.again:
                    many = 1 if one.kind is Kind.STEP else program.stages[one.stage].merged
                    done.setdefault((one.kind, one.stage), []).extend(range(one.index, one.index + many))
        for stage, shape in enumerate(program.stages):
            for kind in (Kind.FORWARD, Kind.BACKWARD) if total else ():
                assert sorted(done[kind, stage]) == [m for m in range(total) if program.rule.takes(stage, m)]
            updates = sorted(done.get((Kind.STEP, stage), []))
            each = len(shape.devices)
            assert updates == sorted(list(range(total // program.rule.batch[stage])) * each)


def test_a_synchronous_schedule_has_nothing_but_a_period() -> None:
    """A schedule with a flush after every batch has only a period.

    It has no prologue, no epilogue and no admitted microbatches.
    """
    program = next(case for case in CASES if case.strategy == "gpipe").program()
    assert program.rule.synchronous
    assert (program.prologue, program.epilogue, program.admitted) == ({}, {}, 0)


def test_a_stride_that_cuts_a_batch_is_our_mistake() -> None:
    """A stride without whole batches is an internal error."""
    stages = pipeline((1,))
    with pytest.raises(InternalError, match="does not hold whole batches"):
        assemble("wrong", stages, Rule("sync", (4,), (0,)), 3, lambda device, total: [])


def test_a_schedule_that_never_repeats_is_our_mistake() -> None:
    """A schedule that never repeats is an internal error after a bounded search.

    Its order has an exception at every power of two.
    """

    def order(device: int, total: int) -> list[Task]:
        tasks: list[Task] = []
        for m in range(total):
            pair = [Task(Work.FORWARD, 0, m), Task(Work.BACKWARD, 0, m)]
            late = bool(m) and m & (m - 1) == 0  # the update before this microbatch comes late
            tasks += [*pair[:late], *([Task(Work.UPDATE, 0, m - 1)] if m else []), *pair[late:]]
        return [*tasks, Task(Work.UPDATE, 0, total - 1)]

    with pytest.raises(InternalError, match="periodic"):
        assemble("endless", pipeline((1,)), Rule("stashed", (1,), (1,)), 1, order)

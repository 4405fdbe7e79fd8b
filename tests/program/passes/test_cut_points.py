"""Parts end where no earlier task waits for a later one.

Periods bring every replica the same share.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import RefusedError
from hocket.program.check.check import check
from hocket.program.passes.cut_points import closed
from hocket.program.passes.tasks import Task, Work
from hocket.program.rule import Rule
from hocket.strategies.base.orders import one_forward_one_backward, own, warmup
from hocket.strategies.base.strategy import compile_strategy
from tests.program.helpers.programs import pipeline, rounds

F, B = Work.FORWARD, Work.BACKWARD


def test_a_cut_moves_behind_what_others_wait_for() -> None:
    """A cut moves behind a task that another device's earlier task waits for.

    It moves no further than that.
    """
    stages, rule = pipeline((1, 1)), Rule("stashed", (1, 1), (1, 0))
    orders = {
        0: [Task(F, 0, 0), Task(F, 0, 1), Task(B, 0, 0)],
        1: [Task(F, 1, 0), Task(B, 1, 0), Task(F, 1, 1)],
    }
    assert closed(stages, rule, orders, [{0: 3, 1: 1}]) == [{0: 3, 1: 2}]


def test_replicas_that_sum_their_gradients_stay_together() -> None:
    """The last backward of an update on one replica takes the other replica's along."""
    stages, rule = pipeline((2,)), Rule("sync", (2,), (0,))
    orders = {d: [Task(F, 0, d), Task(B, 0, d), Task(Work.UPDATE, 0, 0)] for d in (0, 1)}
    assert closed(stages, rule, orders, [{0: 2, 1: 0}]) == [{0: 2, 1: 2}]


def test_later_cuts_lie_behind_earlier_ones() -> None:
    """A cut that was moved also moves the next one, if that would be before it."""
    stages, rule = pipeline((1, 1)), Rule("stashed", (1, 1), (1, 0))
    orders = {0: [Task(F, 0, 0), Task(B, 0, 0)], 1: [Task(F, 1, 0), Task(B, 1, 0)]}
    assert closed(stages, rule, orders, [{0: 2, 1: 0}, {0: 2, 1: 1}]) == [{0: 2, 1: 2}, {0: 2, 1: 2}]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_no_dependency_crosses_a_closed_cut(widths: list[int], data: st.DataObject) -> None:
    """Each task before a closed cut has its dependencies before the cut.

    No cut moves back, from any initial cuts.
    """
    stages = pipeline(widths)
    rule = Rule("stashed", tuple(widths), tuple(w - 1 for w in warmup(stages)))
    orders = {
        device: one_forward_one_backward(s, own(stages, s, device, range(12)), warmup(stages)[s])
        for s, stage in enumerate(stages)
        for device in stage.devices
    }
    cut = {device: data.draw(st.integers(0, len(tasks))) for device, tasks in orders.items()}
    (front,) = closed(stages, rule, orders, [cut])
    there = {task for device, tasks in orders.items() for task in tasks[: front[device]]}
    for task in there:
        for near in stages[task.stage].sources if task.work is F else stages[task.stage].targets:
            assert Task(task.work, near, task.index) in there
    assert all(front[device] >= cut[device] for device in orders)


@pytest.mark.parametrize(
    ("strategy", "microbatches", "stride"), [("flush", 3, 6), ("gpipe", 5, 10), ("two_bw", 5, 10), ("flush", 4, 4)]
)
def test_a_period_brings_every_replica_the_same_share(strategy: str, microbatches: int, stride: int) -> None:
    """A period has as many batches as are needed for equal shares of the replicas."""
    program = compile_strategy(strategy, pipeline((2, 1)), microbatches)
    assert program.stride == stride
    assert check(program) == ()


@pytest.mark.parametrize(
    ("widths", "in_flight", "expected"),
    [
        ((1, 1, 1, 1), None, (4, 3, 2, 1)),
        ((1, 1, 1, 1), 2, (2, 2, 2, 1)),
        ((15, 1), None, (2, 1)),
        ((2, 1, 1), None, (2, 2, 1)),
        ((2, 1, 1), 1, (1, 1, 1)),
        ((3, 2, 1), 2, (2, 2, 1)),
        ((1, 3), 2, (2, 1)),
    ],
)
def test_warm_up_forwards(widths: tuple[int, ...], in_flight: int | None, expected: tuple[int, ...]) -> None:
    """Warm-up forwards: workers from a stage to the end by its replicas, rounded up.

    There are fewer if fewer inputs are admitted.
    """
    assert warmup(pipeline(widths), in_flight) == expected


@pytest.mark.parametrize("widths", [(2, 1, 1), (3, 1), (3, 2, 1), (1, 3), (2, 3), (4, 1, 2)])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_few_inputs_in_flight_never_deadlock(widths: tuple[int, ...], in_flight: int) -> None:
    """A later stage never waits for inputs that an earlier, replicated one holds back.

    More inputs than NOAM are refused: a device's share of all, rounded up (Narayanan's dissertation, section 2.4.2).
    """
    if in_flight > -(-sum(widths) // widths[0]):
        with pytest.raises(RefusedError, match="at most NOAM"):
            compile_strategy("pipedream", pipeline(widths), 1, {"in_flight": in_flight})
        return
    assert check(compile_strategy("pipedream", pipeline(widths), 1, {"in_flight": in_flight})) == ()


def test_tied_weights_on_one_device_are_refused() -> None:
    """Stages with shared weights that overlap on some devices only are refused.

    Stages all on the same devices, or each on different ones, are legal.
    """
    with pytest.raises(RefusedError, match="share tied weights and device 0"):
        compile_strategy("interleaved", rounds(2, 1, 2, tied=((0, 1, 2),)), 4)
    assert check(compile_strategy("interleaved", rounds(2, 1, 2, tied=((0, 2),)), 4)) == ()

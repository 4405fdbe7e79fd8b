"""Tests of the progress observer.

They cover steps, losses, the pace of warm periods, and a stop at a whole step.
"""

from typing import Any

import pytest

from hocket.profiling.measure.core_time import CoreClock
from hocket.program.passes.swapping.insert import with_swaps
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program, StageShape
from hocket.runtime.progress.heartbeat import Heartbeat, hold_all
from hocket.runtime.progress.progress_observer import Watched
from hocket.runtime.progress.segments import RunSegment, SegmentCounts
from hocket.strategies.base.strategy import compile_strategy, habits

STAGES = (
    StageShape(devices=(0,), targets=(1,), batch=True),
    StageShape(devices=(1,), sources=(0,), gradients=(0,), batch=True),
)


class Clock:
    """Moves on by what it is told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def play(
    program: Program,
    number: int,
    watched: Watched,
    clock: Clock,
    segment: RunSegment,
    period_s: list[float],
    cold: int = 0,
) -> int:
    """Call the observer as an engine does.

    The first instruction of each period starts after the duration of the previous period.
    """
    watched.begin(segment, cold)
    lane = (number, "compute")

    def run(instructions: Any, repeats: int) -> None:
        for instruction in instructions:
            watched.waits(program.shifted(instruction, repeats))
            watched.runs(program.shifted(instruction, repeats))

    run(program.prologue.get(lane, ()), 0)
    limit, asked, periods = segment.periods, 0, 0
    while True:
        while asked <= min(periods + 1, limit):
            if not watched.goes_on(asked) and asked < limit:
                limit = asked
            asked += 1
        if periods >= limit:
            break
        run(program.period.get(lane, ()), periods)
        clock.now_s += period_s[periods % len(period_s)]
        periods += 1
    run(program.epilogue.get(lane, ()), periods)
    watched.end()
    return periods


def watch(
    strategy: str, number: int, **options: Any
) -> tuple[Program, Watched, Clock, Heartbeat, list[dict[str, Any]]]:
    """A program of two stages and four microbatches a step, and its observer."""
    program = compile_strategy(strategy, STAGES, 4, options)
    page, clock, heard = Heartbeat.private(), Clock(), list[dict[str, Any]]()
    pace = SegmentCounts(program.admitted, program.stride, 4)
    return program, Watched(page, heard.append, program, number, pace, CoreClock(clock)), clock, page, heard


@pytest.mark.parametrize("strategy", ["gpipe", "flush", "pipedream", "two_bw", "model_parallel"])
@pytest.mark.parametrize("number", [0, 1])
def test_pace_is_the_median_of_warm_periods(strategy: str, number: int) -> None:
    """The pace is the median of the warm periods.

    The first two periods are cold and left out. The median is scaled to the microbatches of one step.
    """
    program, watched, clock, _, _ = watch(strategy, number)
    play(program, number, watched, clock, RunSegment(0, 100, 0, 9), [50.0, 40.0, 1.0, 3.0, 2.0, 2.0, 9.0, 2.0, 1.0])
    assert watched.iteration_s == pytest.approx(2.0 * 4 / program.stride)
    # On some devices the epilogue begins as a period does, and ends another one.
    assert watched.warm_steps * 4 / program.stride in (7, 8)


def test_a_short_run_has_a_pace_too() -> None:
    """With fewer periods than are cold, all count; without any there is none."""
    program, watched, clock, _, _ = watch("flush", 0)
    assert watched.iteration_s is None
    play(program, 0, watched, clock, RunSegment(0, 1, 0, 1), [7.0])
    assert watched.iteration_s == pytest.approx(7.0)


@pytest.mark.parametrize("strategy", ["flush", "pipedream"])
def test_hold_ends_the_segment_with_a_whole_step(strategy: str) -> None:
    """A hold ends the segment with a whole step.

    A stop in the middle of a segment continues to the agreed period, and no further than a whole step needs.
    """
    program, watched, clock, page, _ = watch(strategy, 0)
    page.periods = 20
    stop_at = hold_all([page])
    periods = play(program, 0, watched, clock, RunSegment(0, 100, 0, 99), [1.0])
    pace = SegmentCounts(program.admitted, program.stride, 4)
    assert pace.steps(periods) is not None
    assert stop_at <= periods < stop_at + 4
    assert watched.stopped


def test_a_stop_in_a_later_segment() -> None:
    """A stop that lies behind the end of this segment comes true in the next one."""
    program, watched, clock, page, _ = watch("flush", 0)
    page.periods = 5
    assert hold_all([page]) == 7
    assert play(program, 0, watched, clock, RunSegment(0, 6, 0, 6), [1.0]) == 6
    assert not watched.stopped
    assert play(program, 0, watched, clock, RunSegment(6, 6, 6, 6), [1.0]) == 1
    assert watched.stopped


def test_losses_belong_to_steps() -> None:
    """Losses belong to steps of the whole training.

    A microbatch's loss is multiplied by its weight.
    """
    _, watched, _, _, heard = watch("flush", 1)
    watched.begin(RunSegment(10, 5, 10, 5))
    watched.loss(0, 2.0, 3, 3)
    watched.loss(7, 1.0, 2, 40.0)
    assert heard == [
        {"event": "loss", "step": 10, "microbatch": 0, "sum": 6.0, "weight": 3, "samples": 3},
        {"event": "loss", "step": 11, "microbatch": 3, "sum": 40.0, "weight": 40.0, "samples": 2},
    ]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_pace_of_a_program_that_swaps(prefetch: int) -> None:
    """The pace of a program that swaps counts each period once.

    In a grouped plan, a period begins with the first swap-in of weights. Swaps of later microbatches of the same stage
    begin no period.
    """
    shapes = (
        StageShape(devices=(0,), targets=(1,), batch=True, recompute=True),
        StageShape(devices=(0,), sources=(0,), gradients=(0,), batch=True, recompute=True),
    )
    plain = compile_strategy("harmony", shapes, 4, {"mode": "data"})
    program = with_swaps(plain, Swapping("task", prefetch=prefetch), habits("harmony", {}))
    clock = Clock()
    watched = Watched(
        Heartbeat.private(),
        lambda _: None,
        program,
        0,
        SegmentCounts(program.admitted, program.stride, 4),
        CoreClock(clock),
    )
    watched.begin(RunSegment(0, 5, 0, 5))
    for period in range(5):
        for instruction in program.period[0, "compute"]:
            watched.waits(program.shifted(instruction, period))
            watched.runs(program.shifted(instruction, period))
            clock.now_s += 1.0
    watched.end()
    assert watched.iteration_s == len(program.period[0, "compute"])
    assert watched.warm_steps == 3


def test_what_was_waited_for_a_core_is_a_share_of_warm_periods() -> None:
    """The wait for a core is a share of the warm periods.

    Cold periods, in which other processes often compute, do not count. Waiting times in them do not count either.
    """
    program = compile_strategy("flush", STAGES, 4, {})
    clock, queue = Clock(), Clock()
    pace = SegmentCounts(program.admitted, program.stride, 4)
    watched = Watched(Heartbeat.private(), lambda _: None, program, 0, pace, CoreClock(clock, queue))
    watched.begin(RunSegment(0, 6, 0, 6))
    first = program.period[0, "compute"][0]
    for period, (took_s, waited_s) in enumerate(
        [(9.0, 9.0), (9.0, 9.0), (2.0, 1.0), (2.0, 0.0), (4.0, 1.0), (0.0, 0.0)]
    ):
        watched.runs(program.shifted(first, period))
        clock.now_s += took_s
        queue.now_s += waited_s
    assert watched.queued_share == pytest.approx(0.25)
    assert Watched(Heartbeat.private(), lambda _: None, program, 0, pace, CoreClock(clock)).queued_share == 0.0


def test_the_first_period_of_a_turn_does_not_count() -> None:
    """The first period of a turn does not count.

    Of two segments of three periods, the first period of both is left out, and then the two cold periods.
    """
    program = compile_strategy("flush", STAGES, 4, {})
    clock = Clock()
    pace = SegmentCounts(program.admitted, program.stride, 4)
    watched = Watched(Heartbeat.private(), lambda _: None, program, 0, pace, CoreClock(clock))
    for number in range(2):
        play(program, 0, watched, clock, RunSegment(3 * number, 3, 3 * number, 3), [9.0, 2.0, 4.0], cold=1)
    assert watched.iteration_s == 3.0  # the second turn's other two: the first turn's are cold
    assert watched.warm_steps == 2

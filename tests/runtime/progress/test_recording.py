"""Tests of what a worker records over several segments."""

from itertools import count

import pytest

from hocket.program.program import Program, StageShape
from hocket.runtime.progress.recording import Ran, Recording
from hocket.strategies.base.strategy import compile_strategy

STAGES = (
    StageShape(devices=(0, 2), targets=(1,), batch=True),
    StageShape(devices=(1,), sources=(0,), gradients=(0,), batch=True),
)


def ran(program: Program, device: int, periods: int, start_s: float = 0.0) -> list[Ran]:
    """One segment of one device, an instruction a second, lane by lane."""
    lanes = program.unrolled(periods)
    mine = [i for (d, _), lane in lanes.items() if d == device for i in lane]
    return [(i, s, s + 1.0) for i, s in zip(mine, count(start_s))]


@pytest.mark.parametrize("strategy", ["flush", "pipedream", "two_bw"])
@pytest.mark.parametrize("device", [0, 1])
def test_segments_are_named_as_one_long_one(strategy: str, device: int) -> None:
    """Events of segments are named as in one long segment.

    After three segments, every forward, backward and step has its own name, and the numbers have no gaps.
    """
    program = compile_strategy(strategy, STAGES, 4, {})
    recording = Recording(program, device, 10_000)
    start_s = 0.0
    for periods in (4, 2, 6):
        recording.add(reversed(ran(program, device, periods, start_s)), periods)
        start_s += 1000.0
    names = [(event.lane, event.name) for event in recording.events]
    assert len(set(names)) == len(names)
    for kind in ("forward", "step"):
        found = [(event.stage, event.index) for event in recording.events if event.kind == kind]
        for stage in {stage for stage, _ in found}:
            total = sum(program.microbatches(p) if kind == "forward" else program.updates(stage, p) for p in (4, 2, 6))
            every = len(program.stages[stage].devices) if kind == "forward" else 1
            first = next(i for s, i in found if s == stage)
            assert [i for s, i in found if s == stage] == list(range(first, total, every))
    assert [event.start_s for event in recording.events] == sorted(event.start_s for event in recording.events)
    assert recording.segments_s == [0.0, 1000.0, 2000.0]
    assert recording.left_out == 0


def test_both_sides_of_a_transfer_keep_one_name() -> None:
    """Both sides of a transfer have the same name, also in a later segment.

    The trace pairs them by name.
    """
    program = compile_strategy("pipedream", STAGES, 4, {})
    names: list[set[str]] = []
    for device in (0, 1, 2):
        recording = Recording(program, device, 10_000)
        for periods in (2, 3):
            recording.add(ran(program, device, periods), periods)
        found = {e.name.partition(" ")[2] for e in recording.events if e.kind in ("send", "receive")}
        names.append(found)
    assert names[0] | names[2] == names[1]
    assert not names[0] & names[2]


def test_one_segment_keeps_its_names() -> None:
    """Without checkpoints nothing is moved."""
    program = compile_strategy("flush", STAGES, 4, {})
    records = ran(program, 1, 2)
    recording = Recording(program, 1, 10_000)
    recording.add(records, 2)
    assert [event.name for event in recording.events] == [instruction.name for instruction, _, _ in records]


def test_the_newest_are_kept() -> None:
    """More than there is room for: the oldest go, and are counted."""
    program = compile_strategy("flush", STAGES, 4, {})
    recording = Recording(program, 1, 50)
    total = 0
    for k in range(3):
        records = ran(program, 1, 1, 1000.0 * k)
        total += len(records)
        recording.add(records, 1)
    assert len(records) < 50 < total
    assert len(recording.events) == 50
    assert recording.left_out == total - 50
    assert recording.events[-1].start_s == records[-1][1]
    assert recording.segments_s == [0.0, 1000.0, 2000.0]

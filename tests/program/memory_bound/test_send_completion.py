"""Completion of sends: `surely_over` holds for every number of periods."""

from collections import Counter

import pytest

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.memory_bound.happens_before import clocks
from hocket.program.memory_bound.send_completion import Spot, surely_over
from hocket.program.memory_bound.untimed_run import Untimed
from tests.program.helpers.programs import CASES, Case
from tests.tiers import alternating


@pytest.mark.parametrize(("case", "periods"), alternating(CASES, [5, 0, 1]))
@pytest.mark.thinned(most=60)
def test_no_send_is_called_over_before_it_surely_is(case: Case, periods: int) -> None:
    program = case.program()
    run = Untimed.start(program)
    for part, repetition in [("prologue", 0), *(("period", r) for r in range(periods)), ("epilogue", periods)]:
        assert run.run(part, repetition)
    _, ahead = clocks(run, program.devices)
    for column, device in enumerate(program.devices):
        said = surely_over(program, device)
        counts = {part: len(getattr(program, part).get((device, COMPUTE), ())) for part in ("prologue", "period")}
        seen: Counter[Spot] = Counter()
        for event, places in enumerate(run.events):
            for place, instruction in zip(places, run.ran[event], strict=True):
                if place.device != device or instruction.kind is not Kind.SEND:
                    continue
                spot = Spot(place.lane, place.part, place.position)
                repetition, seen[spot] = seen[spot], seen[spot] + 1
                follows = {
                    "prologue": periods > 0 or said.get(spot, 0) < counts["prologue"],
                    "period": repetition + 1 < periods,
                    "epilogue": False,
                }[place.part]
                if spot in said and follows:
                    begin = counts["prologue"] + repetition * counts["period"] if place.part == "period" else 0
                    assert begin + said[spot] >= ahead[event, column], (spot, repetition)


def test_sends_of_a_pipeline_are_over_when_their_gradients_are_back() -> None:
    """1F1B on two devices: a forward's send is over before its backward begins."""
    case = next(case for case in CASES if case.name == "flush-2-m4-recompute")
    program = case.program()
    row = program.period[0, COMPUTE]
    sends = program.period[0, "send>1"]
    said = surely_over(program, 0)
    for position, send in enumerate(sends):
        backward = next(k for k, i in enumerate(row) if i.kind is Kind.BACKWARD and i.index == send.index)
        assert 0 < said[Spot("send>1", "period", position)] <= backward

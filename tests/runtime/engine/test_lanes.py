"""Hand-over between the lanes of a device follows from the program alone."""

import pytest

from hocket.errors import ProgramError
from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.program import Program, StageShape, freeze
from hocket.program.rule import Rule
from hocket.runtime.engine.lanes import Cursor, lanes_of, walk
from tests.runtime.helpers.plans import Case, captured

CASES = [
    Case("gpipe", (1, 1)),
    Case("flush", (2, 1), recompute=True),
    Case("interleaved", (1, 1), rounds=2),
    Case("data_parallel", (2,)),
    Case("pipedream", (2, 1, 1)),
    Case("pipedream", (1, 1, 1), options={"naive": True}),
    Case("two_bw", (2, 2)),
]


@pytest.fixture(params=CASES, ids=str)
def program(request: pytest.FixtureRequest) -> Program:
    """The program of each case; PipeDream takes no weights that two stages share."""
    case = request.param
    graph = captured("gpt untied" if case.strategy == "pipedream" else "gpt")
    return case.plan(graph).compile(graph)


@pytest.mark.parametrize("repeats", [0, 1, 4])
def test_every_value_reaches_its_reader_once(program, repeats):
    """Every value reaches its reader once.

    Over a whole run, each value that a lane reads is written there or handed to it. No value is handed to another
    lane.
    """
    unrolled = program.unrolled(repeats)
    for device in program.devices:
        lanes = lanes_of(program, device)
        given = set()
        for lane, parts in lanes.items():
            steps = list(walk(parts, lambda periods: periods < repeats))
            assert [i for i, _ in steps] == unrolled[device, lane]
            for instruction, routes in steps:
                to = dict(routes)
                for position, value in enumerate(instruction.writes):
                    assert (to.get(position, lane), value) not in given
                    given.add((to.get(position, lane), value))
        given |= {(COMPUTE, value) for value in program.initial(device)}
        read = {(lane, v) for (d, lane), own in unrolled.items() if d == device for i in own for v in i.reads}
        assert read <= given
        assert {v for lane, v in given - read} <= set(program.final(device, repeats)) | {
            v for _, v in given if v.what in (ValueKind.WEIGHTS, ValueKind.OPTIMIZER)
        }


def test_two_readers_on_two_lanes_are_refused():
    """A value with readers on two lanes is refused.

    The lane that frees it would depend on timing.
    """
    value = Value(ValueKind.ACTIVATION, 0, 0, 1)
    made = Instruction(Kind.FORWARD, 0, 0, 0, COMPUTE, writes=(value,))
    sends = [Instruction(Kind.SEND, 0, 0, 0, f"send>{p}", (value,), frees=(value,), peer=p) for p in (1, 2)]
    lanes = {(0, COMPUTE): [made], (0, "send>1"): [sends[0]], (0, "send>2"): [sends[1]]}
    shapes = (StageShape((0,), targets=(1,)), StageShape((1,), sources=(0,)))
    program = Program("bad", shapes, Rule("sync", (1, 1), (0, 0)), 1, 0, freeze(lanes), freeze({}), freeze({}))
    with pytest.raises(ProgramError, match="is read on send>1 already"):
        lanes_of(program, 0)


@pytest.mark.parametrize("repeats", [0, 1, 4])
def test_a_cursor_stands_where_nobody_has_said_whether_another_period_comes(program, repeats):
    """A cursor stops where the next period is not yet decided.

    It yields prologue, periods and epilogue in order, and no more periods than announced.
    """
    unrolled = program.unrolled(repeats)
    for lane, parts in lanes_of(program, program.devices[0]).items():
        cursor, found = Cursor(parts), []

        def take(cursor=cursor, found=found):
            while (head := cursor.head()) is not None:
                found.append(head[0])
                cursor.advance()

        known = [len(program.prologue.get((0, lane), ()))]
        take()
        assert len(found) == known[0]
        for r in range(repeats):
            cursor.answer(True)
            take()
            assert len(found) == known[0] + (r + 1) * len(program.period.get((0, lane), ()))
        cursor.answer(False)
        take()
        assert found == unrolled[0, lane]

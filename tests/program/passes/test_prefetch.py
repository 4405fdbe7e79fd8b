"""Loads ahead of compute: legal programs, the same results, and never more inputs than asked for."""

from dataclasses import replace
from random import Random

import pytest

from hocket.errors import InputError, RefusedError
from hocket.program.check.check import check
from hocket.program.instruction import COMPUTE, LOAD, Instruction, Kind, ValueKind
from hocket.program.memory_bound.footprint import footprints
from hocket.program.passes.prefetch import MAX_PREFETCH, check_prefetch
from hocket.program.program import Lanes, Program, StageShape, freeze
from hocket.program.text.printer import parse_program, print_program
from hocket.strategies.base.strategy import compile_strategy
from tests.program.helpers.programs import pipeline, rounds, two_waves
from tests.program.helpers.symbolic import Run, Symbols

# One of each sort: with an epilogue, several stages on a device, bundles, recomputation, replicas, sharded weights.
SHAPES: list[tuple[str, tuple[StageShape, ...], int]] = [
    ("flush", pipeline((1, 1, 1)), 4),
    ("gpipe", pipeline((2, 1), buckets=2), 4),
    ("interleaved", rounds(2, 2, 2, recompute=(1, 2)), 4),
    ("pipedream", pipeline((2, 1, 1), skips=((0, 2),)), 1),
    ("two_bw", pipeline((2, 2), recompute=(0,)), 4),
    ("data_parallel", pipeline((3,), shard="optimizer"), 6),
    ("burst_parallel", tuple(replace(s, merged=4 // len(s.devices)) for s in pipeline((2, 1))), 4),
    ("flush", pipeline((2, 2), shard="full"), 4),
]


def waiting(program: Program, done: list[Instruction]) -> dict[int, int]:
    """Inputs of each stage that are there and whose forward has not begun, the most at a time on one device."""
    most: dict[int, int] = {}
    there: dict[tuple[int, int], int] = {}
    for one in done:
        key = one.device, one.stage
        if one.kind is Kind.LOAD:
            there[key] = there.get(key, 0) + 1
            most[one.stage] = max(most.get(one.stage, 0), there[key])
        elif one.kind is Kind.FORWARD and not one.again and program.stages[one.stage].batch:
            there[key] -= 1
    return most


class Order(Run):
    """A random interleaving that notes the order in which instructions begin (loads: end)."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.done: list[Instruction] = []

    def _start(self, lane, members) -> None:
        head = self.lanes[lane][self.at[lane]]
        self.done.append(head)
        super()._start(lane, members)


@pytest.mark.parametrize("count", [1, 3, 11])
@pytest.mark.parametrize(("name", "stages", "microbatches"), SHAPES)
def test_a_program_that_loads_ahead_is_legal_and_computes_the_same(name, stages, microbatches, count) -> None:
    """It is proved, goes round as text, and gives the rule's weights in any order of events.

    No more inputs of a stage wait than its forward's own and `count` later ones.
    """
    program = compile_strategy(name, stages, microbatches, prefetch=count)
    assert check(program) == ()
    assert parse_program(print_program(program)) == program
    most: dict[int, int] = {}
    for seed in range(4):
        run = Order(program, 2, Random(seed), Symbols())
        run.finish()
        for stage, inputs in waiting(program, run.done).items():
            most[stage] = max(most.get(stage, 0), inputs)
    assert all(inputs <= count + 1 for inputs in most.values())
    if count == 1:
        assert max(most.values()) == 2  # loads do run ahead


def test_loads_leave_the_compute_lanes_and_nothing_else_does() -> None:
    """With 0, the program is the same to the letter; otherwise only loads and permits differ."""
    plain = compile_strategy("flush", pipeline((1, 1)), 4)
    assert compile_strategy("flush", pipeline((1, 1)), 4, prefetch=0) == plain
    ahead = compile_strategy("flush", pipeline((1, 1)), 4, prefetch=2)

    def compute(program: Program) -> list[str]:
        return [i.name for i in program.period[0, COMPUTE] if i.kind is not Kind.LOAD]

    assert compute(ahead) == compute(plain)
    assert [i.index for i in ahead.period[0, LOAD]] == [0, 1, 2, 3]
    assert {lane for _, lane in ahead.lanes} - {lane for _, lane in plain.lanes} == {LOAD}
    assert (ahead.stride, ahead.admitted) == (plain.stride, plain.admitted)


def test_inputs_that_wait_count_as_memory() -> None:
    """The proved bound has the inputs that forwards in flight hold, and as many as may wait.

    In 1F1B on two stages, stage 0 holds two. Before its next forward begins, that one's input and N others may be there.
    With an N of more than a batch, inputs of later batches are there as well.
    """

    def most(count: int) -> list[float]:
        program = compile_strategy("flush", pipeline((1, 1)), 4, prefetch=count)
        found = footprints(program, lambda value: float(value.what is ValueKind.INPUT))
        return [found[device].bytes for device in (0, 1)]

    assert most(0) == [2, 1]
    assert [most(count) for count in (1, 2, 9)] == [[4, 3], [5, 4], [12, 11]]


@pytest.mark.parametrize(
    ("kind", "change", "code"),
    [
        (Kind.FORWARD, lambda i: replace(i, writes=i.writes[:-1]), "values"),
        (Kind.LOAD, lambda i: replace(i, reads=(), frees=()), "values"),
        (Kind.LOAD, lambda i: replace(i, frees=()), "twice"),
    ],
)
def test_a_wrong_permit_is_found(kind, change, code) -> None:
    """`check` finds a forward without permit, a load that waits for none, and a permit that stays."""
    program = compile_strategy("flush", pipeline((1, 1)), 4, prefetch=1)

    def changed(lanes: Lanes) -> Lanes:
        return freeze({lane: [change(i) if i.kind is kind else i for i in row] for lane, row in lanes.items()})

    found = check(replace(program, period=changed(program.period)))
    assert found
    assert found[0].code in (code, "leak")


def test_a_load_in_the_compute_lane_is_found() -> None:
    """A program that loads ahead has all its loads in the load lane."""
    plain = compile_strategy("flush", pipeline((1, 1)), 4)
    assert check(replace(plain, prefetch=1))[0].code == "lane"
    assert check(replace(plain, prefetch=-1))[0].code == "structure"


def test_waves_do_not_load_ahead() -> None:
    """The refusal has its reason."""
    with pytest.raises(RefusedError, match="tick_tock: each wave loads in its own compute lane"):
        compile_strategy("tick_tock", two_waves(2), 4, prefetch=1)


def test_numbers_out_of_range_are_refused() -> None:
    """From none to 256 microbatches."""
    check_prefetch(MAX_PREFETCH)
    for count in (-1, MAX_PREFETCH + 1, "2", True):
        with pytest.raises(InputError, match="from 0 to 256"):
            check_prefetch(count)  # type: ignore[arg-type]

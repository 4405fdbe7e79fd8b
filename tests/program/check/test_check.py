"""Rules that `check` proves, each with a program that breaks it.

A proof also holds for every number of repetitions.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from hocket.errors import ProgramError
from hocket.program.check.check import check, prove
from hocket.program.check.deadlock import Standstill, waiting_problems
from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.memory_bound.footprint import footprints
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.program import Lane, Program, freeze
from hocket.program.rule import Rule
from tests.program.helpers.programs import CASES, Case, pipeline, rounds
from tests.program.helpers.symbolic import Run, Symbols

Lists = dict[Lane, list[Instruction]]

SIZES = {
    "w": 4.0,
    "shard": 4.0,
    "full": 6.0,
    "part": 1.5,
    "opt": 5.0,
    "dw": 3.0,
    "sum": 3.0,
    "stash": 1.0,
    "act": 0.1,
    "grad": 0.07,
    "in": 0.01,
    "sq": 0.003,
    "norm": 0.003,
    "lent": 3.0,
    "end": 0.002,
}


def size(value: Value) -> float:
    """Bytes of each kind of value, all different."""
    return SIZES[value.what]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_strategies_compile_is_legal(case: Case) -> None:
    """Programs of all strategies have no problems."""
    assert check(case.program()) == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.thinned(most=24)
def test_a_proof_holds_for_every_number_of_repetitions(case: Case) -> None:
    """Legal programs run correctly in random orders, after 0 to 3 periods.

    They use the rule's weights, leave nothing over, and never need more memory than the bound.
    """
    program = case.program()
    bound = footprints(program, size)
    for repeats in range(4):
        run = Run(program, repeats, Random(repeats), Symbols(), size)
        run.finish()
        for device, peak in run.peak_bytes.items():
            assert peak <= bound[device].bytes + 1e-9
            assert bound[device].bytes < 1.5 * max(peak, bound[device].bytes / 1.5) + 1e-9


def test_many_microbatches_with_several_buckets_are_proved() -> None:
    """An event lists each event before it only once.

    Otherwise, two accumulators in a stage would double the list with every backward.
    """
    program = Case("x", "flush", pipeline((1, 1), buckets=2, tied=((0, 1),)), 48).program()
    assert check(program) == ()


def test_the_memory_bound_is_reached() -> None:
    """The memory bound is at most 2 % above the peak of random orders.

    The program is a pipeline of four stages.
    """
    program = next(case for case in CASES if case.name == "flush-straight-4-m8").program()
    bound, reached = footprints(program, size), dict.fromkeys(program.devices, 0.0)
    for seed in range(20):
        run = Run(program, 1, Random(seed), Symbols(), size)
        run.finish()
        reached = {d: max(reached[d], peak) for d, peak in run.peak_bytes.items()}
    assert all(reached[d] > 0.98 * bound[d].bytes for d in program.devices)


@pytest.mark.parametrize("units", [2, 3, 8])
def test_weights_are_gathered_one_unit_ahead(units: int) -> None:
    """At most two units are whole at once, for any timing, and two are."""
    for recompute in ((), range(units)):
        stages = rounds(1, 2, units, recompute=recompute, shard="full")
        program = Case("x", "fully_sharded", stages, 4).program()
        assert check(program) == ()
        bound = footprints(program, lambda value: float(value.what is ValueKind.GATHERED))
        assert {found.bytes for found in bound.values()} == {2.0}
        run = Run(program, 2, Random(units), Symbols(), lambda value: float(value.what is ValueKind.GATHERED))
        run.finish()
        assert set(run.peak_bytes.values()) == {2.0}


def small(**more: object) -> Program:
    """A flush program with two stages and two microbatches: one period."""
    return Case("small", "flush", pipeline((1, 1), **more), 2).program()


def edited(program: Program, part: str, edit: Callable[[Lists], None]) -> Program:
    """The program with one part edited."""
    lists = {lane: list(row) for lane, row in getattr(program, part).items()}
    edit(lists)
    return replace(program, **{part: freeze(lists)})


def find(lists: Lists, name: str, device: int) -> tuple[list[Instruction], int]:
    """Lane and position of an instruction."""
    return next(
        (row, p) for lane, row in lists.items() if lane[0] == device for p, i in enumerate(row) if i.name == name
    )


def change(name: str, on: int, **fields: object) -> Callable[[Lists], None]:
    """Replace fields of one instruction."""

    def edit(lists: Lists) -> None:
        row, at = find(lists, name, on)
        row[at] = replace(row[at], **fields)

    return edit


def remove(name: str, device: int) -> Callable[[Lists], None]:
    """Drop one instruction."""

    def edit(lists: Lists) -> None:
        row, at = find(lists, name, device)
        row.pop(at)

    return edit


def move(name: str, device: int, to: int) -> Callable[[Lists], None]:
    """Move one instruction inside its lane."""

    def edit(lists: Lists) -> None:
        row, at = find(lists, name, device)
        row.insert(to, row.pop(at))

    return edit


def extra(lane: Lane, at: int, instruction: Instruction) -> Callable[[Lists], None]:
    """Put an additional instruction into a lane."""
    return lambda lists: lists[lane].insert(at, instruction)


ACT = Value(ValueKind.ACTIVATION, 0, 0, 1)
INPUT = Value(ValueKind.INPUT, 1, 0)
WEIGHTS = Value(ValueKind.WEIGHTS, 1, 0)


@pytest.mark.parametrize(
    ("edit", "code", "words"),
    [
        (change("forward 0 #1", 0, device=1), "place", ["forward 0 #1", "has device 1"]),
        (change("forward 0 #1", 0, stage=1), "place", ["forward 1 #1", "one of the stage's devices [1]"]),
        (change("forward 0 #1", 0, stage=7), "values", ["has stage 7", "a stage from 0 to 1"]),
        (change("forward 0 #1", 0, index=-1), "values", ["has index -1"]),
        (change("forward 0 #1", 0, peer=1), "place", ["has peer 1"]),
        (change("backward 0 #1", 0, again=True), "values", ["marked as recomputation"]),
        (change("load 0 #1", 0, kind=Kind.SWAP_IN), "kind", ["has kind swap_in", "no swaps in a program"]),
        (change("send 0 #1 act.0>1#1", 0, peer=0), "lane", ["expected lane send>0"]),
        (change("send 0 #1 act.0>1#1", 0, reads=(ACT,)), "values", ["carries act.0>1#0", "microbatch 1"]),
        (change("send 0 #1 act.0>1#1", 0, reads=()), "values", ["reads nothing", "one value"]),
        (change("forward 1 #1", 1, reads=()), "values", ["does not read", "act.0>1#1"]),
        (change("forward 1 #0", 1, reads=(INPUT, ACT, WEIGHTS, ACT)), "values", ["reads a value twice in in.1#0, act.0>1#0, w.1v0, act.0>1#0", "each value once"]),
        (change("forward 1 #1", 1, writes=()), "values", ["does not write stash.1#1"]),
        (change("backward 1 #1", 1, frees=(Value(ValueKind.STASH, 1, 7),)), "frees", ["frees stash.1#7"]),
        (remove("backward 1 #1", 1), "missing", ["backward 1 #1 is missing on device 1, lane compute"]),
        (remove("receive 0 #1 act.0>1#1", 1), "missing", ["receive 0 #1 act.0>1#1 is missing on device 1, lane receive<0"]),
        (move("send 0 #1 act.0>1#1", 0, 0), "meeting", ["send 0 #1 act.0>1#1", "would meet receive 0 #0", "device 1"]),
        (move("backward 0 #0", 0, 0), "deadlock", ["backward 0 #0", "in.0#0, which is written by load 0 #0 later in the same lane"]),
        (change("forward 1 #0", 1, frees=(WEIGHTS,)), "freed", ["w.1v0, which forward 1 #0", "has freed"]),
        (change("send 0 #0 act.0>1#0", 0, frees=()), "leak", ["send 0 #0 act.0>1#0", "no instruction frees", "one more value"]),
        (change("step 0 u0", 0, frees=()), "leak", ["dw.0#1b0", "step 0 u0", "no instruction frees"]),
    ],
)  # fmt: skip
def test_each_rule_names_what_breaks_it(edit: Callable[[Lists], None], code: str, words: list[str]) -> None:
    """The first problem has the code of the broken rule.

    Its message has the instruction, what is wrong and what was expected.
    """
    found = check(edited(small(), "period", edit))
    assert found
    assert found[0].code == code
    for word in words:
        assert word in found[0].message, found[0].message


def test_the_version_of_another_rule_is_refused() -> None:
    """A forward on a wrong weight version is refused, and the message names the rule."""
    program = Case("x", "pipedream", pipeline((1, 1)), 1).program()
    index = next(i.index for i in program.period[0, COMPUTE] if i.kind is Kind.FORWARD)
    forward = next(i for i in program.period[0, COMPUTE] if i.kind is Kind.FORWARD)
    newer = tuple(v._replace(index=v.index + 1) if v.what is ValueKind.WEIGHTS else v for v in forward.reads)
    found = check(edited(program, "period", change(f"forward 0 #{index}", 0, reads=newer)))
    assert [problem.code for problem in found] == ["version"]
    assert (
        f"reads w.0v{index}; expected w.0v{index - 1} by rule 'stashed' with update 1 and delay 1" in found[0].message
    )


def test_a_deadlock_names_all_who_wait_for_each_other() -> None:
    """A deadlock message names every lane of the cycle.

    Here, two devices each compute first a task that needs the other's later work.
    """
    program = Case("x", "interleaved", rounds(2, 1, 2), 2).program()
    # Device 0 waits for stage 1's output before it makes that of stage 0; device 1 cannot make one without the other.
    found = check(edited(program, "period", move("forward 2 #0", 0, 0)))
    assert [problem.code for problem in found] == ["deadlock"]
    for word in (
        "forward 2 #0 on device 0",
        "act.1>2#0",
        "forward 1 #0 on device 1",
        "act.0>1#0",
        "each waits for the other",
    ):
        assert word in found[0].message


def test_what_stands_still_in_a_later_repetition_is_told_by_its_own_names() -> None:
    """A standstill in a later repetition has that repetition's names.

    The message names its microbatches and versions, not those of the first repetition.
    """

    def keeps(lists: Lists) -> None:
        row, at = find(lists, "step 0 u0", 0)
        weights = {Value(ValueKind.WEIGHTS, 0, 0), Value(ValueKind.WEIGHTS, 0, 1)}
        row[at] = replace(
            row[at],
            writes=tuple(v for v in row[at].writes if v not in weights),
            frees=tuple(v for v in row[at].frees if v not in weights),
        )

    program = edited(small(), "period", keeps)
    run = Untimed.start(program)
    assert run.run("period")
    assert not run.run("period", 1)
    assert [problem.code for problem in run.problems] == ["unwritten"]
    assert "forward 0 #2 on device 0" in run.problems[0].message
    assert "reads w.0v1, which no instruction in the period" in run.problems[0].message
    with pytest.raises(ProgramError, match=r"stands still.*forward 0 #2 on device 0"):
        footprints(program, size)


def test_a_message_that_nobody_makes_room_for_is_told() -> None:
    """A receive that is never posted is reported as a deadlock.

    Its send waits for it, and it waits for room that no instruction provides.
    """
    program, way = small(), (1, "receive<0")
    stuck = {(0, "send>1"): 0, way: 0}
    live = {0: dict.fromkeys(program.period[0, "send>1"][0].reads), 1: {}}
    found = waiting_problems(Standstill(program, "period", program.period, stuck, live, {}, {way}))
    assert [(problem.code, problem.device, problem.lane) for problem in found] == [("deadlock", *way)]
    assert "no later instruction of the period consumes one" in found[0].message


def test_collectives_meet_in_the_same_order() -> None:
    """Buckets in another order on one replica are refused.

    The message has both instructions.
    """
    program = Case("x", "data_parallel", pipeline((2,), buckets=2), 2).program()
    found = check(edited(program, "period", move("all_reduce 0 u0 sum.0u0b1", 1, 0)))
    assert [problem.code for problem in found] == ["meeting"]
    assert "all_reduce 0 u0 sum.0u0b1 on device 1" in found[0].message
    assert "would meet all_reduce 0 u0 sum.0u0b0 of device 0" in found[0].message


def test_a_value_freed_beside_its_reader_is_a_race() -> None:
    """An all-reduce that frees a value which the backward may still read is refused.

    It is refused even if one order would be correct.
    """
    program = Case("x", "data_parallel", pipeline((2,)), 2).program()
    stash = Value(ValueKind.STASH, 0, 0)

    def edit(lists: Lists) -> None:
        row, at = find(lists, "backward 0 #0", 0)
        row[at] = replace(row[at], frees=tuple(v for v in row[at].frees if v != stash))
        row.append(Instruction(Kind.DROP, 0, 0, 0, COMPUTE, (stash,), (), (stash,)))

    assert check(edited(program, "period", edit)) == ()  # behind the backward in its lane: no race

    tied = Case("x", "flush", pipeline((1, 1, 1), skips=((0, 2),)), 2).program()
    both = Value(ValueKind.ACTIVATION, 0, 0, 1)
    early = Instruction(Kind.DROP, 0, 0, 0, COMPUTE, (both,), (), (both,))
    late = edited(tied, "period", change("send 0 #0 act.0>1#0", 0, frees=()))
    found = check(edited(late, "period", lambda lists: lists[0, COMPUTE].insert(2, early)))
    assert {problem.code for problem in found} <= {"race", "freed"}
    assert any("send 0 #0 act.0>1#0" in problem.message and "act.0>1#0" in problem.message for problem in found)
    # Behind the backward, whose gradient could only come after the send, the same drop is legal.
    assert check(edited(late, "period", lambda lists: lists[0, COMPUTE].append(early))) == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stride": 3}, "multiple of stage 0's 1 replicas and of the 2 microbatches"),
        ({"admitted": 1}, "whole updates of 2 microbatches"),
        ({"stages": ()}, "no stages"),
        ({"rule": Rule("sync", (2, 2), (0, 1))}, "with delays [0, 1]; expected no delay"),
        ({"rule": Rule("sync", (2,), (0,))}, "for 1 stages; expected 2"),
        ({"stages": (replace(small().stages[0], devices=(0, 0)), small().stages[1])}, "each once"),
        ({"stages": (replace(small().stages[0], targets=()), small().stages[1])}, "does not have the target 1"),
        (
            {"stages": (replace(small().stages[0], devices=(0, 2, 3)), small().stages[1])},
            "expected at least one for each replica",
        ),
        ({"stages": (replace(small().stages[0], tied=((0, (0, 1)),)), small().stages[1])}, "do not both tie"),
        ({"stages": (small().stages[0], replace(small().stages[1], gradients=(1,)))}, "expected one of its sources"),
        (
            {"stages": (replace(small().stages[0], weighted=True), small().stages[1])},
            "an update has one sum of weights",
        ),
        (
            {
                "stages": tuple(replace(s, weighted=True) for s in small().stages),
                "rule": Rule("delayed", (2, 2), (1, 1)),
            },
            "stages are weighted under a rule 'delayed'",
        ),
        ({"stages": (replace(small().stages[0], clips_alone=True), small().stages[1])}, "a job has one rule"),
        (
            {"stages": tuple(replace(s, clips_alone=True, tied=((0, (0, 1)),)) for s in small().stages)},
            "stage 0 clips by its own norm, and shares weights; expected whole gradients",
        ),
        (
            {"stages": tuple(replace(s, clips_alone=True, shard="optimizer", columns=2) for s in small().stages)},
            "stage 1 clips by its own norm, and steps shards; expected whole gradients",
        ),
    ],
)
def test_a_header_that_does_not_fit_is_refused(fields: dict[str, object], words: str) -> None:
    """Stages, rule and stride are checked before any instruction."""
    found = check(replace(small(), **fields))
    assert {problem.code for problem in found} == {"structure"}
    assert any(words in problem.message for problem in found), found


def test_tied_weights_on_one_device_are_refused() -> None:
    """Two stages on one device that share weights with a stage elsewhere are refused.

    Their gradients would not be summed with those of the third stage.
    """
    tied = rounds(2, 1, 2, tied=((0, 1, 2),))
    assert any(
        "share weights and device 0" in p.message
        for p in check(replace(small(), stages=tied, rule=Rule("sync", (2,) * 4, (0,) * 4)))
    )


def test_memory_beyond_a_device_is_told_where_it_is_needed() -> None:
    """A memory problem names the device, its bytes and the largest values.

    It also names the instruction during which that memory may be needed.
    """
    program = small()
    assert check(program, value_bytes=size, capacity_bytes={0: 20.0, 1: 20.0}) == ()
    found = check(program, value_bytes=size, capacity_bytes={0: 13.0, 1: 20.0})
    assert [problem.code for problem in found] == ["memory"]
    assert found[0].device == 0
    assert "backward 0 #" in found[0].message
    assert "opt.0v0 5 B" in found[0].message
    assert "expected at most 13 B" in found[0].message


def test_prove_shows_the_first_problem_in_the_staircase() -> None:
    """The error of an illegal program lists its problems.

    A diagram marks the first one.
    """
    prove(small())
    with pytest.raises(ProgramError) as error:
        prove(edited(small(), "period", move("backward 0 #0", 0, 0)))
    assert error.value.exit_code == 1
    assert "1 problem\n  deadlock: backward 0 #0 on device 0, lane compute (period, instruction 0)" in str(error.value)
    assert "^ HERE: backward 0 #0 (period, instruction 0)" in str(error.value)


def test_a_period_that_leaves_more_than_it_found_is_refused() -> None:
    """A leak in the period of an asynchronous program is refused.

    This holds even if prologue and epilogue are right.
    """
    program = Case("x", "pipedream", pipeline((1, 1)), 1).program()
    backward = next(i for i in program.period[1, COMPUTE] if i.kind is Kind.BACKWARD)
    kept = tuple(v for v in backward.frees if v.what is not ValueKind.STASH)
    found = check(edited(program, "period", change(backward.name, 1, frees=kept)))
    assert {problem.code for problem in found} == {"leak"}
    assert backward.name in found[0].message
    assert found[0].part == "period"

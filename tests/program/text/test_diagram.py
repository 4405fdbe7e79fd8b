"""Staircase diagrams: golden drawings of every strategy, marks, cropping."""

import pytest

from hocket.program.check.problem import Place
from hocket.program.instruction import COMPUTE, Kind
from hocket.program.text.diagram import MAX_ROWS, draw
from tests.paths import GOLDEN, golden
from tests.program.helpers.programs import CASES, Case, pipeline


def golden_text(case: Case) -> str:
    """Content of a golden file: the name and the diagram.

    A schedule without a flush is drawn with two repetitions.
    """
    program = case.program()
    repeats = 2 if program.prologue else 1
    return f"{program.name}, {program.stride} microbatches a period\n\n{draw(program, repeats=repeats, width=None)}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_staircase_is_the_golden_one(case: Case, update_golden: bool) -> None:
    """The diagram of a schedule equals its golden file.

    So every change of a schedule is reviewed as a drawing.
    """
    path, text = golden(case.name), golden_text(case)
    if update_golden:
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: run pytest --update-golden, read the drawing, and add it"
    assert text == path.read_text(), "the drawing has changed; if that is wanted: make golden, and read the difference"


def test_no_golden_file_is_left_over() -> None:
    """Each diagram in tests/golden belongs to a case.

    Texts of programs that swap belong to tests/program/passes/swapping/test_insert.py.
    """
    drawings = {path.stem for path in GOLDEN.glob("*/*.txt") if not path.stem.startswith("swaps-")}
    assert drawings == {case.name for case in CASES}


def test_1f1b_is_the_textbook_staircase() -> None:
    """The diagram of 1F1B is the textbook's.

    Flush, two stages, two microbatches: with backward = 2 forward there are 9 slots, and each device is idle in 3 of
    them.
    """
    case = Case("small", "flush", pipeline((1, 1)), 2)
    assert draw(case.program()) == (
        "slot               0              5\n"
        "device 0  stage 0  F0 F1 .  .  B0--- .  B1---*\n"
        "device 1  stage 1  .  F0 B0--- F1 B1---*.  .\n"
        "F forward, B backward, * weights updated\n"
        "idle: 6 of 2 x 9 slots (33.3 %)\n"
    )


def test_backwards_of_one_slot() -> None:
    """The slots of a backward are an option."""
    drawn = draw(Case("small", "flush", pipeline((1, 1)), 2).program(), backward_slots=1)
    assert "device 0  stage 0  F0 F1 .  B0 .  B1*" in drawn


def test_a_mark_points_at_its_instruction() -> None:
    """`^ HERE` is below the slot of the marked instruction and names it."""
    program = CASES[8].program()
    row = program.period[1, COMPUTE]
    position = next(p for p, i in enumerate(row) if i.kind is Kind.BACKWARD and i.index == 3)
    lines = draw(program, mark=Place("period", 1, COMPUTE, position)).splitlines()
    at = next(n for n, line in enumerate(lines) if "^ HERE" in line)
    assert lines[at - 1].startswith("device 1")
    assert lines[at - 1][lines[at].index("^") :].startswith("B3---")
    assert "backward 1 #3 (period, instruction" in lines[at]


@pytest.mark.parametrize(("lane", "slot"), [("send>2", "F2"), ("receive<2", "B2---"), ("send>0", "B2---")])
def test_a_mark_in_another_lane_points_at_what_the_lane_serves(lane: str, slot: str) -> None:
    """A mark in another lane points at the compute instruction that the lane serves.

    For a send, it is the writer of its value; for a receive, the reader.
    """
    program = CASES[8].program()
    lines = draw(program, mark=Place("period", 1, lane, 2)).splitlines()
    at = next(n for n, line in enumerate(lines) if "^ HERE" in line)
    assert lines[at - 1][lines[at].index("^") :].startswith(slot)
    assert f"in lane {lane}" in lines[at]


@pytest.mark.parametrize("width", [60, 100, 140])
def test_wide_programs_are_cropped_around_the_mark(width: int) -> None:
    """Wide diagrams are cropped around the mark.

    No row is wider than asked, and a note says which slots are shown.
    """
    program = CASES[8].program()
    last = len(program.period[2, COMPUTE]) - 2
    lines = draw(program, width=width, mark=Place("period", 2, COMPUTE, last)).splitlines()
    assert all(len(line) <= width for line in lines if line.startswith(("device", "slot")))
    at = next(n for n, line in enumerate(lines) if "^ HERE" in line)
    assert lines[at - 1][lines[at].index("^") :].startswith("B7")
    assert (width == 140) or any("a larger width shows more" in line for line in lines)


def test_many_devices_are_cropped_but_for_the_marked_one() -> None:
    """The number of rows is limited, but the marked one is shown.

    A note says how many rows are missing.
    """
    program = Case("wide", "data_parallel", pipeline((70,)), 70).program()
    lines = draw(program, mark=Place("period", 69, COMPUTE, 1)).splitlines()
    rows = [line for line in lines if line.startswith("device ")]
    assert len(rows) == MAX_ROWS
    assert rows[-1].startswith("device 69")
    assert "6 more devices are not shown" in lines

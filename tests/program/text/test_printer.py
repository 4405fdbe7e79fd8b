"""Printer and parser are inverses, and errors have the number of the line."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind
from hocket.program.program import SHARDS, Program, StageShape, freeze
from hocket.program.rule import KINDS, Rule
from hocket.program.text.printer import parse_program, print_program
from tests.program.helpers.programs import CASES, Case, pipeline

SMALL = print_program(Case("small", "flush", pipeline((1, 1), tied=((0, 1),), recompute=(0,)), 2).program())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_strategy_goes_round(case: Case) -> None:
    """Printing and parsing a program gives the same program, and the same text again."""
    text = print_program(case.program())
    assert parse_program(text) == case.program()
    assert print_program(parse_program(text)) == text


def test_the_text_is_one_line_an_instruction() -> None:
    """The text has one line for each instruction: reads, writes and frees."""
    assert SMALL.splitlines()[:8] == [
        "hocket program 1",
        "name flush straight 2",
        "rule sync",
        "stride 2",
        "admitted 0",
        "stage 0: devices 0; targets 1; batch; buckets 2; tied 1=0,1; recompute; update 2",
        "stage 1: devices 1; sources 0; gradients 0; batch; buckets 2; tied 1=0,1; update 2",
        "",
    ]
    lines = [line.strip() for line in SMALL.splitlines()]
    assert "forward 0 #1 : in.0#1 w.0v0 -> act.0>1#1" in lines
    assert "forward again 0 #1 : in.0#1 w.0v0 -> stash.0#1" in lines
    assert "send 0 #0 >1 : act.0>1#0 -> ~ act.0>1#0" in lines
    assert "receive 0 #0 <0 : -> act.0>1#0" in lines
    assert "all_reduce 1 u0 @0,1 : dw.1#1b1 -> sum.1u0b1 ~ dw.1#1b1" in lines


NUMBERS = st.integers(0, 10**9 - 1)
DEVICES = st.integers(0, 5)


@st.composite
def values(draw: st.DrawFn) -> Value:
    """Any value that has a text form."""
    what = draw(st.sampled_from(list(ValueKind)))
    whole = (
        ValueKind.INPUT,
        ValueKind.STASH,
        ValueKind.WEIGHTS,
        ValueKind.OPTIMIZER,
        ValueKind.SHARD,
        ValueKind.SQUARES,
        ValueKind.NORM,
    )
    part = -1 if what in whole else draw(NUMBERS)
    return Value(what, draw(NUMBERS), draw(NUMBERS), part, draw(st.integers(0, 3)))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any program that has a text form, legal or not."""
    count = draw(st.integers(1, 3))
    numbers = st.lists(NUMBERS, max_size=3).map(tuple)
    stages = tuple(
        StageShape(
            devices=draw(st.lists(DEVICES, min_size=1, max_size=3).map(tuple)),
            sources=draw(numbers),
            targets=draw(numbers),
            gradients=draw(numbers),
            batch=draw(st.booleans()),
            buckets=draw(st.integers(1, 4)),
            tied=draw(
                st.lists(st.tuples(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)), max_size=2).map(
                    tuple
                )
            ),
            recompute=draw(st.booleans()),
            clips=draw(st.booleans()),
            clips_alone=draw(st.booleans()),
            columns=draw(st.integers(1, 9)),
            shard=draw(st.sampled_from(SHARDS)),
        )
        for _ in range(count)
    )
    each = st.lists(st.integers(1, 9), min_size=count, max_size=count).map(tuple)
    delays = st.lists(st.integers(0, 9), min_size=count, max_size=count).map(tuple)
    rule = Rule(draw(st.sampled_from(KINDS)), draw(each), draw(delays))
    some = st.lists(values(), max_size=3).map(tuple)
    parts = []
    for _ in range(3):
        part: dict[tuple[int, str], list[Instruction]] = {}
        for _ in range(draw(st.integers(0, 3))):
            device, lane = (
                draw(DEVICES),
                draw(st.sampled_from([COMPUTE, "send>3", "receive<0", "reduce@0,1", "gather@0,1", "swap_in"])),
            )
            kind = draw(st.sampled_from(list(Kind)))
            one = Instruction(
                kind, draw(NUMBERS), draw(NUMBERS), device, lane, draw(some), draw(some), draw(some),
                peer=draw(st.one_of(st.just(-1), NUMBERS)) if kind in (Kind.SEND, Kind.RECEIVE) else -1,
                group=draw(st.lists(DEVICES, max_size=3).map(tuple)), again=draw(st.booleans()),
            )  # fmt: skip
            part.setdefault((device, lane), []).append(one)
        parts.append(freeze(part))
    name = draw(st.lists(st.text("abc-2", min_size=1, max_size=4), min_size=1, max_size=3).map(" ".join))
    return Program(name, stages, rule, draw(st.integers(1, 99)), draw(NUMBERS), *parts, draw(st.booleans()))


@given(programs())
def test_anything_goes_round(program: Program) -> None:
    """Any printable program, legal or not, is parsed to the same program.

    So an illegal program can be written down and examined.
    """
    assert parse_program(print_program(program)) == program


@given(st.integers(0, 10**6), st.sampled_from("x:;~>-#@ 0\n\t\x00é"), st.booleans())
def test_a_changed_character_is_refused_with_its_line_or_read(at: int, character: str, insert: bool) -> None:
    """A text with any change is parsed, or refused with the number of a line."""
    at %= len(SMALL)
    text = SMALL[:at] + character + SMALL[at + (not insert) :]
    try:
        program = parse_program(text, "file")
    except InputError as error:
        place = error.place
    else:
        place = "file, as it was"
        assert parse_program(print_program(program)) == program
    assert place.startswith("file, ")


@pytest.mark.parametrize(
    ("old", "new", "line", "found", "expected"),
    [
        ("hocket program 1", "hocket program 2", 1, "hocket program 2", "'hocket program 1'"),
        ("rule sync", "rule eager", 0, "eager", "one of sync"),
        ("stride 2", "stride 0", 4, "'0'", ">= 1"),
        ("stride 2", "stride 2000000000", 4, "2000000000", "at most 9 digits"),
        ("admitted 0", "admit 0", 5, "admit 0", "'admitted ...'"),
        ("stage 1:", "stage 2:", 7, "stage 2", "'stage 1: devices ...'"),
        ("devices 0;", "device 0;", 6, "'device'", "one of devices"),
        ("devices 0;", "", 6, "no 'devices'", "in every stage"),
        ("; recompute", "; recompute yes", 6, "recompute yes", "'recompute' alone"),
        ("; recompute", "; recompute; recompute", 6, "a second time", "each field once"),
        ("tied 1=0,1;", "tied 1;", 6, "tied 1", "tied BUCKET=STAGES"),
        ("period", "periods", 9, "periods", "'prologue', 'period' or 'epilogue'"),
        ("device 0 compute", "device 0 Compute", 11, "Compute", "'device NUMBER LANE'"),
        ("load 0 #0", "lode 0 #0", 12, "'lode'", "one of load"),
        ("load 0 #0", "load 0 u0", 12, "load 0 u0", "'#' before the index"),
        ("load 0 #0", "load 0 #0 >1", 12, ">1", "'>PEER' in a send"),
        ("load 0 #0 : -> in.0#0", "load 0 #0 : in.0#0", 12, "load", "a line such as"),
        ("load 0 #0 : -> in.0#0", "load 0 #0 : -> in.0v0", 12, "in.0v0", "a value such as"),
        ("load 0 #0 : -> in.0#0", "load 0 #0 : -> in.0#0 ~", 12, "~", "a value after '~'"),
        ("device 1 compute", "device 0 compute", 33, "a second time", "each lane once in a part"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(old: str, new: str, line: int, found: str, expected: str) -> None:
    """The error names the file and line, what was found and what was expected."""
    with pytest.raises(InputError) as error:
        parse_program(SMALL.replace(old, new, 1), "p.txt")
    assert error.value.place.startswith(f"p.txt, line {line}" if line else "p.txt")
    assert found in error.value.found
    assert expected in error.value.expected


@pytest.mark.parametrize("text", ["", "\n\n", SMALL[:40], SMALL[:60]])
def test_a_torn_text_is_refused(text: str) -> None:
    """A text that ends in its header is refused, at its end."""
    with pytest.raises(InputError, match="line"):
        parse_program(text)


def test_the_parts_stand_in_order() -> None:
    """A second occurrence of a part, or a part after a later one, is refused."""
    with pytest.raises(InputError, match="each at most once"):
        parse_program(SMALL + "\nprologue\n")


def test_a_line_has_bounds() -> None:
    """A line of megabytes is refused before it is parsed."""
    with pytest.raises(InputError, match="at most 65536 in a line"):
        parse_program(SMALL + "\n" + "x" * 10**6)


def test_what_has_no_text_form_is_refused() -> None:
    """A misplaced instruction, or a name of two lines, cannot be printed."""
    program = parse_program(SMALL)
    moved = replace(program.period[0, COMPUTE][0], device=1)
    with pytest.raises(InputError, match="the device and lane of its place"):
        print_program(replace(program, period=MappingProxyType({(0, COMPUTE): (moved,)})))
    with pytest.raises(InputError, match="printable words"):
        print_program(replace(program, name="two\nlines"))

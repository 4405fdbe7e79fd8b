"""Mutation campaigns: mistakes are small and valid, drawn by a seed, and told apart by whether a test fails."""

import ast
import json
import sqlite3
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.package.helpers.sources import FILES, TOP

SOURCE = '''
"""A room."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from a import b  # 1 + 1

SIZE = 3


def area(sides: list[int], said: list[str], quick: bool = False) -> int:
    """Of two sides."""
    said.append(f"{1 + 1}")
    if not quick and len(sides) < 2:
        return -1
    return sides[0] * sides[1]
'''
TEST = """
from hocket.room.shape import area


def test_area():
    said = []
    assert area([2, 3], said) == 6
    assert area([2, 3], said, True) == 6
    assert area([2], said) == -1
"""


OPTION = "def pytest_addoption(parser):\n    parser.addoption('--fast', action='store_true')\n"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The script, and what finds places for mistakes."""
    monkeypatch.syspath_prepend(str(TOP / "tools"))
    return import_module("mutate"), import_module("mutation_sites")


SETTINGS = """
[tool.mypy]
files = ["hocket"]
ignore_missing_imports = true

[tool.ruff]
lint.ignore = ["F401"]
"""


@pytest.fixture
def small(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tools: tuple[ModuleType, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A repository of one room and one test."""
    top = tmp_path / "small"
    for name, text in (("hocket/room/shape.py", SOURCE), ("tests/room/test_shape.py", TEST)):
        (top / name).parent.mkdir(parents=True)
        (top / name).write_text(text)
        for folder in (Path(name).parent, Path(name).parent.parent):
            (top / folder / "__init__.py").touch()
    (top / "pyproject.toml").write_text(SETTINGS)
    monkeypatch.setattr(tools[0], "ROOT", top)
    # Without plugins, and with a common cache of types, each of the many commands starts in a third of the time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(import_module("bootstrap"), "side_by_side", lambda: ())
    monkeypatch.setenv("MYPY_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "types"))
    return top


def test_each_kind_of_mistake_is_found(tools: tuple[ModuleType, ModuleType]) -> None:
    """Where it can matter: not in annotations, formatted strings and code for type checkers."""
    source = SOURCE.encode()
    found = {
        (one.kind, one.applied(source).decode().splitlines()[one.line - 1].strip())
        for one in tools[1].mutations(source)
    }
    assert found == {
        ("boolean", "def area(sides: list[int], said: list[str], quick: bool = True) -> int:"),
        ("dropped call", "pass"),
        ("boolean", "if quick and len(sides) < 2:"),
        ("boolean", "if not quick or len(sides) < 2:"),
        ("comparison", "if not quick and len(sides) <= 2:"),
        ("sign", "return 1"),
        ("sign", "return sides[0] / sides[1]"),
        ("index", "return sides[1] * sides[1]"),
        ("index", "return sides[0] * sides[2]"),
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = (b) + (c)", "a = (b) - (c)"),
        ("a = (b  # + c\n + c)", "a = (b  # + c\n - c)"),
        ("a = é + b", "a = é - b"),
        ("a -= b", "a += b"),
        ("a = b is not c", "a = b is c"),
        ("a = b in (c)", "a = b not in (c)"),
    ],
)
def test_an_operator_is_changed_where_it_stands(tools: tuple[ModuleType, ModuleType], before: str, after: str) -> None:
    """Beside brackets, comments and letters of several bytes."""
    (one,) = tools[1].mutations(before.encode())
    assert one.applied(before.encode()).decode() == after


def test_mistakes_of_the_package_are_valid_and_small(tools: tuple[ModuleType, ModuleType]) -> None:
    """Of every 50th file: each is another program in one other line."""
    for path in FILES[::50]:
        source = path.read_bytes()
        for mutation in tools[1].mutations(source)[::25]:
            mistaken = mutation.applied(source)
            assert ast.dump(ast.parse(mistaken)) != ast.dump(ast.parse(source)), (path, mutation)
            lines = zip(source.splitlines(), mistaken.splitlines(), strict=True)
            assert [k for k, (one, other) in enumerate(lines, 1) if one != other] == [mutation.line]


def test_a_seed_draws_the_same_of_all_rooms(tools: tuple[ModuleType, ModuleType]) -> None:
    """Each room has one before any has more, and none is drawn twice; another seed draws others."""
    mutate, sites = tools
    one = sites.Mutation("sign", 1, 0, 1, "+")
    every = [mutate.Mutant(f"hocket/{room}/{k}.py", one) for room in "abc" for k in range(20)]
    found = mutate.drawn(every, 10, 1)
    assert found == mutate.drawn(every, 10, 1) != mutate.drawn(every, 10, 2)
    assert {mutant.room for mutant in found[:3]} == set("abc")
    assert len(set(found)) == 10
    assert len(mutate.drawn(every, 100, 1)) == len(every)
    assert len(mutate.drawn(every, 2, 1)) == 2


def test_nearest_tests_run_first(tools: tuple[ModuleType, ModuleType]) -> None:
    """The file's, its sub-room's, its room's, then all of the selection, then linter and types."""
    path = "hocket/program/check/check.py"
    own = ["tests/program/check/test_check.py", "tests/program/check", "tests/program"]
    assert list(import_module("mutation_steps").mirrors(path, TOP)) == [
        place for place in own if (TOP / place).exists()
    ]
    steps = list(tools[0].steps(path, TOP, "fast"))
    assert [step.name for step in steps[-4:]] == ["fast: tests", "fast: tests with workers", "lint", "types"]
    assert all(("--fast" in step.command) == step.name.startswith("fast") for step in steps)
    assert not any("--fast" in step.command for step in tools[0].steps(path, TOP, "all"))


def test_a_campaign_tells_caught_from_escaped(
    small: Path, tools: tuple[ModuleType, ModuleType], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By the tests that mirror the file; what they do not look at escapes a command that runs only them; the sources stay."""
    command = f"{sys.executable} -c 'from tests.room.test_shape import test_area; test_area()'"
    words = ["--seed", "1", "--count", "100", "--command", command, "-o", str(tmp_path / "found.json")]
    assert tools[0].main(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["seed"] == 1
    escaped = [one["after"] for one in found["mutants"] if one["result"] == "escaped"]
    assert escaped == ["pass"]
    assert len(found["mutants"]) == 9
    assert found["summary"]["caught"] == 8
    assert "escaped: hocket/room/shape.py:14 (dropped call)" in capfd.readouterr().out
    assert (small / "hocket/room/shape.py").read_text() == SOURCE


@pytest.mark.slow
def test_tests_that_ran_the_line_go_first(
    small: Path, tools: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a measurement of coverage tells; the nearest first, and without tests that are no longer there.

    pytest fails if it is asked for one of these, so every mistake would count as caught.
    """
    (small / "conftest.py").write_text(OPTION)
    (small / "tests/test_far.py").write_text("def test():\n    pass\n")
    with sqlite3.connect(tmp_path / "ran") as kept:
        kept.execute("create table file (id integer, path text)")
        kept.execute("create table context (id integer, context text)")
        kept.execute("create table line_bits (file_id integer, context_id integer, numbits blob)")
        kept.execute("insert into file values (1, '/elsewhere/hocket/room/shape.py')")
        names = ("tests/test_far.py::test", "tests/room/test_shape.py::test_area")
        gone = ("tests/gone.py::test", "tests/room/test_shape.py::test_gone")
        for number, name in enumerate(["", *(f"{name}|run" for name in names + gone)]):
            kept.execute("insert into context values (?, ?)", (number, name))
            kept.execute("insert into line_bits values (1, ?, ?)", (number, bytes([0, 0, 0b0000_0010])))  # line 17
    mutate, sites = tools
    ran = mutate.RanLines(tmp_path / "ran")
    ran.known = mutate.collected(small, "fast")
    assert ran.known == set(names)
    found = {
        one.line: ran.tests(mutate.Mutant("hocket/room/shape.py", one), small)
        for one in sites.mutations(SOURCE.encode())
    }
    assert found.pop(17) == [names[1], names[0]]
    assert not any(found.values())
    first = next(mutate.steps("hocket/room/shape.py", small, "fast", True, [names[1], names[0]]))
    assert first.command[-3:] == ("--fast", names[1], names[0])
    assert mutate.run(first, small, 60.0) == "escaped", "without a mistake"

    words = ["--ran", str(tmp_path / "ran"), "--jobs", "2", "--near", "--seed", "1", "-o", str(tmp_path / "found.json")]
    assert mutate.main(words) == 0
    outcomes = json.loads((tmp_path / "found.json").read_text())["mutants"]
    by_ran = {one["line"] for one in outcomes if one["step"] == "fast: tests that ran it"}
    assert by_ran == {17}
    assert {one["step"] for one in outcomes if one["line"] == 15} == {"fast: tests/room/test_shape.py"}


@pytest.mark.slow
def test_several_mutants_at_a_time(small: Path, tools: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """Each in its own copy: the same outcomes in the same order."""
    command = f"{sys.executable} -c 'from tests.room.test_shape import test_area; test_area()'"
    outcomes = []
    for jobs in ("1", "3"):
        words = ["--seed", "1", "--command", command, "--jobs", jobs, "-o", str(tmp_path / "found.json")]
        assert tools[0].main(words) == 0
        found = json.loads((tmp_path / "found.json").read_text())
        outcomes.append([(one["after"], one["result"]) for one in found["mutants"]])
    assert outcomes[0] == outcomes[1]
    assert (small / "hocket/room/shape.py").read_text() == SOURCE


def test_a_command_that_fails_by_itself_tells_nothing(
    small: Path, tools: tuple[ModuleType, ModuleType], capfd: pytest.CaptureFixture[str]
) -> None:
    """Every mistake would count as caught."""
    assert tools[0].main(["--count", "1", "--command", f"{sys.executable} -c 1/0"]) == 1
    assert "fails without any mistake" in capfd.readouterr().out
    (small / "hocket/room/odd.py").write_text("odd: int = 'no number'\n")
    assert tools[0].main(["--count", "1", "--near"]) == 1
    assert "`mypy` fails without any mistake" in capfd.readouterr().out


def test_what_does_not_end_is_ended(small: Path, tools: tuple[ModuleType, ModuleType]) -> None:
    """After its limit, and counts as caught by time."""
    step = tools[0].Step("command", (sys.executable, "-c", "import time; time.sleep(1000)"))
    assert tools[0].run(step, small, 0.5) == "timeout"


def test_near_leaves_out_tests_of_other_rooms(small: Path, tools: tuple[ModuleType, ModuleType]) -> None:
    """Only tests that mirror the file, its sub-room or its room, then linter and types."""
    near, whole = (
        [step.name for step in tools[0].steps("hocket/room/shape.py", small, "fast", near)] for near in (True, False)
    )
    assert near == ["fast: tests/room/test_shape.py", "fast: tests/room", "lint", "types"]
    assert set(near) < set(whole)
    assert "fast: tests with workers" in whole


def test_a_group_is_caught_by_tests_that_fail_with_one_alone(tools: tuple[ModuleType, ModuleType]) -> None:
    """One mistake hides another, two fail a test only together, one does not end, and one fails nothing."""
    fails = {"first": {"a", "b"}, "hidden": {"c"}, "endless": {"d"}, "quiet": set(), "one": set(), "other": set()}

    def failing(some: Sequence[str], elsewhere: Collection[str]) -> list[str] | None:
        if "endless" in some:
            return None
        seen = set() if {"first", "hidden"} <= set(some) else fails.get("hidden", set()) if "hidden" in some else set()
        seen |= fails["first"] if "first" in some else set()
        return sorted((seen | ({"both"} if {"one", "other"} <= set(some) else set())) - set(elsewhere))

    def catches(one: str, tests: Sequence[str]) -> bool:
        return bool(fails[one] & set(tests))

    assert import_module("mutation_group").caught(list(fails), failing, catches) == ["first", "hidden", "endless"]


@pytest.mark.slow
def test_many_mistakes_in_one_run(small: Path, tools: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """The same are caught as one by one; the sources stay."""
    (small / "conftest.py").write_text(OPTION)
    words = ["--seed", "1", "--count", "100", "--together", "--limit", "60", "-o", str(tmp_path / "found.json")]
    assert tools[0].main(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one["after"] for one in found["mutants"] if one["result"] == "escaped"] == ["pass"]
    assert (small / "hocket/room/shape.py").read_text() == SOURCE


def test_only_what_escaped_is_tried_again(small: Path, tools: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    """The same seed draws the same mutants; of them those that an output names as escaped are left."""
    mutants = tools[0].every(small)
    rows = [
        {
            "path": one.path,
            "line": one.mutation.line,
            "kind": one.mutation.kind,
            "result": "escaped" if k == 1 else "caught",
        }
        for k, one in enumerate(mutants)
    ]
    output = tmp_path / "near.json"
    output.write_text(json.dumps({"mutants": rows}))
    left = tools[0].escaped_in(mutants, output)
    assert mutants[1] in left
    assert len(left) < len(mutants)

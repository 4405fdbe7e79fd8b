"""Structure of the package: order of rooms, circles, folders, names. Read from the source of every file."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hocket import ROOMS
from hocket.util.registry import names as member_names
from tests.package.helpers.circles import circles_of, graph_of
from tests.package.helpers.sources import FILES, PACKAGE, TOP, docstrings_of, imports_of_package, name_of, tree_of

PYPROJECT = TOP / "pyproject.toml"

# Folders that hold members of one kind and nothing else: they may show more than twelve.
MEMBERS = (
    "hocket/strategies/schedules",
    "hocket/scheduler/policies",
    "hocket/hardware/catalog",
    "hocket/profiling/analytic/sizes/published",
    "tests/scheduler/policies",
    "tests/golden",
)
MOST_ENTRIES = 12

# The lists below may only become shorter: an entry that no longer applies is an error, too.
SHARED_CLASS_NAMES: frozenset[str] = frozenset(
    {
        "Job",
        "_Arriving",
        "_Asks",
        "_Ended",
        "_File",
        "_Search",
    }
)
MEMBER_NAMES_OUTSIDE: Mapping[str, int] = {
    "cli/cluster/policy_options.py": 10,
    "cli/cluster/simulate.py": 1,
    "cli/cluster/solve.py": 1,
    "cli/measure/profile.py": 1,
    "cli/measure/waves.py": 2,
    "cli/output/footnotes.py": 1,
    "cli/plan/explain.py": 1,
    "cli/renamed.py": 1,
    "cli/train/demo.py": 1,
    "planning/background/background_job.py": 1,
    "planning/explain/baseline_comparison.py": 7,
    "planning/explain/rejected.py": 4,
    "planning/goals/time_to_accuracy.py": 1,
    "planning/mesh/bound_tables.py": 1,
    "planning/mesh/heterogeneous/layouts.py": 1,
    "planning/mesh/layout.py": 13,
    "planning/mesh/layout_space.py": 1,
    "planning/mesh/search/simulated.py": 1,
    "planning/search/result.py": 1,
    "planning/swapping/baselines.py": 7,
    "planning/swapping/search.py": 1,
    "planning/waves/compare.py": 6,
    "planning/waves/explain.py": 2,
    "planning/waves/room.py": 7,
    "reporting/cluster_report/facts.py": 2,
    "training/calibrate/buckets/measure.py": 1,
    "training/calibrate/engine_overhead.py": 4,
    "training/calibrate/measure_waves.py": 2,
    "scheduler/core/policy_by_name.py": 2,
    "scheduler/model/snapshot.py": 1,
    "util/compatibility.py": 2,
}
GETATTR_ON_MEMBERS: Mapping[str, int] = {
    "scheduler/core/policy_by_name.py": 2,
}


def test_the_contract_of_imports_lists_the_rooms() -> None:
    """pyproject.toml and hocket/__init__.py have the same rooms in the same order."""
    (contract,) = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["contracts"]
    assert tuple(reversed(contract["layers"])) == ROOMS
    assert len(set(ROOMS)) == len(ROOMS)


def test_a_room_imports_only_rooms_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    """import-linter keeps its contract: lazy and typing imports count, and no file is outside the rooms."""
    from importlinter.cli import lint_imports

    broken = lint_imports(config_filename=str(PYPROJECT), no_cache=True)
    assert not broken, capsys.readouterr().out


def test_imports_have_no_circle() -> None:
    """No module imports itself through others, at the top, inside a function or for type checking."""
    found = {module for circle in circles_of(graph_of(imports_of_package(), FILES)) for module in circle}
    assert not found


@pytest.mark.parametrize(
    ("graph", "wanted"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}, [{"a", "b", "c"}]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [{"a", "b"}, {"c", "d"}]),
    ],
)
def test_the_circle_test_can_fail(graph: dict[str, set[str]], wanted: list[set[str]]) -> None:
    """Each circle is found once, with everything in it and nothing else."""
    assert sorted(map(sorted, circles_of(graph))) == sorted(map(sorted, wanted))


def entries(folder: Path) -> set[str]:
    """What a folder shows: files and folders, but for `__init__.py`, helpers of its tests and what tools leave behind."""
    hidden = {"__init__.py", "py.typed", "__pycache__", "helpers", "conftest.py"}
    return {path.name for path in folder.iterdir() if path.name not in hidden and not path.name.startswith(".")}


def test_a_folder_shows_at_most_twelve_entries() -> None:
    """Every room, sub-room and folder of tests, but for the two roots and folders of members."""
    folders = [path for top in ("hocket", "tests") for path in (TOP / top).rglob("*") if path.is_dir()]
    shown = {path.relative_to(TOP).as_posix(): len(entries(path)) for path in folders if path.name != "__pycache__"}
    assert {name: n for name, n in shown.items() if n > MOST_ENTRIES and name not in MEMBERS} == {}
    assert [name for name in MEMBERS if name not in shown] == []


@pytest.mark.parametrize("package", ["hocket.strategies.schedules", "hocket.scheduler.policies"])
def test_a_folder_of_members_holds_members_only(package: str) -> None:
    """No helper stands between the members."""
    assert entries(TOP / package.replace(".", "/")) == {f"{name}.py" for name in member_names(package)}


def test_a_private_module_is_imported_only_in_its_folder() -> None:
    """`_module` helps its neighbours; what other folders need has no underscore."""
    wrong = []
    for one in imports_of_package():
        for module in (one.module, *(f"{one.module}.{name}" for name in one.names)):
            parts = module.split(".")
            private = next((at for at, part in enumerate(parts) if part.startswith("_") and at), None)
            if parts[0] != "hocket" or not private or not (TOP / "/".join(parts)).with_suffix(".py").exists():
                continue
            if not f"hocket/{one.path}".startswith("/".join(parts[:private]) + "/"):
                wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_a_class_name_is_unique() -> None:
    """A bare class name means one thing in the whole package."""
    homes = defaultdict(list)
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"hocket/{name_of(path)}:{node.lineno}")
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert SHARED_CLASS_NAMES - set(shared) == set(), "unique now: take it off the list"


ROOMS_OF_MEMBERS = {"hocket.strategies.schedules": "strategies/", "hocket.scheduler.policies": "scheduler/policies/"}


def test_no_member_is_named_outside_its_room() -> None:
    """A strategy's or policy's name is no string literal elsewhere: members say by traits what they are."""
    found: Counter[str] = Counter()
    for package, room in ROOMS_OF_MEMBERS.items():
        members = set(member_names(package))
        for path in FILES:
            if not name_of(path).startswith(room):
                found[name_of(path)] += sum(
                    isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in members
                    for node in ast.walk(tree_of(path))
                )
    only_fewer(found, MEMBER_NAMES_OUTSIDE)


def test_members_are_not_asked_by_getattr() -> None:
    """What members may declare is not looked up by its name, with a default for the others."""
    declared = {name for package in ROOMS_OF_MEMBERS for name in declared_in(TOP / package.replace(".", "/"))}
    found: Counter[str] = Counter()
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                asked = node.args[1]
                found[name_of(path)] += isinstance(asked, ast.Constant) and asked.value in declared
    only_fewer(found, GETATTR_ON_MEMBERS)


def declared_in(folder: Path) -> Iterator[str]:
    """Names of functions, classes and constants at the top of each file."""
    for path in folder.glob("*.py"):
        for node in tree_of(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def only_fewer(found: Counter[str], allowed: Mapping[str, int]) -> None:
    """Each file has as many as the list says; the list may only become shorter."""
    more = {name: n for name, n in found.items() if n > allowed.get(name, 0)}
    assert not more, f"more than the list allows: {more}"
    fewer = {name: found[name] for name, n in allowed.items() if found[name] < n}
    assert not fewer, f"lower the list to: {fewer}"


# A path such as hocket/errors.py or docs/explanation/design.md; not a pattern, and not the end of an address.
PATH = re.compile(
    r"(?<![\w/.\-<{*$~\\])((?:[\w.\-]+/)+[\w.\-]+\.(?:py|md|yaml|toml|html|css|js|sh)"
    r"|(?:hocket|docs|tests|bench|examples|tools)/[\w./\-]*\w)(?![\w*<{/])"
)
NAMES = tuple(name_of(path) for path in PACKAGE.rglob("*"))
# Files of other projects, named as their source.
ELSEWHERE = frozenset({"examples/vit.py"})


def missing_paths(text: str, home: Path) -> Iterator[str]:
    """Paths that a text names and that do not exist: from the top, from its folder, or the end of a path in the package."""
    for path in PATH.findall(text):
        starts = (TOP, PACKAGE, *home.parents)
        known = any((start / path).exists() for start in starts) or any(
            f"/{name}".endswith(f"/{path}") for name in NAMES
        )
        written = f"<!-- file: {path} -->" in text  # by a block of the page
        if not (known or written or path in ELSEWHERE):
            yield path


@pytest.mark.parametrize("kind", ["pages", "docstrings"])
def test_every_path_that_is_named_exists(kind: str) -> None:
    """README, pages and docstrings name files that are there."""
    wrong = []
    if kind == "pages":
        for page in [*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *PACKAGE.rglob("*.md")]:
            wrong += [f"{page.relative_to(TOP)}: {path}" for path in missing_paths(page.read_text(), page)]
    else:
        for file in [path for top in ("hocket", "bench", "tools") for path in (TOP / top).rglob("*.py")]:
            for line, text in docstrings_of(file):
                wrong += [f"{file.relative_to(TOP)}:{line}: {path}" for path in missing_paths(text, file)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see docs/explanation/design.md and hocket/errors.py", []),
        ("in `util/files.py` of hocket/util", []),
        ("docs/nowhere.md", ["docs/nowhere.md"]),
        ("(runtime/nothing.py)", ["runtime/nothing.py"]),
        ("hocket/nothing/at/all", ["hocket/nothing/at/all"]),
        ("docs/*.md, and/or, https://example.com/docs/nowhere.md", []),
    ],
)
def test_the_path_test_can_fail(text: str, missing: list[str]) -> None:
    """A path that is not there is seen; patterns, slashes between words and addresses are no paths."""
    assert list(missing_paths(text, TOP / "docs" / "explanation" / "design.md")) == missing

"""Every third-party import is declared in pyproject.toml, and optional packages are imported where they are used."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.package.helpers.sources import TOP, tree_of

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
FOLDERS = ("hocket", "tools", "tests", "bench", "examples")
OURS = {*FOLDERS, "conftest"}
# Modules whose distribution has another name, or comes along with another one.
DISTRIBUTIONS = {"ruamel": "ruamel.yaml", "importlinter": "import-linter", "triton": "torch"}


def normal(requirement: str) -> str:
    """Name of the distribution in a requirement, as package registries compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


NEEDED = {normal(one) for one in PROJECT["dependencies"]}
EXTRAS = {normal(one) for extra in PROJECT["optional-dependencies"].values() for one in extra}


def imported(tree: ast.AST, lazily: bool) -> Iterator[str]:
    """Top-level names of imported modules: those at the top of a file, or those inside functions as well."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]
        if lazily or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left.extend(ast.iter_child_nodes(node))


def third_party(tree: ast.AST, lazily: bool = True, neighbours: frozenset[str] = frozenset()) -> set[str]:
    """Distributions that a file imports."""
    names = {name for name in imported(tree, lazily) if name not in sys.stdlib_module_names | OURS | neighbours}
    return {normal(DISTRIBUTIONS.get(name, name)) for name in names}


def undeclared(folder: str, declared: set[str]) -> list[str]:
    """Files of a folder with imports that are not declared."""
    files = sorted((TOP / folder).rglob("*.py"))
    # Scripts of bench/, tools/ and examples/ import their neighbours by bare names.
    near = frozenset(
        {path.stem for path in files} | {path.parent.name for path in files}
        if folder in ("bench", "tools", "examples")
        else ()
    )
    return [
        f"{path.relative_to(TOP)}: {', '.join(sorted(missing))}"
        for path in files
        if (missing := third_party(tree_of(path), neighbours=near) - declared)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_is_declared(folder: str) -> None:
    """Dependencies and extras cover all imports; at the top of the package's files stand dependencies only."""
    assert undeclared(folder, NEEDED | EXTRAS) == []
    if folder == "hocket":
        top = {name for path in (TOP / folder).rglob("*.py") for name in third_party(tree_of(path), lazily=False)}
        assert top <= NEEDED, "an optional package is imported inside the function that uses it"


@pytest.mark.slow
def test_every_dependency_is_imported() -> None:
    """Nothing is installed for everybody that the package does not use."""
    used = {name for path in (TOP / "hocket").rglob("*.py") for name in third_party(tree_of(path))}
    assert sorted(NEEDED - used) == []


def test_lowest_versions_are_listed() -> None:
    """The constraints for a test of the lower bounds have each dependency once, but those that are kept."""
    script = [sys.executable, str(TOP / "tools" / "lowest_versions.py"), "--keep", "torch"]
    lines = subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]
    assert lines == [one.replace(">=", "==") for one in wanted if not one.startswith("torch")]


@pytest.mark.parametrize(
    ("text", "lazily", "wanted"),
    [
        ("import numpy.linalg as la\nfrom . import x\nfrom .y import z", True, {"numpy"}),
        ("import os, json\nfrom hocket.errors import InputError", True, set()),
        ("from ruamel.yaml import YAML", True, {"ruamel-yaml"}),
        ("def f():\n    from pydantic_core import core_schema", True, {"pydantic-core"}),
        ("def f():\n    import torch", False, set()),
        ("if True:\n    import torch", False, {"torch"}),
    ],
)
def test_the_dependency_test_can_fail(text: str, lazily: bool, wanted: set[str]) -> None:
    """Each form of import is seen, and belongs to its distribution."""
    assert third_party(ast.parse(text), lazily) == wanted

"""Tiers: what a test needs is true, and the fast selection covers what it says."""

import ast
import os
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.package.helpers.circles import reached
from tests.package.helpers.sources import imports_of_package, module_of, tree_of
from tests.tiers import NEEDS, SYSTEM, TESTS, TORCH, alternating, covering, examples, need_of, spread, thinned

FILES = sorted(TESTS.rglob("*.py"))
rows = st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20)


@cache
def imports(path: Path) -> set[str]:
    """Modules that a file of tests imports at its top; what is imported from a module may be one as well."""
    nodes = tree_of(path).body
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return plain | {f"{n.module}.{alias.name}" for n in froms for alias in n.names} | {str(n.module) for n in froms}


@cache
def torch_in_package() -> set[str]:
    """Modules of the package that load torch when they are imported."""
    users: dict[str, set[str]] = {}
    for one in imports_of_package():
        if not one.lazy and not one.typing:
            for name in (one.module, one.module.split(".")[0], *(f"{one.module}.{name}" for name in one.names)):
                users.setdefault(name, set()).add(module_of(one.path))
    return reached(users, "torch")


def loads_torch(path: Path) -> bool:
    """Whether a file of tests imports torch, directly or through files of tests or of the package."""
    seen: set[str] = set()
    left = set(imports(path))
    while left:
        name = left.pop()
        seen.add(name)
        if name.split(".")[0] == "torch" or name in torch_in_package():
            return True
        file = TESTS.parent / f"{name.replace('.', '/')}.py"
        left |= (imports(file) if name.startswith("tests.") and file.exists() else set()) - seen
    return False


def test_what_is_called_unit_loads_no_torch() -> None:
    """Nor do its helpers."""
    wrong = [
        path.relative_to(TESTS).as_posix()
        for path in FILES
        if path.name.startswith("test_")
        and need_of(path.relative_to(TESTS).as_posix(), False) == "unit"
        and loads_torch(path)
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def named() -> str | None:
    """The name of the running test, where pytest says it."""
    return os.environ.get("PYTEST_CURRENT_TEST")


def test_no_test_is_named_in_the_environment(named: str | None) -> None:
    """In fixtures and tests it is the same, so that all of them share one fork server."""
    assert named is None
    assert "PYTEST_CURRENT_TEST" not in os.environ


def test_folders_of_needs_exist() -> None:
    """A folder that moved is no longer in the lists."""
    assert [name for name in (*TORCH, *SYSTEM) if not (TESTS / name).exists()] == []


@pytest.mark.parametrize(
    ("path", "starts", "wanted"),
    [
        ("planning/mesh/search/test_search.py", False, "unit"),
        ("runtime/stage/test_data_stream.py", False, "torch"),
        ("runtime/engine/test_distributed.py", True, "workers"),
        ("system/test_train.py", True, "system"),
        ("system/test_overlap.py", False, "torch"),
        ("systematic/test_train.py", True, "workers"),
    ],
)
def test_the_need_of_a_test(path: str, starts: bool, wanted: str) -> None:
    """By its folder, and by whether it starts workers."""
    assert need_of(path, starts) == wanted
    assert wanted in NEEDS


@given(rows=rows, strength=st.integers(1, 3))
def test_a_few_rows_cover_all(rows: list[tuple[int, ...]], strength: int) -> None:
    """Every combination of so many values that some row has is in a chosen row; no chosen row is there twice."""
    found = covering(rows, strength)
    assert found == sorted(set(found))
    for columns in combinations(range(3), strength):
        wanted = {tuple(row[c] for c in columns) for row in rows}
        assert {tuple(rows[k][c] for c in columns) for k in found} == wanted


def test_cases_have_values_in_turn() -> None:
    """Each case once, with the next value; several parameters are one value."""
    found = alternating(["a", "b", "c"], [(1, 2), (3, 4)])
    assert [one.values for one in found] == [("a", 1, 2), ("b", 3, 4), ("c", 1, 2)]
    assert [one.id for one in found] == ["a-value 0", "b-value 1", "c-value 0"]
    assert [(one.values, one.id) for one in alternating(["a", "b"], [max, "y"])] == [
        (("a", max), "a-max"),
        (("b", "y"), "b-y"),
    ]


def test_pairs_of_a_product_need_few_of_it() -> None:
    """Three parameters of three values: nine or a few more of 27 cases have all pairs; three have all values."""
    cases = list(product(range(3), repeat=3))
    assert 9 <= len(covering(cases, 2)) <= 12
    assert len(covering(cases, 1)) == 3


@pytest.mark.parametrize(("count", "most", "wanted"), [(5, None, 5), (5, 9, 5), (5, 2, 2), (7, 3, 3), (1, 1, 1)])
def test_a_few_of_many_are_spread(count: int, most: int | None, wanted: int) -> None:
    """As many as asked for, in their order, the first among them, none twice, and none far from the next."""
    found = spread(range(count), most)
    assert len(found) == len(set(found)) == wanted
    assert found == sorted(found)
    assert found[0] == 0
    gaps = [after - before for before, after in pairwise([*found, count])]
    assert max(gaps) - min(gaps) <= 1


def test_a_product_inside_a_test_is_whole_but_in_the_fast_selection() -> None:
    """`thinned` gives the items themselves, in their order."""
    cases = list(product("ab", "cd"))
    assert thinned(cases, cases, 1, fast=False) == cases
    assert thinned(cases, cases, 1, fast=True) == [("a", "c"), ("b", "d")]


def test_the_number_of_examples_follows_the_profile(request: pytest.FixtureRequest) -> None:
    """Three fifths of the number in continuous integration, a fifth in the fast selection, never fewer than a few."""
    fast = request.config.getoption("--fast")
    profile = request.config.getoption("--hypothesis-profile")
    scale = 0.2 if fast else 10 if profile == "nightly" else 0.6
    assert examples(100).max_examples == 100 * scale
    assert examples(3).max_examples == max(3, 3 * scale)
    assert examples(8, deadline=7).deadline.total_seconds() == 0.007
    assert examples(8).derandomize == (profile != "nightly")

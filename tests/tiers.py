"""Tiers: what a test needs, and which tests and cases the fast selection takes.

A test's need is a mark that its folder decides: `unit` (no torch), `torch`, `workers` (starts worker processes), `system` (the
whole program, from a command or a script). `--fast` leaves out what is marked `slow`; of a function marked `thinned` it keeps a
few cases, such that together they have every value of every parameter (`strength` 1) or every two values (2), and at most
`most` of these.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

WRITTEN = ("workers", "gpu")
"""Marks that a file with such tests always has in its text."""
NEEDS = ("unit", "torch", "workers", "system")
TESTS = Path(__file__).resolve().parent
# Folders and files whose tests load torch; all others need none.
TORCH = (
    "cli",
    "conformance/test_features.py",
    "cost/analytic",
    "edges/test_kept_edges.py",
    "gpu",
    "models",
    "package/test_docs.py",
    "planning/predict",
    "planning/test_load.py",
    "profiling",
    "program/check/test_mutations_inline.py",
    "runtime",
    "system",
    "test_api.py",
    "training",
)
SYSTEM = ("system", "cli/train", "test_api.py")
BASE_EXAMPLES = 100
FEWEST_EXAMPLES = 5

T = TypeVar("T")


def need_of(path: str, starts_workers: bool) -> str:
    """What the tests of a file need, by its path inside `tests`."""
    if starts_workers:
        return "system" if _inside(path, SYSTEM) else "workers"
    return "torch" if _inside(path, TORCH) else "unit"


def _inside(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def not_asked(path: Path, config: pytest.Config) -> bool:
    """Whether a file of tests need not be read: only tests with a mark are asked for, and the file does not have it."""
    mark = config.getoption("markexpr")
    return mark in WRITTEN and path.name.startswith("test_") and f"mark.{mark}" not in path.read_text()


def asked(request: pytest.FixtureRequest, *names: str) -> set[tuple[Any, ...]]:
    """Values of these parameters that selected tests of the module have: what its worker processes are to run."""
    own = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    params = [item.callspec.params for item in own if hasattr(item, "callspec")]
    return {tuple(each[name] for name in names) for each in params if all(name in each for name in names)}


def examples(count: int, **more: Any) -> settings:
    """Settings of a property: three fifths of `count` examples in continuous integration, a fifth with `--fast`, ten times as many
    at night.
    """
    scale = settings.default.max_examples / BASE_EXAMPLES  # type: ignore[union-attr]
    return settings(max_examples=max(min(count, FEWEST_EXAMPLES), round(count * scale)), **more)


def covering(rows: Sequence[Sequence[Hashable]], strength: int) -> list[int]:
    """Numbers of a few rows that have every combination of `strength` values of different columns that any row has.

    Greedy, in the order of rows: the same rows give the same answer.
    """
    columns = range(len(rows[0])) if rows else range(0)
    chosen = list(combinations(columns, min(strength, len(columns))))
    left = [{(those, tuple(row[c] for c in those)) for those in chosen} for row in rows]
    missing, found = set().union(*left), []
    while missing:
        best = max(range(len(rows)), key=lambda k: (len(left[k] & missing), -k))
        found.append(best)
        missing -= left[best]
    return sorted(found)


def in_turn(cases: Sequence[Any], first: tuple[str, str], *others: tuple[str, str]) -> list[Any]:
    """Parameters (model, optimizer, case) of a test: each case with the first job, and with one of the others in turn."""
    jobs = [(first, case) for case in cases] + list(zip(cycle(others), cases, strict=False))
    return [pytest.param(*job, case, id=f"{'-'.join(job)}-{case}") for job, case in jobs]


def alternating(cases: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Parameters (case, value) of a test: each case with one of the values, in turn, in place of their product.

    A value that is a tuple is several parameters.
    """
    found = []
    for case, (number, value) in zip(cases, cycle(enumerate(values)), strict=False):
        shown = value if isinstance(value, str) else getattr(value, "__name__", f"value {number}")
        row = value if isinstance(value, tuple) else (value,)
        found.append(pytest.param(case, *row, id=f"{getattr(case, 'name', case)}-{shown}"))
    return found


def spread(items: Sequence[T], most: int | None) -> list[T]:
    """At most so many of the items, evenly spaced from the first on; all of them without a limit."""
    if most is None or most >= len(items):
        return list(items)
    return [items[k * len(items) // most] for k in range(most)]


def thinned(items: Sequence[T], rows: Sequence[Sequence[Hashable]], strength: int, fast: bool) -> list[T]:
    """Items of a product inside a test: all of them, or a few that cover it (`covering`)."""
    return [items[k] for k in covering(rows, strength)] if fast else list(items)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with its need; with `--fast`, leave out what is slow."""
    for item in items:
        path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        item.add_marker(need_of(path, item.get_closest_marker("workers") is not None))
    if not config.getoption("--fast"):
        return
    left_out = {item for item in items if item.get_closest_marker("slow")}
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item not in left_out and item.get_closest_marker("thinned"):
            cases[item.nodeid.split("[")[0]].append(item)
    for own in cases.values():
        mark = own[0].get_closest_marker("thinned")
        assert mark is not None
        strength, of = mark.kwargs.get("strength", 1), mark.kwargs.get("of")
        kept = spread(covering([_row(item, of) for item in own], strength), mark.kwargs.get("most"))
        left_out |= set(own) - {own[k] for k in kept}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))


def _row(item: pytest.Function, of: Callable[..., Any] | None) -> list[Hashable]:
    """Values of a case's parameters, of a dataclass those of its fields; `of` gives other values than the parameters."""
    if of is not None:
        return list(of(**item.callspec.params))
    row: list[Hashable] = []
    for _, value in sorted(item.callspec.params.items()):
        if is_dataclass(value) and not isinstance(value, type):
            row += [_short(getattr(value, field.name)) for field in fields(value)]
        else:
            row.append(_short(value))
    return row


def _short(value: Any) -> Hashable:
    """A value to compare with; of a tuple of numbers only whether it has several, and whether they are equal."""
    if isinstance(value, tuple) and value and all(isinstance(one, int) for one in value):
        return len(value) > 1, len(set(value)) == 1
    return repr(value)

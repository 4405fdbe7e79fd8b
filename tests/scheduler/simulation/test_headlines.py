"""Headline results of the dissertation: documents, kept runs, and completeness."""

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def headlines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as it is called."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("bench_headlines")


def _found(headlines: Any) -> list[Any]:
    found: list[Any] = headlines.lines(headlines.ScopedRuns(headlines.Kept(headlines.KEPT, only=True), headlines.ALL))
    return found


def test_the_recorded_table_is_that_of_the_runs_that_are_kept(headlines: Any) -> None:
    """The recorded table equals that of the kept runs, letter by letter.

    New runs need a new table: `python -m bench.record bench_headlines --kept`.
    """
    table = "\n".join(headlines.table(_found(headlines)))
    assert table in (ROOT / "bench" / "results" / "headlines-kept.txt").read_text()


def test_no_headline_is_left_out_and_the_worst_comes_first(headlines: Any) -> None:
    """Each headline has runs, and rows are sorted by the reproduced part."""
    found = _found(headlines)
    assert {one.name for one in found} == {one.name for one in headlines.HEADLINES}
    parts = [one.part for one in found if one.part is not None]
    assert parts == sorted(parts)
    assert parts[0] < 0.6


@pytest.mark.parametrize(
    ("kind", "ours", "published", "part"),
    [
        ("TIMES", 1.5, "3", 0.5),
        ("BY", 2.0, "about 1", 0.5),
        ("LATE", 0.1, "0 %", 0.9),
        ("LESS", 0.085, "17 % less", 0.5),
    ],
)
def test_how_much_of_what_was_published_ours_is(
    headlines: Any, kind: str, ours: float, published: str, part: float
) -> None:
    """The reproduced part: ratios, inverted ratios, and jobs in time."""
    values = importlib.import_module("_headline_values")
    one = values.Headline("x", published, "", lambda *_: ours, getattr(values, kind))
    assert one.part(ours) == pytest.approx(part)
    assert values.Headline("x", "not told", "", lambda *_: ours).part(ours) is None

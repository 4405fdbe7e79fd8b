"""Tables fit the terminal, and figures read well."""

from dataclasses import replace

import pytest

from hocket.cli.output.tables import print_search
from hocket.cli.plan.explain import _runner_up
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Evaluated, Search
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.strategies.base.strategy import members


def _with(candidate: Evaluated, **changes: float) -> Evaluated:
    """A candidate with another prediction."""
    return replace(candidate, predicted=replace(candidate.predicted, **changes))


@pytest.fixture(scope="module")
def found() -> Search:
    """A search in which every strategy has its say, on four devices."""
    profile = chain(6, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
    return search(
        profile, Cluster("four", (Level("server", 4, 1e9, 1e-6),), "cpu-core"), PlanRequest(30, synchronous=False)
    )


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.thinned(most=2)
def test_the_table_of_plans_never_breaks_a_word(found: Search, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The table of plans breaks no word at any usual width.

    Each candidate has one line. Omitted columns are named.
    """
    print_search(found, 12, width)
    out = capsys.readouterr().out
    rows = [line.strip() for line in out.splitlines() if line.strip().split(" ")[0] in members()]
    assert len(rows) == min(12, len(found.candidates))
    first, *others = found.candidates
    told = [first, *sorted(others, key=lambda one: one.iteration_s)]  # the best twelve
    for row, candidate in zip(rows, told, strict=False):
        assert row.startswith(f"{candidate.strategy} "), row
        assert candidate.updates.text in row
    header = next(line for line in out.splitlines() if "strategy" in line and "config" in line)
    assert ("a wider terminal shows" in out) == ("bubble" not in header)
    assert width in range(81, 140) or ("bubble" in header) == (width >= 140)
    assert max(len(line.rstrip()) for line in out.splitlines() if "note:" not in line and "wider" not in line) <= width


def test_figures_have_no_exponents(found: Search, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of samples a second are written with commas."""
    fast = replace(found, candidates=(_with(found.candidates[0], samples_per_s=34390.4),))
    print_search(fast, 1, 140)
    out = capsys.readouterr().out
    assert "34,390" in out
    assert "e+" not in out


def test_rows_can_be_told_apart(found: Search, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the table of plans are distinct.

    Of candidates with the same label, only the best has a row, and the output says so. The runner-up has another
    label, or is described as the same with other stage boundaries or options.
    """
    best, *others = found.candidates
    twin = _with(best, iteration_s=best.iteration_s * 1.02)
    alike = replace(found, candidates=(best, twin, *others[:2]))
    print_search(alike, 3, 140)
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.strip().split(" ")[0] in members()]
    assert len(rows) == 3
    assert len({" ".join(row.split()[:3]) for row in rows}) == 3
    assert "of configurations with one label" in out
    assert "runner-up: the same with other stage boundaries or options takes 2.0% more" in _runner_up(alike)
    print_search(replace(found, candidates=(best, *others[:2])), 3, 140)
    assert "of configurations with one label" not in capsys.readouterr().out


def test_the_chosen_row_is_marked(found: Search, capsys: pytest.CaptureFixture[str]) -> None:
    """The chosen plan is first and marked; the others are sorted by time.

    The output says why the first plan is not always the fastest.
    """
    best, *others = found.candidates
    quicker = _with(others[0], iteration_s=best.iteration_s * 0.995)
    for rest, reason in (
        ((others[-1], *others[:2]), "the fastest; the others"),
        ((others[1], quicker), "the simplest"),
    ):
        print_search(replace(found, candidates=(best, *rest)), 4, 140)
        out = capsys.readouterr().out
        rows = [line.strip() for line in out.splitlines() if line.strip().split(" ")[0] in members()]
        assert [row.split()[1] == "←" for row in rows] == [True, *[False] * (len(rows) - 1)]
        assert rows[0].startswith(best.strategy)
        assert [row.split()[0] for row in rows[1:]] == [
            one.strategy for one in sorted(rest, key=lambda one: one.iteration_s)
        ]
        assert f"←: the chosen plan, {reason}" in out
    print_search(replace(found, candidates=(best,)), 4, 140)
    assert "←" not in capsys.readouterr().out

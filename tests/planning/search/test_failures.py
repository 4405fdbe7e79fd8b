"""One failing candidate never ends a search: it is refused, and bugs are reported."""

from collections.abc import Callable
from typing import Any

import pytest

from hocket.cli.output.tables import print_search, search_json
from hocket.errors import InputError, InternalError, ProgramError, RefusedError
from hocket.planning.buckets import assign
from hocket.planning.search import profiled_candidates
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Search
from hocket.planning.search.search import search
from hocket.planning.swapping import candidates
from tests.planning.search.test_search import CLUSTER, PROFILE
from tests.planning.swapping.test_search import MODEL, cluster

NAMES = ("flush", "gpipe")


def failing(error: Exception, fails: Callable[..., bool], through: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises an error for some arguments."""

    def call(*arguments: Any, **more: Any) -> Any:
        if fails(*arguments):
            raise error
        return through(*arguments, **more)

    return call


def found_without(monkeypatch: pytest.MonkeyPatch, error: Exception, *names: str) -> Search:
    """A search in which simulations of some strategies fail."""
    through = failing(error, lambda space, name, candidate: name in names, profiled_candidates.predict_choice)
    monkeypatch.setattr(profiled_candidates, "predict_choice", through)
    return search(PROFILE, CLUSTER, PlanRequest(8, strategies=NAMES))


@pytest.mark.parametrize(
    "error", [KeyError("w.3v1"), InternalError("stands still"), ProgramError("program", "1 problem"), ValueError()]
)
def test_a_bug_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """A bug is reported with plan, error and place; other candidates do not change."""
    whole = search(PROFILE, CLUSTER, PlanRequest(8, strategies=NAMES))
    found = found_without(monkeypatch, error, "gpipe")
    assert [one.label for one in found.candidates] == [one.label for one in whole.candidates if one.strategy == "flush"]
    bugs = [one for one in found.refused if one.bug]
    assert bugs
    assert all(one.strategy == "gpipe" and one.config for one in bugs)
    assert bugs[0].reason.startswith(f"{type(error).__name__} at planning/search/profiled_candidates.py:")
    (sentence,) = found.bugs
    assert sentence.startswith(f"gpipe {bugs[0].config} and {len(bugs) - 1} more of its candidates left out by a bug")
    assert "please report it" in sentence
    print_search(found, 12)
    assert f"warning: {sentence}" in capsys.readouterr().out
    assert search_json(found)["warnings"] == [sentence]


def test_what_does_not_suit_a_candidate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input that does not suit a candidate is a refusal, not a bug."""
    found = found_without(monkeypatch, InputError("rate", "nothing", "a rate"), "gpipe")
    assert found.bugs == ()
    assert "rate: found nothing; expected a rate" in {one.reason for one in found.refused if one.strategy == "gpipe"}


def test_where_nothing_is_left_the_bug_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without other candidates, the error names the bug."""
    with pytest.raises(
        RefusedError, match=r"left out by a bug of Hocket, KeyError at planning/search/profiled_candidates\.py"
    ):
        _ = found_without(monkeypatch, KeyError("x"), *NAMES).best


def test_memory_of_this_machine_is_no_matter_of_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MemoryError ends the search."""
    with pytest.raises(MemoryError):
        found_without(monkeypatch, MemoryError(), "gpipe")


def test_plans_that_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some plans that swap may fail, also the prefetching variants of the best."""
    fails = failing(KeyError("x"), lambda run: run.swap.prefetch > 0, candidates.predict_run)
    monkeypatch.setattr(candidates, "predict_run", fails)
    found = search(MODEL, cluster(700e6), PlanRequest(4, strategies=("harmony",)))
    assert found.best.plan.swap is not None
    assert len(found.bugs) == 1
    assert " ahead 2 b" in found.bugs[0]
    assert all(one.swaps for one in found.refused if one.bug)


def test_other_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan keeps its buckets if the search for others fails."""
    monkeypatch.setattr(assign, "rebucketed", failing(KeyError("x"), lambda *_: True, assign.rebucketed))
    found = search(PROFILE, CLUSTER, PlanRequest(8, strategies=("data_parallel",)))
    assert found.best.strategy == "data_parallel"
    assert "with other buckets" in found.bugs[0]

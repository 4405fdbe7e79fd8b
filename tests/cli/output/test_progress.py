"""Progress messages of long commands."""

import threading
from pathlib import Path

import pytest

from hocket.cli.output.progress import Progress, ProgressBar, ProgressLines
from hocket.cli.plan.explain import explained_profile
from hocket.hardware.cluster import Cluster
from hocket.planning.goals.for_model import plan_sizes
from hocket.planning.goals.goal import Goal
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.planning.swapping.max_depth import largest
from hocket.profiling.analytic.sizes import published
from tests.cli.conftest import Run
from tests.limits import HUNG_S
from tests.planning.swapping.test_search import MODEL, cluster

CLUSTER = Path(__file__).parents[3] / "examples" / "clusters" / "a100-servers.yaml"


def test_where_there_is_no_terminal_a_line_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, a progress line is printed from time to time.

    This also holds while nothing is reported. Each line names the phase.
    """
    written, told = list[str](), threading.Event()

    class Err:
        def isatty(self) -> bool:
            return False

        def write(self, text: str) -> None:
            written.append(text)
            if "".join(written).count("planning: flush") >= 2:
                told.set()

        def flush(self) -> None:
            pass

    monkeypatch.setattr("hocket.cli.output.progress.EVERY_S", 0.001)
    monkeypatch.setattr("sys.stderr", Err())
    with Progress("planning", True) as report:
        report(3, 12, "flush")
        assert told.wait(HUNG_S)  # nothing more is reported, and lines go on
    said = "".join(written)
    assert all(line.startswith("planning: ") for line in said.splitlines())
    assert "planning: flush, 25% done after " in said


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("model", ["profile.json", "gpt2-xl"])
def test_a_plan_for_machines_shows_no_progress(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, model: str, json: bool
) -> None:
    """With --json nothing is shown while a plan is searched, of a profile or of sizes."""
    shown = list[bool]()

    class Noted(Progress):
        def __init__(self, name: str, shows: bool) -> None:
            shown.append(shows)
            super().__init__(name, False)

    monkeypatch.setattr("hocket.cli.plan.plan.Progress", Noted)
    words = ["plan", model, CLUSTER, "--batch", "16", "--no-explain", *(["--json"] if json else [])]
    assert run(*words, *(["-s", "data_parallel"] if model == "profile.json" else [])).code == 0
    assert shown == [not json]


def test_what_is_short_and_what_is_for_machines_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The first line comes after some time."""
    with Progress("planning", True) as report:
        report(0, 2, "gpipe")
    with Progress("planning", False) as report:
        assert report is None
    assert capsys.readouterr() == ("", "")


def test_a_line_says_what_is_known() -> None:
    """The title, what is looked at, how much of it is done, and for how long."""
    seconds = iter([0.0, 10.0, 20.0, 150.0])
    lines = ProgressLines("planning", every_s=1e6, clock=lambda: next(seconds))
    lines.start()
    assert lines.line() == "planning: after 10 s"
    lines.report(0, 0, "ways to divide 8 devices")
    assert lines.line() == "planning: ways to divide 8 devices, after 20 s"
    lines.report(120, 1000, "flush")
    assert lines.line() == "planning: flush, 12% done after 150 s"
    lines.stop()


def test_a_bar_forgets_a_share_that_is_not_known_any_more() -> None:
    """A bar without a known share shows no percentage.

    This holds for the phase after a complete search.
    """
    bar = ProgressBar("planning")
    bar.start()
    bar.report(12, 12, "flush")
    bar.report(0, 0, "gradient buckets")
    (task,) = bar.tasks
    bar.stop()
    assert (task.completed, task.total, task.description) == (0, None, "planning: gradient buckets")


@pytest.mark.slow
def test_a_search_by_sizes_says_what_it_looks_at() -> None:
    """A search for an analytic model names its phase, without a share."""
    said: list[tuple[float, float, str]] = []
    cluster = Cluster.read(CLUSTER)
    plan_sizes(
        published("bert-large"),
        cluster,
        PlanRequest(32, tensors=(1,), shards=("none",)),
        Goal(),
        lambda *one: said.append(one),
    )
    assert said == [(0, 0, f"ways to divide {cluster.devices} devices for a batch of 32")]


@pytest.mark.slow
def test_a_search_says_what_it_is_at_to_its_end() -> None:
    """A search reports its phase until its end.

    The phases are choices, buckets, then each plan that swaps. For baselines, each plan is reported too. Progress is
    below the total until the end.
    """
    said: list[tuple[float, float, str]] = []
    search(MODEL, cluster(700e6), PlanRequest(4), progress=lambda *one: said.append(one))
    words = [one[-1] for one in said]
    assert words.index("gradient buckets") < words.index("packs of layers that swap")
    assert words[0].startswith("choices of ")
    assert words[-1].endswith(": stashes kept, values ahead")
    assert any(one.startswith("swapping, pipeline ") and " packs b" in one for one in words)
    assert all(done < total or not total for done, total, _ in said)
    said.clear()
    search(
        MODEL, cluster(700e6), PlanRequest(4, strategies=("gpipe",), swap="lru"), progress=lambda *one: said.append(one)
    )
    assert said[0][-1] == "choices of gpipe"
    assert any("swap lru" in one[-1] for one in said)


@pytest.mark.slow
def test_how_deep_says_each_depth() -> None:
    """A search for the largest depth names each depth and strategy.

    This includes the last strategy.
    """
    said: list[tuple[float, float, str]] = []
    largest(MODEL, cluster(700e6), 4, ("flush",), lambda *one: said.append(one))
    words = [one[-1] for one in said]
    assert "flush, 3 blocks" in words
    assert [one for one in words if one.startswith("harmony, what hosts need for ")] == words[-2:]


@pytest.mark.slow
def test_what_explains_says_what_it_asks() -> None:
    """Each question, and the choices of the searches for it."""
    said: list[tuple[float, float, str]] = []
    found = search(MODEL, cluster(700e6), PlanRequest(4))
    explained_profile(found, lambda *one: said.append(one))
    words = [one[-1] for one in said]
    assert any(one.startswith("what if ") for one in words)
    assert any(one.startswith("plans with old weights: choices of ") for one in words)

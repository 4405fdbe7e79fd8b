"""`hocket demo`: its choice of plans, their proof, and the whole of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from hocket.cli.train import demo
from hocket.cli.train.demo import _one_each, _print_rows, check_own, run_demo
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan, problems_of
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.result import Evaluated
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain

PROFILE = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
CANDIDATES = search(
    PROFILE, Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core"), PlanRequest(8, synchronous=False)
).candidates


def usable(candidate: Evaluated) -> bool:
    """True if both workers are busy.

    The plan must be a pipeline, unless its strategy is data_parallel.
    """
    stages = candidate.plan.stages
    pipeline = len(stages) > 1 or candidate.strategy == "data_parallel"
    return pipeline and len({device for stage in stages for device in stage.devices}) == 2


def test_one_plan_of_each_strategy() -> None:
    """The best that keeps all workers busy."""
    best = _one_each(CANDIDATES, 2)
    assert set(best) == {candidate.strategy for candidate in CANDIDATES if usable(candidate)}
    for name, chosen in best.items():
        first = next(candidate for candidate in CANDIDATES if candidate.strategy == name and usable(candidate))
        assert chosen is first


def test_every_chosen_plan_is_proved() -> None:
    """The plan of each strategy is legal and fits, as the demo proves it."""
    for name, chosen in _one_each(CANDIDATES, 2).items():
        opened = LoadedPlan(chosen.plan, PROFILE, name)
        assert problems_of(opened, opened.program) == ()


@pytest.mark.workers
@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo ends with a report, and with a row for the plan of each strategy. It measures for a shorter time here."""
    for name, value in (("PROFILE_BUDGET_S", 2.0), ("PROFILE_ROUNDS", 1), ("LINKS_BUDGET_S", 1.0)):
        monkeypatch.setattr(demo, name, value)
    run_demo(None, tmp_path / "out", 2, 3, json=True)
    found = json.loads(capsys.readouterr().out)
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    plans = {path.stem for path in (tmp_path / "out").glob("*.yaml")} - {"cluster"}
    assert len(plans) >= 9
    assert {row["strategy"] for row in found["rows"]} == plans


def test_each_row_has_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds and bytes of all rows have one unit, and stand in the row of their strategy."""
    tables = list[list[list[str]]]()
    monkeypatch.setattr(demo, "print_table", lambda title, columns, rows, **looks: tables.append([columns, *rows]))
    _print_rows([outcome_of("flush", 1), outcome_of("gpipe", 2)])  # type: ignore[list-item]
    columns, first, second = tables[0]
    assert columns[2:5] == ["pred. (ms)", "paced (ms)", "meas. (ms)"]
    assert columns[10:12] == ["peak pred. (MiB)", "meas. (MiB)"]
    assert " ".join(first) == "flush 2 stages b4 10.0 20.0 30.0 +50.0% +25.0% - - - 100.0 200.0 7 0.250"
    assert " ".join(second) == "gpipe 2 stages b4 20.0 40.0 60.0 +50.0% +25.0% - - - 200.0 400.0 7 0.250"


def outcome_of(strategy: str, times: int) -> SimpleNamespace:
    """A measured strategy, its seconds and bytes multiplied."""
    figures = {
        "predicted_iteration_s": 0.01,
        "paced_iteration_s": 0.02,
        "measured_iteration_s": 0.03,
        "predicted_peak_bytes": 100 * 2**20,
        "measured_peak_bytes": 200 * 2**20,
    }
    figures = {name: times * value for name, value in figures.items()}
    row = SimpleNamespace(
        strategy=strategy, config="2 stages", error=0.5, paced_error=0.25, parts=None, samples_per_s=7, **figures
    )
    plan = SimpleNamespace(microbatch_size=4)
    return SimpleNamespace(row=row, candidate=SimpleNamespace(plan=plan), summary=SimpleNamespace(losses=[1.0, 0.25]))


def test_more_workers_than_any_plan_takes() -> None:
    """More workers than any plan can use are refused, with a next step."""
    with pytest.raises(InputError, match="--workers: found 3, but no plan keeps all of them busy"):
        _one_each(CANDIDATES, 3)


def test_a_folder_with_files_of_the_user_is_refused(tmp_path: Path) -> None:
    """A folder with files of the user is refused.

    The user's profile and cluster stay. A folder of an earlier demo is used again, also if that demo was interrupted.
    """
    for name in ("profile.json", "cluster.yaml", "two_bw.predicted.json", ".report.html.x.part"):
        (tmp_path / name).write_text("earlier")
    check_own(tmp_path)
    check_own(tmp_path / "new")
    (tmp_path / "job.py").write_text("mine")
    with pytest.raises(InputError, match=r"other files, such as job\.py"):
        run_demo(None, tmp_path, 2, 1, json=True)
    assert (tmp_path / "profile.json").read_text() == "earlier"

"""hocket simulate tells what overlap gains, and lays a run into its report."""

from dataclasses import replace
from pathlib import Path

import pytest

from hocket.hardware.cluster import Cluster
from hocket.planning.load import open_plan
from hocket.planning.plan import Plan
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.chrome import read_trace, save_trace
from hocket.program.trace.trace import Trace
from tests.cli.conftest import Run


@pytest.fixture
def summing(folder: Path) -> Path:
    """Folder with a plan that all-reduces gradients, and a trace.

    The trace is of a run that takes twice the simulated time.
    """
    found = search(
        ModelProfile.read("profile.json"),
        Cluster.read("cluster.yaml"),
        PlanRequest(8, strategies=("data_parallel",)),
        profile_path="profile.json",
    )
    found.best.plan.save("plan.yaml")
    opened = open_plan("plan.yaml")
    trace, _ = opened.simulate()
    events = [replace(e, start_s=2 * e.start_s, end_s=2 * e.end_s) for e in trace.events]
    facts = opened.plan.trace_meta
    measured = Trace.of(events, meta={"source": "measured", "program": opened.program.name, **facts})
    save_trace(measured, "run.json")
    save_trace(trace, "predicted.json")
    return folder


def test_what_overlap_gains_is_told(summing: Path, run: Run) -> None:
    """The gain from overlap is the same in text and in JSON.

    A plan without all-reduces has no such figures.
    """
    told = run("simulate", "plan.yaml").out
    found = run("simulate", "plan.yaml", "--json").json["overlap"]
    gained = 1 - found["iteration_s"] / found["apart_iteration_s"]
    assert "overlap gains nothing" in told if gained < 5e-4 else f"overlap gains {gained:.1%}" in told
    for words in ("devices that compute", "iteration without overlap", "with overlap", "gradient sums"):
        assert words in told
    (one,) = found["devices"]
    assert one["beside"]["sums"][0]["size_bytes"] > 0
    plan = Plan.read("plan.yaml")
    alone = replace(plan, stages=(replace(plan.stages[0], devices=(0,)),))
    alone.save("alone.yaml")
    assert "without overlap" not in run("simulate", "alone.yaml").out
    assert run("simulate", "alone.yaml", "--json").json["overlap"] is None


def test_a_run_is_laid_into_the_report(summing: Path, run: Run) -> None:
    """Both timelines, both staircases, and the measured sums below the predicted ones."""
    assert run("simulate", "plan.yaml", "--report", "page.html", "--measured", "run.json").code == 0
    page = Path("page.html").read_text()
    for words in ("Measured: iteration", ">measured</text>", "<h3>Measured</h3>", "prediction -50.0%"):
        assert words in page


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("simulate plan.yaml --measured run.json", "--measured"),
        ("simulate plan.yaml --report page.html --measured predicted.json", "predicted.json: source"),
        ("simulate other.yaml --report page.html --measured run.json", "run.json: program"),
        ("simulate smaller.yaml --report page.html --measured run.json", "run.json: batch_size"),
        ("simulate finer.yaml --report page.html --measured run.json", "run.json: microbatch_size"),
        ("simulate plan.yaml --report page.html --measured elsewhere.json", "elsewhere.json: profile_digest"),
        ("compare smaller.json run.json", "run.json: batch_size"),
        ("compare finer.json run.json", "run.json: microbatch_size"),
    ],
)
def test_what_is_no_run_of_the_plan_is_refused(summing: Path, run: Run, words: str, place: str) -> None:
    """A run without a report, a simulation, a run of another plan, even one of the same program."""
    plan = Plan.read("plan.yaml")
    replace(plan, stages=(replace(plan.stages[0], devices=(0,)),)).save("other.yaml")
    replace(plan, batch_size=plan.batch_size - 1).save("smaller.yaml")
    replace(plan, microbatch_size=plan.microbatch_size // 2).save("finer.yaml")
    for name in ("smaller", "finer"):
        save_trace(open_plan(f"{name}.yaml").simulate()[0], f"{name}.json")
    real = read_trace("run.json")
    save_trace(replace(real, meta={**real.meta, "profile_digest": "0" * 64}), "elsewhere.json")
    found = run(*words.split(), "--json")
    assert found.code == 2
    assert found.json["error"]["place"] == place
    assert not Path("page.html").exists()


def test_a_trace_without_sizes_of_its_plan_is_accepted(summing: Path, run: Run) -> None:
    """Traces of earlier versions record only the name of the program."""
    real = read_trace("run.json")
    save_trace(replace(real, meta={key: real.meta[key] for key in ("source", "program")}), "older.json")
    assert run("simulate", "plan.yaml", "--report", "page.html", "--measured", "older.json").code == 0
    assert run("compare", "predicted.json", "older.json").code == 0


def test_a_prediction_from_another_profile_is_noted(summing: Path, run: Run) -> None:
    """A run may be compared with the prediction of a newer profile; the comparison says so."""
    believed = read_trace("predicted.json")
    assert believed.meta["profile_digest"] == Plan.read("plan.yaml").profile_digest
    words = "from another profile"
    assert words not in run("compare", "predicted.json", "run.json").out
    save_trace(replace(believed, meta={**believed.meta, "profile_digest": "0" * 64}), "newer.json")
    assert words in run("compare", "newer.json", "run.json").out

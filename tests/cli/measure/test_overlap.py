"""hocket measure-overlap writes a plan's cluster with measured overlap.

If it does not write the cluster, it says why.
"""

from pathlib import Path

import pytest

from hocket.cost.buckets.fit import Fitted
from hocket.hardware.cluster import Cluster
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.profile import ModelProfile
from hocket.training.calibrate.buckets.fit import OverlapMeasurement, PlainBackward
from hocket.training.calibrate.buckets.fit import OverlapRun as Backward
from tests.cli.conftest import Run

MODEL = OverlapModel(0.9, 0.05, Rate(1e9, 5e8, 0.3), Rate(2e9, 5e8, 0.3), 1e-4, 2, (1, 2), 1, 2e-4)


@pytest.fixture
def replicated(folder: Path) -> Path:
    """A folder whose plan sums gradients."""
    profile, cluster = ModelProfile.read("profile.json"), Cluster.read("cluster.yaml")
    search(profile, cluster, PlanRequest(8, strategies=("data_parallel",), shards=("none",))).best.plan.save(
        "plan.yaml"
    )
    Path("cluster.yaml").unlink()
    return folder


def measured(monkeypatch: pytest.MonkeyPatch, predicted_s: float) -> None:
    """Replace measurements of workers by backwards of 100 ms.

    The predicted backward is given.
    """
    one = Backward(2, (1, 2), 0.1, predicted_s)
    found = OverlapMeasurement(Fitted(MODEL, 0.01, 0.02, 0.03), (one,), (one,), (PlainBackward({}, 0.09),))
    monkeypatch.setattr("hocket.training.calibrate.buckets.measure.measure_overlap", lambda *_, **__: found)


def test_what_was_measured_is_told_and_written(replicated: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured overlap is printed and written to the cluster.

    The output has a row for each number of threads, and the error of the model. The command may replace a cluster that
    it wrote earlier.
    """
    measured(monkeypatch, 0.105)
    told = run("measure-overlap", "job.py", "plan.yaml")
    assert told.code == 0, told.err
    for words in (
        "computation keeps",
        "85.0%",
        "80.0%",
        "model error: 1.0% of computation",
        "5.0% of backwards in 1 draw",
    ):
        assert words in told.out
    assert Cluster.read("cluster.yaml").levels[0].overlap == MODEL
    found = run("measure-overlap", "job.py", "plan.yaml", "--json").json
    assert found["path"] == "cluster.yaml"
    assert found["overlap"]["threads"] == [1, 2]


def test_what_is_not_written(replicated: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cases write no cluster: a useless model and a file edited by hand."""
    measured(monkeypatch, 0.2)
    refused = run("measure-overlap", "job.py", "plan.yaml", "--json")
    assert (refused.code, refused.json["error"]["place"]) == (2, "measurements")
    assert not Path("cluster.yaml").exists()
    assert (
        "The other way round: hocket measure-overlap job.py plan.yaml"
        in run("measure-overlap", "plan.yaml", "job.py").err
    )
    Path("cluster.yaml").write_text("mine\n")
    measured(monkeypatch, 0.1)
    assert run("measure-overlap", "job.py", "plan.yaml").code == 2
    assert Path("cluster.yaml").read_text() == "mine\n"

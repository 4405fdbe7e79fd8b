"""Written job files: each trains as it is, and none replaces a file."""

import json
from pathlib import Path

import pytest

from hocket.cli.train.init import JobKind
from hocket.hardware.cluster import Cluster, Level
from tests.cli.conftest import Run


@pytest.mark.workers
@pytest.mark.slow
@pytest.mark.parametrize("kind", list(JobKind))
def test_a_written_file_trains(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: JobKind) -> None:
    """Two steps on two workers, with a plan of the estimated profile."""
    if kind is JobKind.HUGGINGFACE:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    assert run("init", kind.value).code == 0
    found = run("profile", "job.py", "--device-type", "cpu-core", "-b", 4)
    assert found.code == 0, found.err
    Cluster("two", (Level("local", 2, 1e9, 1e-5),), "cpu-core").save("cluster.yaml")
    batch = json.loads(Path("profile.json").read_text())["batch_size"]
    found = run("plan", "profile.json", "cluster.yaml", "--batch", batch, "-s", "flush", "-o", "plan.yaml")
    assert found.code == 0, found.err
    found = run("train", "job.py", "plan.yaml", "--steps", 2, "--json")
    assert found.code == 0, found.err
    losses = [line["loss"] for line in map(json.loads, found.out.splitlines()) if "loss" in line]
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)


@pytest.mark.parametrize("kind", list(JobKind))
def test_a_written_file_is_python(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: JobKind) -> None:
    """It compiles, and no line is longer than 120 columns; the output names the next command."""
    monkeypatch.chdir(tmp_path)
    found = run("init", kind.value, "-o", "mine.py")
    assert found.code == 0, found.err
    assert "hocket train mine.py" in found.out
    text = Path("mine.py").read_text()
    compile(text, "mine.py", "exec")
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_file_is_not_replaced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that someone wrote stays as it is."""
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("mine")
    found = run("init")
    assert found.code == 2
    assert "job.py" in found.err
    assert Path("job.py").read_text() == "mine"
    assert run("init", "modul").code == 2
    assert run("init", "-o", "nowhere/job.py").code == 2

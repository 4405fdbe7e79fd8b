"""bench/gpu/all.py: pieces that fail, hang or write nothing, and the results file; tests marked gpu cover every strategy."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import all as everything
from bench.gpu.all import Piece
from hocket.strategies.base.strategy import members
from tests.gpu.test_engines import CASES


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pieces of three kinds, in a folder of their own."""
    write = (
        "import json, sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('--result') + 1]).write_text(json.dumps(%s))"
    )
    (tmp_path / "good.py").write_text(write % "{'rows': [{'name': 'a', 'rate': 1.0}]}")
    (tmp_path / "part.py").write_text(write % "{'rows': [{'name': 'a', 'failed': 'out of memory'}]}")
    (tmp_path / "bad.py").write_text("raise SystemExit('no such kernel')")
    (tmp_path / "silent.py").write_text("")
    (tmp_path / "slow.py").write_text("import subprocess, sys; subprocess.run([sys.executable, '-c', 'while 1: pass'])")
    pieces = tuple(Piece(name, f"a {name} piece", f"{name}.py") for name in ("bad", "slow", "silent", "part", "good"))
    monkeypatch.setattr(everything, "PIECES", pieces)
    monkeypatch.setattr(everything, "HERE", tmp_path)
    return tmp_path


def run_all(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command."""
    monkeypatch.setattr(sys, "argv", ["all.py", "--smoke", *arguments])
    return everything.main()


@pytest.mark.slow
def test_it_goes_on_after_a_failure(
    scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every piece has its row and its reason in one file; the exit status says that some failed."""
    path = scripts / "results.json"
    assert run_all(monkeypatch, "-o", str(path), "--limit-s", "3") == 1
    pieces = json.loads(path.read_text())["pieces"]
    assert {name: row["why"] for name, row in pieces.items()} == {
        "bad": "exit status 1",
        "slow": "killed after 3 s",
        "silent": "it wrote no figures",
        "part": "failed contestants: a (out of memory)",
        "good": "",
    }
    assert pieces["bad"]["output_tail"] == "no such kernel\n"
    assert pieces["good"]["figures"] == {"rows": [{"name": "a", "rate": 1.0}]}
    assert "Failed: bad, slow, silent, part." in capsys.readouterr().out


@pytest.mark.slow
def test_one_piece_is_run_again_alone(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row replaces the earlier one; the other rows stay."""
    path = scripts / "results.json"
    assert run_all(monkeypatch, "-o", str(path), "--only", "bad", "good") == 1
    (scripts / "bad.py").write_text((scripts / "good.py").read_text())
    assert run_all(monkeypatch, "-o", str(path), "--only", "bad") == 0
    assert {name: row["ok"] for name, row in json.loads(path.read_text())["pieces"].items()} == {
        "bad": True,
        "good": True,
    }


def test_packages_are_known_by_the_names_of_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing where the tests run, whatever a package is imported as; one that is not there is named."""
    assert everything.missing_packages() == []
    there = [one for one in importlib.metadata.distributions() if one.name != "pydantic_core"]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: there)
    assert everything.missing_packages() == ["pydantic-core"]


@pytest.mark.slow
def test_without_a_card_it_says_so(repository: Path) -> None:
    """In one line, with what to do, and an exit status of its own."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a card")
    command = [sys.executable, str(repository / "bench" / "gpu" / "all.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == "torch sees no CUDA device; --smoke runs all pieces on a CPU.\n"


@pytest.mark.slow
@pytest.mark.workers
def test_what_runs_on_a_card_runs_on_a_cpu(repository: Path, tmp_path: Path) -> None:
    """Without a card nothing else runs the tests marked gpu and the benches: they would fall behind the engine unnoticed."""
    path, script = tmp_path / "results.json", str(repository / "bench" / "gpu" / "all.py")
    command = [sys.executable, script, "--smoke", "--only", "tests", "profile", "engines", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    pieces = json.loads(path.read_text())["pieces"]
    for piece, row in pieces.items():
        failed = row["figures"]["failed"] if piece == "tests" and row["figures"] else {}
        assert (row["why"], failed) == ("", {}), row["output_tail"]
    assert (done.returncode, sorted(pieces)) == (0, ["engines", "profile", "tests"])


def test_every_strategy_has_a_test_on_a_card() -> None:
    """A new strategy needs a case there."""
    assert {case.strategy for _, case in CASES} == set(members())

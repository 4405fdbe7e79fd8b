"""`hocket checkpoints` and `hocket export`."""

import json
from pathlib import Path

import pytest
import torch

from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import Position, save
from hocket.runtime.kv_exchange import KVExchange
from tests.cli.conftest import Run

pytestmark = pytest.mark.workers


@pytest.fixture
def saved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with two checkpoints of the job's model, the newer one damaged."""
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table leaves out columns
    state = {f"model.{name}": tensor for name, tensor in load_job("job.py").model.state_dict().items()}
    for step in (1, 2):
        position = Position(
            step, step * 4, "tiny", "abcdef0123", "", "sync", (step, step), strategy="flush 1-1", written_s=1e9
        )
        path = save(Path("saved"), position, state, KVExchange(None, 0, 1))
    (path / "worker-0.safetensors").write_bytes(b"")
    return folder


def test_checkpoints_are_listed(run: Run, saved: Path) -> None:
    """A table for people, with the reason for damage; all fields for machines."""
    found = run("checkpoints", "saved")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    whole, damaged = (next(line for line in lines if line.strip().startswith(f"step-0000000{k}")) for k in (1, 2))
    assert whole.split()[:2] == ["step-00000001", "←"]
    for word in ("sync", "abcdef01", "whole", "flush 1-1", "2001-09-"):
        assert word in whole
    assert damaged.endswith("damaged")
    assert "SHA-256" in found.out
    data = run("checkpoints", "saved", "--json").json
    assert [(one["step"], one["state"], one["resumes"]) for one in data["checkpoints"]] == [
        (1, "whole", True),
        (2, "damaged", False),
    ]
    assert data["checkpoints"][0]["position"]["samples"] == 4


def test_a_table_fits_a_narrow_terminal(run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less important columns are left out; name and state stay."""
    monkeypatch.setenv("COLUMNS", "80")
    found = run("checkpoints", "saved").out.splitlines()
    rows = [line for line in found if "step-0000000" in line and "SHA" not in line]
    assert len(rows) == 2
    assert all(len(line) <= 80 for line in rows)
    assert rows[0].endswith("whole")


def test_weights_are_exported(run: Run, saved: Path) -> None:
    """The newest whole checkpoint is exported in each format, with a note about the damaged one."""
    found = run("export", "saved", "-o", "out", "--format", "torch", "--job", "job.py")
    assert found.code == 0, found.err
    assert "note: checkpoint saved/step-00000002 is damaged" in found.out
    assert "saved/step-00000001: 4 tensors" in found.out
    assert "model.pt" in found.out
    load_job("job.py").model.load_state_dict(torch.load("out/model.pt", weights_only=True), strict=True)
    shards = run("export", "saved/step-00000001", "-o", "shards", "--max-shard", "100B", "--json")
    assert shards.code == 0, shards.err
    names = [Path(file).name for file in shards.json["files"]]
    assert names[-1] == "model.safetensors.index.json"
    assert set(json.loads(Path("shards", names[-1]).read_text())["weight_map"].values()) == set(names[:-1])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("checkpoints nowhere", "error: nowhere: found no such folder"),
        ("export nowhere -o out", "error: nowhere: found no such folder"),
        ("export job.py -o out", "error: job.py: found a file"),
        ("export saved/step-00000002 -o out", "SHA-256"),
        ("export saved -o saved", "error: saved: found a folder with files"),
        ("export saved -o job.py", "error: job.py: found a file"),
        ("export saved -o out --format pickle", "error: --format: found 'pickle'"),
        ("export saved -o out --format hf", "--job job.py"),
        ("export saved -o out --format hf --job job.py", "save_pretrained"),
        ("export saved -o out --format torch --max-shard 1GB", "error: --max-shard: found"),
        ("export saved -o out --max-shard much", "error: --max-shard: found 'much'"),
        ("export saved -o out --max-shard 0.1B", "error: --max-shard: found"),
    ],
)
def test_mistakes(run: Run, saved: Path, words: str, expected: str) -> None:
    """Each mistake gives one error with exit code 2, and nothing is written."""
    found = run(*words.split())
    assert found.code == 2
    assert len(found.err.splitlines()) == 1
    assert expected in found.err
    assert not Path("out").exists()

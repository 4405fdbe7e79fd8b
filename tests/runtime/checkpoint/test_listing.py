"""The list of a run's checkpoints."""

import os
from pathlib import Path

import pytest
import torch

from hocket import list_checkpoints
from hocket.errors import InputError
from hocket.runtime.checkpoint.checkpoint import MANIFEST, Position, damaged_path, names_in, save
from hocket.runtime.kv_exchange import KVExchange


def written(folder: Path, step: int, samples: int | None = None) -> Path:
    """Write a checkpoint of one worker."""
    position = Position(step, samples or step * 8, "job", "a" * 64, "b" * 64, "sync", (step, step))
    return save(folder, position, {"model.w": torch.ones(100)}, KVExchange(None, 0, 1), keep=9)


def test_the_best_checkpoint_is_marked(tmp_path: Path) -> None:
    """Of the whole checkpoints with the loss of an evaluation, the one with the lowest is marked; else none is."""
    paths = [written(tmp_path, step) for step in (1, 2, 3)]
    assert not any(one.best for one in list_checkpoints(tmp_path))
    for step, loss in ((4, 2.0), (5, 1.0), (6, 0.5)):
        position = Position(step, step * 8, eval_loss=loss)
        paths.append(save(tmp_path, position, {"model.w": torch.ones(100)}, KVExchange(None, 0, 1), keep=9))
    (paths[-1] / "worker-0.safetensors").unlink()
    assert [one.name for one in list_checkpoints(tmp_path) if one.best] == ["step-00000005"]


def test_whole_and_damaged_checkpoints(tmp_path: Path) -> None:
    """Each checkpoint has its state, newest last; the newest whole one is marked; nothing is changed."""
    paths = [written(tmp_path, step) for step in (1, 2, 3, 4, 5)]
    paths[1].rename(damaged_path(paths[1]))
    with (paths[3] / "worker-0.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x01")
    (paths[4] / "worker-0.safetensors").unlink()
    (tmp_path / ".step-00000006.part").mkdir()
    (tmp_path / "step-7").mkdir()
    os.utime(paths[2] / MANIFEST, (1e9, 1e9))
    before = sorted(tmp_path.rglob("*"))
    found = list_checkpoints(tmp_path)
    assert [(one.name, one.state, one.resumes) for one in found] == [
        ("step-00000001", "whole", False),
        ("step-00000002.damaged", "set aside", False),
        ("step-00000003", "whole", True),
        ("step-00000004", "damaged", False),
        ("step-00000005", "damaged", False),
    ]
    assert [bool(one.problem) for one in found] == [False, False, False, True, True]
    assert "SHA-256" in found[3].problem
    assert "No such file" in found[4].problem
    assert found[2].written_s == 1e9
    assert found[2].size_bytes == sum(file.stat().st_size for file in paths[2].iterdir()) > 400
    assert found[2].position == Position(3, 24, "job", "a" * 64, "b" * 64, "sync", (3, 3))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_order_is_the_order_of_a_resumed_run(tmp_path: Path) -> None:
    """Samples decide, not steps: a run with a larger batch size has fewer steps. An unreadable manifest goes by its step."""
    written(tmp_path, 30, samples=240)
    written(tmp_path, 20, samples=320)
    unreadable, without = (written(tmp_path, step, samples=100) for step in (25, 40))
    (unreadable / MANIFEST).write_text("{")
    (without / MANIFEST).unlink()
    found = list_checkpoints(tmp_path)
    assert [(one.step, one.state) for one in found] == [
        (25, "damaged"),
        (30, "whole"),
        (20, "whole"),
        (40, "damaged"),
    ]
    assert [one.step for one in found if one.resumes] == [20]
    assert [one.written_s is None for one in found] == [False, False, False, True]
    assert all(one.position is None for one in found if one.state == "damaged")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "found no such folder"),
        ("file", "found a file"),
        ("empty", "found an empty folder"),
        ("other", "found a folder without checkpoints"),
        ("run/step-00000001", "found a single checkpoint"),
    ],
)
def test_a_folder_without_checkpoints_is_refused(tmp_path: Path, name: str, words: str) -> None:
    """The error names the folder, what it is, and for a single checkpoint the folder of its run."""
    written(tmp_path / "run", 1)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "step-1").mkdir(parents=True)
    with pytest.raises(InputError, match=words) as raised:
        list_checkpoints(tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)
    if "single" in words:
        assert str(tmp_path / "run") in raised.value.next_step
    assert names_in(tmp_path / "run") == ["step-00000001"]

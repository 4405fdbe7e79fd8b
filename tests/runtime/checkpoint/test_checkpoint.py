"""Tests of checkpoint folders.

A checkpoint is complete or absent, is written by several workers, and can be read by any plan.
"""

import hashlib
import json
import os
import pickle
import resource
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from hocket.errors import InputError
from hocket.runtime.checkpoint import checkpoint
from hocket.runtime.checkpoint.checkpoint import (
    MANIFEST,
    Checkpoint,
    Manifest,
    Position,
    names_in,
    newest,
    save,
    verify,
)
from hocket.runtime.kv_exchange import KVExchange

T = TypeVar("T")

STATE = {
    "model.a": torch.arange(4.0),
    "model.b": torch.ones(2, 2, dtype=torch.float64),
    "optimizer.a.step": torch.tensor(3.0),
    "optimizer.a.rate": 0.125,
}


def alone() -> KVExchange:
    """The board of a single worker."""
    return KVExchange(None, 0, 1)


def position(step: int) -> Position:
    """Somewhere."""
    return Position(step, step * 8, "job", "p", "q", "sync", (step, step))


def together(workers: int, work: Callable[[KVExchange], T]) -> list[T]:
    """Run `work` in several threads as workers, and return results by rank.

    The workers share one store.
    """
    store = dist.HashStore()
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = work(KVExchange(store, rank, workers, timeout_s=60))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(workers)]


def load_all(found: Checkpoint | None) -> dict[str, Any]:
    """Everything in a checkpoint."""
    assert found is not None
    return found.load(lambda name: True)


def assert_same(found: dict[str, Any], state: dict[str, Any]) -> None:
    """Two states are the same, bit for bit."""
    assert found.keys() == state.keys()
    for name, value in state.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


def silent(text: str) -> None:
    """No warning is expected."""
    raise AssertionError(text)


def test_round_trip(tmp_path: Path) -> None:
    """Tensors, plain values and the position come back as they were."""
    path = save(tmp_path, position(12), STATE, alone())
    assert path == tmp_path / "step-00000012"
    found = newest(tmp_path, alone(), silent)
    assert found is not None
    assert found.position == position(12)
    assert_same(load_all(found), STATE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000012"]


def test_workers_save_their_parts_and_replicas_once(tmp_path: Path) -> None:
    """Workers save their parts, and replicas are saved once.

    Of three workers, two are replicas. Each name is in one file, and every worker reads all names.
    """
    parts = [{"model.a": STATE["model.a"]}, {"model.b": STATE["model.b"]}, {"model.b": STATE["model.b"]}]
    paths = together(3, lambda board: save(tmp_path, position(1), parts[board.rank], board))
    assert paths == [tmp_path / "step-00000001"] * 3
    assert len(Manifest.read(paths[0]).files) == 2
    found = together(3, lambda board: newest(tmp_path, board, silent))
    assert found[0] == found[1] == found[2]
    assert_same(load_all(found[0]), {"model.a": STATE["model.a"], "model.b": STATE["model.b"]})


def test_only_what_is_wanted_is_loaded(tmp_path: Path) -> None:
    """Loading is by name, from whatever layout."""
    save(tmp_path, position(1), STATE, alone())
    found = newest(tmp_path, alone(), silent)
    assert found is not None
    assert_same(found.load(lambda name: name == "model.b"), {"model.b": STATE["model.b"]})


def test_the_last_few_are_kept(tmp_path: Path) -> None:
    """Only the last checkpoints are kept.

    Older checkpoints are deleted after the new one is complete. Other files in the folder stay.
    """
    (tmp_path / "notes.txt").write_text("mine")
    for step in range(1, 6):
        save(tmp_path, position(step), STATE, alone(), keep=2)
    assert names_in(tmp_path) == ["step-00000004", "step-00000005"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "step-00000004", "step-00000005"]


def test_the_best_is_kept(tmp_path: Path) -> None:
    """The checkpoint with the lowest evaluation loss is kept beside the newest ones, the first of several.

    A manifest without an evaluation loss has no key for it, so that earlier versions read it.
    """
    for step, loss in enumerate((3.0, 1.0, None, 1.0, 2.0), start=1):
        path = save(tmp_path, replace(position(step), eval_loss=loss), STATE, alone(), keep=1)
        assert ("eval_loss" in (path / MANIFEST).read_text()) == (loss is not None)
    assert names_in(tmp_path) == ["step-00000002", "step-00000005"]
    save(tmp_path, replace(position(6), eval_loss=0.5), STATE, alone(), keep=1)
    assert names_in(tmp_path) == ["step-00000006"]
    found = newest(tmp_path, alone(), silent)
    assert found is not None
    assert found.position.eval_loss == 0.5


def flip_a_bit(folder: Path) -> None:
    path = folder / "worker-0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_a_file(folder: Path) -> None:
    path = folder / "worker-0.safetensors"
    os.truncate(path, path.stat().st_size - 8)


def change_the_manifest(folder: Path) -> None:
    path = folder / MANIFEST
    path.write_text(path.read_text().replace('"samples": 16', '"samples": 24'))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_a_bit, "SHA-256"),
        (cut_a_file, "bytes with SHA-256"),
        (lambda folder: (folder / "worker-0.safetensors").unlink(), "No such file"),
        (lambda folder: (folder / MANIFEST).unlink(), "no such file"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "JSON"),
        (change_the_manifest, "changed content"),
    ],
    ids=["bit", "cut", "missing", "no-manifest", "half-manifest", "changed-manifest"],
)
def test_a_damaged_one_is_skipped_for_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    """A damaged newest checkpoint is skipped for the previous one.

    One warning says what is damaged. Saving then continues.
    """
    save(tmp_path, position(1), STATE, alone())
    damage(save(tmp_path, position(2), STATE, alone()))
    said: list[str] = []
    found = newest(tmp_path, alone(), said.append)
    assert found is not None
    assert found.position.step == 1
    assert len(said) == 1
    assert "step-00000002" in said[0]
    assert words in said[0]
    save(tmp_path, position(2), STATE, alone())
    assert verify(tmp_path / "step-00000002").position.step == 2


def test_all_workers_skip_what_one_finds_damaged(tmp_path: Path) -> None:
    """A file that only one worker looks at counts for all of them."""
    parts = [{"model.a": STATE["model.a"]}, {"model.b": STATE["model.b"]}]
    for step in (1, 2):
        together(2, lambda board, step=step: save(tmp_path, position(step), parts[board.rank], board))
    (tmp_path / "step-00000002" / "worker-1.safetensors").write_bytes(b"nothing")
    found = together(2, lambda board: newest(tmp_path, board, lambda text: None))
    assert [one.position.step for one in found if isinstance(one, Checkpoint)] == [1, 1]


def test_what_a_death_left_is_ignored_and_removed(tmp_path: Path) -> None:
    """A folder that was being written does not count, and the next save takes it away."""
    save(tmp_path, position(1), STATE, alone())
    torn = tmp_path / ".step-00000002.part"
    torn.mkdir()
    (torn / "worker-0.safetensors").write_bytes(b"half")
    found = newest(tmp_path, alone(), silent)
    assert found is not None
    assert found.position.step == 1
    save(tmp_path, position(3), STATE, alone())
    assert not torn.exists()


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint set aside whose removal was refused uses disk space only: the next save succeeds."""
    aside = tmp_path / ".step-00000001.old"
    aside.mkdir()
    (aside / "worker-0.safetensors").touch()

    unlink = os.unlink

    def refused(path: str, *, dir_fd: int | None = None) -> None:
        if path == "worker-0.safetensors":
            raise PermissionError("Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refused)
    save(tmp_path, position(2), STATE, alone())
    assert aside.exists()
    assert newest(tmp_path, alone(), silent) is not None


@contextmanager
def disk_full(limit_bytes: int) -> Iterator[None]:
    """Let writes beyond `limit_bytes` of a file fail, as on a full disk.

    The error is EFBIG instead of ENOSPC.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit_bytes", [0, 100, 500])
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, limit_bytes: int) -> None:
    """A full disk leaves the last valid checkpoint.

    Every worker has the same clear error. The previous checkpoint is complete, and no partial file is left.
    """
    state = {"model.a": torch.zeros(64)}  # the file of tensors has some 350 bytes, the manifest more than 500
    save(tmp_path, position(1), state, alone())
    parts = [state, {"model.b": torch.zeros(2)}]
    with disk_full(limit_bytes):
        results = together(2, lambda board: save(tmp_path, position(2), parts[board.rank], board))
    assert all(isinstance(one, InputError) for one in results)
    assert str(results[0]) == str(results[1])
    assert "File too large" in str(results[0])
    assert "unchanged" in str(results[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001"]
    assert_same(load_all(newest(tmp_path, alone(), silent)), state)


def test_two_threads_do_not_hear_each_others_warnings() -> None:
    """Two threads do not restore each other's warnings.

    A thread that has finished saving does not enable DCP's usual warning for a thread that is still saving.
    """
    inside, over = threading.Event(), threading.Event()
    heard: list[Warning] = []

    def late() -> None:
        try:
            with checkpoint._dcp():
                inside.set()
                over.wait(60)
                warnings.warn("torch.distributed is disabled, unavailable or uninitialized, and so on", stacklevel=1)
        except Warning as warning:
            heard.append(warning)

    thread = threading.Thread(target=late)
    with checkpoint._dcp():
        thread.start()
        inside.wait(0.2)  # long enough to get in, were there no lock
    over.set()
    thread.join()
    assert heard == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    """A place that cannot be a folder gives one clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"exists|Not a directory"):
        save(tmp_path / "file", position(1), STATE, alone())


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saving and loading never unpickle.

    DCP's own metadata file, a pickle, is not read.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("unpickled")

    path = save(tmp_path, position(1), STATE, alone())
    (path / ".metadata").write_bytes(pickle.dumps(print))
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    assert_same(load_all(newest(tmp_path, alone(), silent)), STATE)


def test_state_that_is_neither_tensor_nor_number(tmp_path: Path) -> None:
    """An optimizer that keeps an object is named; nothing is written."""
    with pytest.raises(InputError, match=r"optimizer\.a\.memo is a dict"):
        save(tmp_path, position(1), {**STATE, "optimizer.a.memo": {}}, alone())
    assert names_in(tmp_path) == []


def test_checkpoints_without_seed_and_length_of_the_data(tmp_path: Path) -> None:
    """Manifests of earlier versions lack some fields of the position, or have null there; the hash leaves them out.

    A checkpoint that does not use a field is written without it, so that earlier versions read it.
    """
    path = save(tmp_path, position(1), STATE, alone())
    data = json.loads((path / "manifest.json").read_text())
    names = ("seed", "data_samples", "strategy", "written_s", "shuffle", "data_state", "eval_loss")
    assert not data["position"].keys() & names
    text = json.dumps(data | {"sha256": ""}, sort_keys=True)
    assert data["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    for more in ({}, dict.fromkeys(names)):
        data["position"] |= more
        (path / "manifest.json").write_text(json.dumps(data))
        found = newest(tmp_path, alone(), silent)
        assert found is not None
        assert found.position == position(1)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    """A folder that is empty or not there has none."""
    assert newest(tmp_path, alone(), silent) is None
    assert newest(tmp_path / "nowhere", alone(), silent) is None


def test_a_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    """A manifest cannot point at files elsewhere."""
    with pytest.raises(InputError, match="name of a file"):
        Manifest(position(1), (checkpoint.StoredFile("../secret", 1, ""),))

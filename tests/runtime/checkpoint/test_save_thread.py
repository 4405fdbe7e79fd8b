"""Saves in a thread: one at a time, of the state as it was, with their errors in the main thread."""

import threading
from pathlib import Path

import pytest
import torch

from hocket.errors import InputError
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Manifest, names_in
from hocket.runtime.checkpoint.save_thread import SaveThread, copied
from hocket.training.train import train
from tests.system.tiny import Recorder, plan, write_job


def test_a_copy_does_not_change_with_later_steps() -> None:
    """Tensors are copied, plain values are kept."""
    weights = torch.ones(3)
    found = copied({"w": weights, "step": 4})
    weights.add_(1)
    assert found["w"].tolist() == [1.0, 1.0, 1.0]
    assert found["step"] == 4


def test_one_at_a_time() -> None:
    """The second waits for the first; `finish` waits for the last."""
    goes_on, done = threading.Event(), list[str]()
    thread = SaveThread()

    def first() -> None:
        goes_on.wait(10)
        done.append("first")

    thread.start(first)
    assert not done
    threading.Timer(0.05, goes_on.set).start()
    thread.start(lambda: done.append("second"))
    thread.finish()
    assert done == ["first", "second"]


def test_an_error_is_raised_once_by_what_comes_next() -> None:
    """Also without waiting; then the next function runs."""

    def fails() -> None:
        raise InputError("disk", "full")

    thread = SaveThread()
    for waits in (thread.finish, lambda: thread.start(lambda: None)):
        thread.start(fails)
        with pytest.raises(InputError, match="disk"):
            waits()
    ended = threading.Event()
    thread.start(lambda: ended.set() or fails())
    ended.wait(10)
    thread._thread.join()  # type: ignore[union-attr]
    with pytest.raises(InputError, match="disk"):
        thread.check()
    thread.check()
    thread.finish()


@pytest.mark.workers
def test_checkpoints_are_those_of_a_run_that_waits(tmp_path: Path) -> None:
    """Bit for bit, at every step, and each is reported when it is complete."""
    job, found = write_job(tmp_path), {}
    for name, async_save in (("beside", True), ("between", False)):
        listener = Recorder()
        train(
            job, plan("flush"), steps=6, checkpoint=tmp_path / name, every=2, async_save=async_save, listener=listener
        )
        assert names_in(tmp_path / name) == [f"step-0000000{k}" for k in (2, 4, 6)]
        paths = [tmp_path / name / step for step in names_in(tmp_path / name)]
        found[name] = [Checkpoint(path, Manifest.read(path)).load(lambda _: True) for path in paths]
    for beside, between in zip(found["beside"], found["between"], strict=True):
        assert beside.keys() == between.keys()
        for key, value in beside.items():
            assert torch.equal(value, between[key]) if isinstance(value, torch.Tensor) else value == between[key]

"""Training into numbers that are not finite: the run ends with the place, saves nothing of it, or leaves the update out."""

from pathlib import Path

import pytest

from hocket.errors import InputError, NotFinite
from hocket.runtime.checkpoint.checkpoint import names_in
from hocket.training.train import train
from tests.runtime.helpers.torchrun_workers import two_workers
from tests.system.test_join import command
from tests.system.tiny import Recorder, plan, workers_left, write_job

pytestmark = pytest.mark.workers

FOREVER = 10**6
# In the data of tiny.py; the second layer but one makes an infinity of it.
OVERFLOW = """
class Cube(nn.Module):
    def forward(self, x):
        return x * x * x

nn.Tanh = Cube
"""
# A disk so slow that the next step ends before the checkpoint is written.
SLOW_SAVE = """
import time
from hocket.runtime.checkpoint import manager

def save(*arguments, to_disk=manager.save):
    time.sleep(1)
    return to_disk(*arguments)

manager.save = save
"""
LARGE = "if self.taken > 60 and i == 7: return self.x[i] * 1e200, self.y[i]"


def test_stop_names_the_place_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """Two pipeline stages: one error with step, sample, layer and stage; nothing of that step is saved, and nobody is left."""
    job, saved, listener = write_job(tmp_path, start=OVERFLOW, trouble=LARGE), tmp_path / "saved", Recorder()
    with pytest.raises(NotFinite) as caught:
        train(job, plan("flush"), steps=FOREVER, checkpoint=saved, every=3, listener=listener)
    error = caught.value
    step = int(error.place.removeprefix("step "))
    assert "the loss of data[" in error.found
    assert "it arose in the output of layer '1', stage 0 (8 infinite of 16), of data[" in error.found
    assert "7" in error.found.rpartition("data[")[2]
    newest = names_in(saved)[-1]
    assert int(newest.removeprefix("step-")) == (step - 1) // 3 * 3
    assert newest in error.next_step
    assert error.exit_code == 4
    assert sum("searching for the origin" in note for note in listener.notes) == 1
    assert workers_left() == []
    assert train(job, plan("flush"), steps=1, checkpoint=saved, resume=True).steps == (step - 1) // 3 * 3


def test_the_error_names_a_checkpoint_that_was_still_being_written(tmp_path: Path) -> None:
    """The step after a checkpoint is not finite, and ends before the checkpoint is complete."""
    job, saved = write_job(tmp_path, start=OVERFLOW + SLOW_SAVE, trouble=LARGE), tmp_path / "saved"
    with pytest.raises(NotFinite) as caught:
        train(job, plan("flush"), steps=FOREVER, checkpoint=saved, every=1)
    step = int(caught.value.place.removeprefix("step "))
    assert names_in(saved)[-1] == f"step-{step - 1:08d}"
    assert f"step-{step - 1:08d}. " in caught.value.next_step


def test_skip_leaves_the_update_out_on_all_workers(tmp_path: Path) -> None:
    """Unequal replicas and stages: the run ends as it should, tells how many were left out, and saves finite weights."""
    job = write_job(tmp_path, start=OVERFLOW, trouble=LARGE.replace("60", "0"))
    chosen = plan("flush", (3, (0, 1)), (4, (2,)))
    summary = train(job, chosen, steps=16, checkpoint=tmp_path / "saved", on_nan="skip", listener=Recorder())
    assert summary.steps == 16
    assert summary.skipped == 2  # 8 steps an epoch
    assert names_in(tmp_path / "saved")[-1] == "step-00000016"
    with pytest.raises(InputError, match="on_nan: skip with pipedream"):
        train(job, plan("pipedream"), steps=1, on_nan="skip")


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """Finite gradients and a step that overflows: the run ends at the checkpoint, and with "go" goes on without it."""
    job, saved = write_job(tmp_path, optimizer="SGD(p, lr=float('inf'))"), tmp_path / "saved"
    one = plan("gpipe", (7, (0,)))
    with pytest.raises(NotFinite, match=r"^step 1: found model\.\d\.\w+ has \d+ (nan|infinite) .* after step 1; "):
        train(job, one, steps=1, checkpoint=saved)
    assert names_in(saved) == []
    listener = Recorder()
    summary = train(job, one, steps=2, every=1, checkpoint=saved, on_nan="go", listener=listener)
    assert summary.steps == 2
    assert summary.checkpoint is None
    assert names_in(saved) == []
    assert sum("no checkpoint is written, because weights are not finite" in note for note in listener.notes) == 2
    assert sum("training goes on" in note for note in listener.notes) == 1


@pytest.mark.slow
def test_torchruns_workers_end_together(tmp_path: Path) -> None:
    """Nobody watches them: the one that finds it has all drain, and each ends with the same error."""
    write_job(tmp_path, start=OVERFLOW, trouble=LARGE)
    options = command(tmp_path, steps=FOREVER, checkpoint=str(tmp_path / "saved"), every=1000)
    with two_workers(tmp_path, options) as workers:
        ended = [worker.wait() for worker in workers]
        said = [worker.err for worker in workers]
        assert ended == [4, 4], "|||".join(said)
    assert all("NotFinite: step " in text and "it arose in the output of layer '1', stage 0" in text for text in said)
    assert names_in(tmp_path / "saved") == []

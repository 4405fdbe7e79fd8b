"""Runs in float16: the loss scale is shown, saved and resumed, under another plan as well."""

from pathlib import Path

import pytest

from hocket.errors import RefusedError
from hocket.runtime.checkpoint.listing import list_checkpoints
from hocket.runtime.update.loss.scaler import LossScale
from hocket.training.train import train
from tests.system.tiny import Recorder, plan, write_job

pytestmark = pytest.mark.workers
STEPS = 8


def loud(folder: Path) -> Path:
    """A job in float16 with a loss that is so large that the first gradients overflow."""
    path = write_job(folder, precision="float16")
    text = path.read_text().replace(".double()", "").replace("float64", "float32")
    path.write_text(
        text.replace("nn.functional.cross_entropy,", "lambda o, t: 30 * nn.functional.cross_entropy(o, t),")
    )
    return path


def test_a_resumed_run_goes_on_with_the_scale(tmp_path: Path) -> None:
    """Half a run and the rest under another plan have the losses and the scale of a whole run."""
    job, pipeline, replicas = loud(tmp_path), plan("flush"), plan("data_parallel", (7, (0, 1)))
    listener = Recorder()
    whole = train(job, pipeline, steps=STEPS, checkpoint=str(tmp_path / "whole"), listener=listener)
    half = train(job, pipeline, steps=STEPS // 2, checkpoint=str(tmp_path / "half"))
    rest = train(job, replicas, steps=STEPS, checkpoint=str(tmp_path / "half"), resume=True)
    assert whole.loss_scale is not None
    assert 1 < whole.loss_scale < LossScale().scale
    assert [*half.losses, *rest.losses] == pytest.approx(list(whole.losses), rel=1e-2)
    assert half.skipped + rest.skipped == whole.skipped > 0
    assert rest.loss_scale == whole.loss_scale == whole.line()["loss_scale"]
    notes = [note for note in listener.notes if "overflow" in note]
    assert len(notes) == whole.skipped
    assert notes[0] == "step 1 is skipped: its gradients overflow float16; loss scale 65,536 -> 32,768"
    saved = []
    for folder in ("whole", "half"):
        position = list_checkpoints(tmp_path / folder)[-1].position
        assert position is not None
        saved.append(position.loss_scale)
    assert saved[0] == saved[1]
    assert saved[0] is not None
    assert saved[0].scale == whole.loss_scale
    assert 0 < saved[0].finite_updates <= STEPS - whole.skipped


def test_an_asynchronous_plan_is_refused(tmp_path: Path) -> None:
    """PipeDream-2BW updates stages at different times, so one stage could not know that another's gradients overflow."""
    with pytest.raises(RefusedError, match=r"precision float16 with pipedream, two_bw or tick_tock: .*use flush"):
        train(loud(tmp_path), plan("two_bw"), steps=2)

"""Initial weights: a run starts from files as if the job had built its model with them, under any plan."""

from pathlib import Path

import pytest
import torch

from hocket import export_weights
from hocket.errors import InputError
from hocket.profiling.job.job_file import load_job
from hocket.training.train import train
from tests.runtime.checkpoint.test_export import WAYS, plan_of
from tests.runtime.helpers.exported import write_job
from tests.system.tiny import Recorder

pytestmark = pytest.mark.workers

STEPS = 2


@pytest.mark.parametrize(
    "way", ["flush", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS if way != "flush")]
)
def test_losses_are_those_of_a_job_that_has_these_weights(tmp_path: Path, way: str) -> None:
    """Under every plan: tied, frozen, unused and divided parameters, buffers, and an optimizer that begins anew.

    The same weights in float64 are converted, and the checkpoint after the run has the unused parameter of the file.
    """
    job = write_job(tmp_path, way == "subtasks")
    plan = plan_of(job, way)
    other = tmp_path / "other"
    other.mkdir()
    told = write_job(other, way == "subtasks")
    told.write_text(told.read_text().replace("manual_seed(0)", "manual_seed(7)"))
    state = {name: tensor.double() for name, tensor in load_job(told).model.state_dict().items()}
    torch.save(state, tmp_path / "weights.pt")
    wanted, found, own = Recorder(), Recorder(), Recorder()
    train(told, plan, steps=STEPS, listener=wanted)
    saved = tmp_path / "saved"
    train(job, plan, steps=STEPS, weights=str(tmp_path / "weights.pt"), checkpoint=str(saved), listener=found)
    train(job, plan, steps=STEPS, listener=own)
    assert found.losses == wanted.losses != own.losses
    export_weights(saved, tmp_path / "out", "torch", job)
    (file,) = (tmp_path / "out").iterdir()
    unused = torch.load(file, weights_only=True)["unused"]
    assert torch.equal(unused.double(), state["unused"])

    resumed = Recorder()
    train(
        job,
        plan,
        steps=STEPS + 1,
        weights=str(tmp_path / "weights.pt"),
        checkpoint=str(saved),
        resume=True,
        listener=resumed,
    )
    assert len(resumed.losses) == 1
    assert any("is not read: the run resumes" in note for note in resumed.notes)


def test_what_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    """A parameter that is missing and a shape that differs are named, and no step is trained."""
    job = write_job(tmp_path)
    state = dict(load_job(job).model.state_dict())
    torch.save({name: t for name, t in state.items() if name != "blocks.1.up.bias"}, tmp_path / "lacks.pt")
    torch.save(state | {"norm.weight": torch.ones(9)}, tmp_path / "shape.pt")
    listener = Recorder()
    for name, words in (
        ("lacks.pt", "no blocks.1.up.bias"),
        ("shape.pt", r"norm.weight: found shape \(9,\); expected \(8,\)"),
    ):
        with pytest.raises(InputError, match=words):
            train(job, plan_of(job, "flush"), steps=1, weights=str(tmp_path / name), listener=listener)
    with pytest.raises(InputError, match=r"absent.pt: found no such file or folder"):
        train(job, plan_of(job, "flush"), steps=1, weights=str(tmp_path / "absent.pt"), listener=listener)
    assert not listener.losses

    torch.save(state | {"teacher.weight": torch.ones(2)}, tmp_path / "more.pt")
    train(job, plan_of(job, "flush"), steps=1, weights=str(tmp_path / "more.pt"), listener=listener)
    assert any("has 1 tensor that the model does not have, such as teacher.weight" in note for note in listener.notes)

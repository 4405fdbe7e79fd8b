"""Checkpoints of models with frozen layers, unused parameters and tied ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket.errors import InputError
from hocket.planning.plan import Plan
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Manifest, names_in, save
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.train import train
from tests.system.tiny import Recorder, plan, write_job

pytestmark = pytest.mark.workers

ONE = plan("gpipe", (7, (0,)))


def run(job: Path, chosen: Plan, **options: Any) -> Recorder:
    """Train; return what was heard."""
    listener = Recorder()
    train(job, chosen, listener=listener, **options)
    return listener


def frozen(job: Path, *layers: int, name: str = "frozen.py", seed: int = 0) -> Path:
    """Write the same job with frozen layers, drawn with another seed."""
    text = job.read_text().replace("torch.manual_seed(0)", f"torch.manual_seed({seed})")
    freezing = "".join(f"model[{layer}].requires_grad_(False)\n" for layer in layers)
    path = job.with_name(name)
    path.write_text(text.replace("\njob = Job(", f"\n{freezing}job = Job("))
    return path


def saved(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the model's tensors in a checkpoint, by their names in the model."""
    path = folder / f"step-{step:08d}"
    found = Checkpoint(path, Manifest.read(path)).load(lambda name: name.startswith("model."))
    return {name.removeprefix("model."): tensor for name, tensor in found.items()}


@pytest.mark.parametrize("chosen", [plan("flush"), plan("data_parallel", (7, (0, 1)))], ids=["stages", "replicas"])
@pytest.mark.slow
def test_a_layer_that_is_frozen_after_it_was_trained_keeps_its_weights(tmp_path: Path, chosen: Plan) -> None:
    """A resumed run uses the trained weights of a frozen layer, and saves them again.

    The job's own initial weights are not used.
    """
    job, folder = write_job(tmp_path), tmp_path / "saved"
    run(job, chosen, steps=3, checkpoint=folder)
    trained = saved(folder, 3)
    shutil.copytree(folder, tmp_path / "other")
    on = run(job, chosen, steps=5, checkpoint=tmp_path / "other", resume=True)
    held = run(frozen(job, 0, 5), chosen, steps=5, checkpoint=folder, resume=True)
    assert held.losses[0] == on.losses[0]
    assert not any("lacks" in note for note in held.notes)
    after = saved(folder, 5)
    assert after.keys() == trained.keys()
    assert all(torch.equal(after[name], trained[name]) == (name[0] in "05") for name in trained)
    again = run(job, ONE, steps=6, checkpoint=folder, resume=True)  # trained again, from the same weights
    assert again.first == 5
    assert not torch.equal(saved(folder, 6)["0.weight"], trained["0.weight"])


@pytest.mark.slow
def test_frozen_weights_come_from_the_checkpoint_and_not_from_another_seed(tmp_path: Path) -> None:
    """Frozen weights that the job draws with another seed are replaced by those of the checkpoint.

    A checkpoint of an earlier version lacks them; a note says so.
    """
    job, folder = write_job(tmp_path), tmp_path / "saved"
    first, other = frozen(job, 0, name="first.py"), frozen(job, 0, name="other.py", seed=7)
    whole = run(first, ONE, steps=4)
    begun = run(first, ONE, steps=2, checkpoint=folder)
    old = tmp_path / "old"
    path = folder / names_in(folder)[-1]
    found = Checkpoint(path, Manifest.read(path))
    save(old, found.position, found.load(lambda name: not name.startswith("model.0.")), KVExchange(None, 0, 1))
    resumed = run(other, ONE, steps=4, checkpoint=folder, resume=True)
    assert begun.losses + resumed.losses == whole.losses
    poor = run(other, ONE, steps=4, checkpoint=old, resume=True)
    text = "lacks the frozen parameter 0.bias and 1 more: the job's initial values are used"
    assert [note for note in poor.notes if note.endswith(text)]
    assert not torch.equal(saved(old, 4)["0.weight"], saved(folder, 4)["0.weight"])


def test_a_frozen_layer_of_another_shape_is_refused(tmp_path: Path) -> None:
    """A frozen parameter is compared with the model as a trained one is."""
    job, folder = write_job(tmp_path), tmp_path / "saved"
    run(frozen(job, 2, 5), ONE, steps=1, checkpoint=folder)
    job.write_text(job.read_text().replace("Linear(8, 8)", "Linear(8, 9)").replace("Linear(8, 3)", "Linear(9, 3)"))
    with pytest.raises(InputError, match=r"checkpoint: 2\.weight: found \(8, 8\) .*; expected \(9, 8\)"):
        run(frozen(job, 2, 5), ONE, steps=2, checkpoint=folder, resume=True)


def test_frozen_weights_of_a_job_in_bfloat16_are_saved_in_the_models_own_type(tmp_path: Path) -> None:
    """Frozen weights are saved as the model has them, not as they are computed with."""
    job, folder = write_job(tmp_path, precision="bfloat16"), tmp_path / "saved"
    run(frozen(job, 0), plan("flush"), steps=1, checkpoint=folder)
    own = {name: p.detach() for name, p in load_job(job).model.named_parameters()}
    run(frozen(job, 0, name="other.py", seed=7), plan("flush"), steps=2, checkpoint=folder, resume=True)
    assert torch.equal(saved(folder, 2)["0.weight"], own["0.weight"])
    assert not torch.equal(saved(folder, 2)["2.weight"], own["2.weight"])


ODD = """
class Most(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.spare = nn.Linear(2, 2)
        self.spare.second = layers[-1].weight
        self.register_buffer("idle", torch.randn(2))
        self.register_buffer("passing", torch.ones(1), persistent=False)

    def forward(self, x):
        for layer in list(self)[:6]:
            x = layer(x)
        return x
"""


def test_what_no_stage_uses_is_saved_and_carried_on(tmp_path: Path) -> None:
    """The first worker saves parameters and buffers that no stage uses.

    A resumed run has them from the checkpoint. A tied parameter has its first name only.
    """
    job, folder = write_job(tmp_path, ODD), tmp_path / "saved"
    job.write_text(job.read_text().replace("nn.Sequential(nn", "Most(nn"))
    run(job, plan("flush"), steps=1, checkpoint=folder)
    model = load_job(job).model
    before = saved(folder, 1)
    assert before.keys() == model.state_dict().keys() - {"spare.second"}
    assert torch.equal(before["idle"], model.state_dict()["idle"])
    run(frozen(job, seed=7), plan("flush"), steps=2, checkpoint=folder, resume=True)
    after = saved(folder, 2)
    assert all(torch.equal(after[name], before[name]) for name in ("idle", "spare.weight", "spare.bias"))
    assert len(Manifest.read(folder / "step-00000002").files) == 2

"""Weights in a callback: read from the checkpoint of the step, whole, whatever the plan."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hocket import export_weights
from hocket.errors import InputError
from hocket.training.callbacks.step_info import StepInfo
from hocket.training.train import train
from tests.runtime.helpers.exported import tensors_in
from tests.system.tiny import Recorder, plan, write_job

PLANS = {
    "flush": plan("flush"),
    "fully_sharded": plan("fully_sharded", (7, (0, 1))),
}


class Keeping:
    """A callback that keeps the weights of each checkpoint, and the averages if there are any."""

    def __init__(self, ema: bool) -> None:
        self.found: dict[int, dict[str, Tensor]] = {}
        self.ema = ema

    def on_checkpoint(self, info: StepInfo) -> None:
        """Keep the weights by step."""
        self.found[info.step] = dict(info.weights(self.ema))


def exported(folder: Path, job: Path, steps: int, name: str, **options: Any) -> dict[str, Tensor]:
    """The weights after some steps, as another run saves and exports them."""
    train(job, PLANS[name], steps=steps, checkpoint=folder / "saved", listener=Recorder())
    export_weights(folder / "saved", folder / "out", **options)
    return tensors_in(folder / "out")


@pytest.mark.workers
@pytest.mark.parametrize("ema", [False, True], ids=["weights", "averages"])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.thinned(most=1)
def test_weights_are_those_of_the_step(tmp_path: Path, name: str, ema: bool) -> None:
    """They equal the export of a run that ends with the step, to the bit."""
    job, callback = write_job(tmp_path, **({"ema": 0.5} if ema else {})), Keeping(ema)
    folder = tmp_path / "checkpoints"
    train(job, PLANS[name], steps=4, checkpoint=folder, every=2, listener=Recorder(), callbacks=(callback,))
    assert sorted(callback.found) == [2, 4]
    for step, found in callback.found.items():
        wanted = exported(tmp_path / f"until-{step}", job, step, name, ema=ema)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    assert not torch.equal(callback.found[2]["0.weight"], callback.found[4]["0.weight"])


def test_without_a_checkpoint_there_are_none(tmp_path: Path) -> None:
    """The error says when to ask; a removed checkpoint is named."""
    with pytest.raises(InputError, match=r"no checkpoint yet.*ask in on_checkpoint"):
        StepInfo(1, 2, 8).weights()
    with pytest.raises(InputError, match=r"step-1"):
        StepInfo(1, 2, 8, checkpoint=str(tmp_path / "step-1")).weights()

"""Moving averages of weights (`Job.ema`): those of torch's AveragedModel under every plan, saved, restored, exported."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hocket import export_weights
from hocket.errors import InputError
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.layer import Layer
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.training.train import train
from tests.runtime.helpers.exported import tensors_in
from tests.system.tiny import Recorder, plan, write_job

STEPS, DECAY = 7, 0.9
PLANS = {
    "flush": plan("flush"),
    "data_parallel": plan("data_parallel", (7, (0, 1))),
    "sharded steps": replace(plan("data_parallel", (7, (0, 1))), shard="optimizer"),
    "fully_sharded": plan("fully_sharded", (7, (0, 1))),
}


def job_file(folder: Path, name: str = "job.py", **options: float) -> Path:
    """A job that drops nothing out."""
    path = write_job(folder, name=name, **options)
    path.write_text(path.read_text().replace("nn.Dropout(0.1)", "nn.Dropout(1e-12)"))
    return path


def parameters(job: Job, layer: Layer) -> list[torch.Tensor]:
    """Trainable parameters of a layer."""
    return [job.model.get_parameter(name) for name in layer.parameters]


def averaged(path: Path) -> dict[str, torch.Tensor]:
    """Averages of a plain loop in one process."""
    job = load_job(path)
    optimizer = job.optimizer(job.model.parameters())
    average = AveragedModel(job.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for step in range(STEPS):
        x, y = job.batch_of_step(step).values()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(job.model(x), y).backward()
        optimizer.step()
        average.update_parameters(job.model)
    return {name: p.detach() for name, p in average.module.named_parameters()}


def test_a_profile_counts_the_average(tmp_path: Path) -> None:
    """Each layer's optimizer state is larger by the bytes of its weights, measured and sketched."""
    plain, with_average = load_job(job_file(tmp_path, "a.py")), load_job(job_file(tmp_path, "b.py", ema=DECAY))
    few = MeasureRequest(budget_s=0.01)
    for before, after in (
        (measure(plain, (2,), few), measure(with_average, (2,), few)),
        (sketch(plain, (2,)).profile, sketch(with_average, (2,)).profile),
    ):
        found = [b.optimizer_bytes - a.optimizer_bytes for a, b in zip(before.layers, after.layers, strict=True)]
        assert found == [8.0 * sum(p.numel() for p in parameters(plain, layer)) for layer in before.layers]
        assert sum(found) > 0


@pytest.mark.workers
@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one == "flush" else pytest.mark.slow) for one in PLANS])
def test_an_average_is_that_of_one_process(tmp_path: Path, name: str) -> None:
    """Also after a resume, and with the optimizer's state sharded."""
    path, saved = job_file(tmp_path, ema=DECAY), tmp_path / "saved"
    train(path, PLANS[name], steps=3, checkpoint=saved, listener=Recorder())
    train(path, PLANS[name], steps=STEPS, checkpoint=saved, resume=True, listener=Recorder())
    export_weights(saved, tmp_path / "averages", ema=True)
    export_weights(saved, tmp_path / "weights")
    found = tensors_in(tmp_path / "averages")
    for key, wanted in averaged(path).items():
        torch.testing.assert_close(found[key], wanted, rtol=1e-9, atol=1e-12)
    weights = tensors_in(tmp_path / "weights")
    assert weights.keys() == found.keys()
    assert not torch.equal(weights["0.weight"], found["0.weight"])


@pytest.mark.workers
@pytest.mark.slow
def test_only_a_job_with_an_average_resumes_one(tmp_path: Path) -> None:
    """Both ways are refused with the reason. An export of averages that are not there is refused, too."""
    with_average, without = job_file(tmp_path, ema=DECAY), job_file(tmp_path, "plain.py")
    for job, other, said in ((with_average, without, "has averages"), (without, with_average, "has no averages")):
        saved = tmp_path / job.stem
        train(job, PLANS["flush"], steps=2, checkpoint=saved, listener=Recorder())
        with pytest.raises(InputError, match=rf"Use the same Job\.ema: the checkpoint {said}"):
            train(other, PLANS["flush"], steps=4, checkpoint=saved, resume=True, listener=Recorder())
    with pytest.raises(InputError, match="no moving averages"):
        export_weights(tmp_path / "plain", tmp_path / "averages", ema=True)


def test_a_decay_is_between_0_and_1(tmp_path: Path) -> None:
    """Anything else is refused when the job is made."""
    for wrong in (0, 1, 1.5, True, "0.9"):
        with pytest.raises(InputError, match=r"Job\.ema: found .*expected a decay between 0 and 1"):
            load_job(job_file(tmp_path, ema=wrong))  # type: ignore[arg-type]

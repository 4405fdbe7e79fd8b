"""Models on `meta`: weights come from files alone, and a worker has memory for those of its own stages."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket import Job, export_weights, models
from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.capture.stage import Stage
from hocket.profiling.job.derived_model.placeholders import is_placeholder, with_placeholders
from hocket.profiling.job.derived_model.precision import masters
from hocket.profiling.job.job_file import load_job
from hocket.runtime.tensor_parallel.shard_model import Division, split_of
from hocket.training.train import train
from tests.runtime.checkpoint.test_export import WAYS, plan_of
from tests.runtime.helpers.exported import write_job
from tests.system.tiny import Recorder

STEPS = 2
ON_META = """
def on_meta():
    with torch.device("meta"):
        model = Model()
    model.register_buffer("offset", torch.arange(8) / 8, persistent=False)
    return model


def make_job"""


def write_meta_job(folder: Path, subtasks: bool = False) -> Path:
    """Write the same job with its model on `meta`."""
    path = write_job(folder, subtasks)
    path.write_text(path.read_text().replace("def make_job", ON_META).replace("        Model(),", "        on_meta(),"))
    assert any(p.is_meta for p in load_job(path).model.parameters())
    return path


@pytest.mark.workers
@pytest.mark.parametrize(
    "way", ["flush", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS if way != "flush")]
)
def test_losses_are_those_of_a_model_with_these_values(tmp_path: Path, way: str) -> None:
    """Under every plan, from a file and then from its own checkpoint; an unused parameter keeps the file's values."""
    other = tmp_path / "other"
    other.mkdir()
    whole, job = write_job(other, way == "subtasks"), write_meta_job(tmp_path, way == "subtasks")
    plan = plan_of(whole, way)
    state = load_job(whole).model.state_dict()
    torch.save(state, tmp_path / "weights.pt")
    wanted, found, rest = Recorder(), Recorder(), Recorder()
    train(whole, plan, steps=STEPS + 1, listener=wanted)
    saved = tmp_path / "saved"
    train(job, plan, steps=STEPS, weights=str(tmp_path / "weights.pt"), checkpoint=str(saved), listener=found)
    export_weights(saved, tmp_path / "out", "torch", whole)
    (file,) = (tmp_path / "out").iterdir()
    assert torch.equal(torch.load(file, weights_only=True)["unused"], state["unused"])
    train(job, plan, steps=STEPS + 1, checkpoint=str(saved), resume=True, listener=rest)
    assert found.losses + rest.losses == wanted.losses


@pytest.mark.workers
@pytest.mark.slow
@pytest.mark.parametrize("more", ['precision="bfloat16"', "ema=0.9", "evaluate=Evaluation(data, every=1)"])
def test_other_models_of_a_run_have_these_values_too(tmp_path: Path, more: str) -> None:
    """The compute copy of mixed precision, the moving average, and the model in evaluation mode."""
    other = tmp_path / "other"
    other.mkdir()
    whole, job = write_job(other), write_meta_job(tmp_path)
    for path in (whole, job):
        text = path.read_text().replace("import Job", "import Evaluation, Job")
        path.write_text(text.replace('name="tied"', f'name="tied", {more}'))
    plan = plan_of(whole, "flush")
    torch.save(load_job(whole).model.state_dict(), tmp_path / "weights.pt")
    wanted, found = Recorder(), Recorder()
    train(whole, plan, steps=STEPS, checkpoint=tmp_path / "one", listener=wanted)
    train(job, plan, steps=STEPS, weights=str(tmp_path / "weights.pt"), checkpoint=tmp_path / "two", listener=found)
    assert found.losses == wanted.losses
    assert [info.loss for info, _ in found.evaluations] == [info.loss for info, _ in wanted.evaluations]
    ema = more.startswith("ema")
    for run, out in (("one", "a"), ("two", "b")):
        export_weights(tmp_path / run, tmp_path / out, "torch", whole, ema=ema)
    one, two = (torch.load(next((tmp_path / out).iterdir()), weights_only=True) for out in "ab")
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.workers
def test_without_a_file_it_is_refused(tmp_path: Path) -> None:
    """One error says that there are no values, with and without a folder of checkpoints, and what to do."""
    job = write_meta_job(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    plan = plan_of(write_job(other), "flush")
    with pytest.raises(InputError, match=r"on `meta`, where it has no values; .* --weights"):
        train(job, plan, steps=1)
    with pytest.raises(InputError, match=r"weights on `meta`, and no checkpoint; .*--weights"):
        train(job, plan, steps=1, checkpoint=tmp_path / "saved", resume="auto")


def chain(precision: str | None) -> Job:
    """A chain of linear layers on `meta`, of which two share their weight."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        model[1].weight = model[0].weight
    data = [(torch.ones(64), torch.ones(64)) for _ in range(8)]
    return Job(model, nn.functional.mse_loss, data, lambda p: torch.optim.SGD(p, 0.1), 4, precision=precision)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_only_the_weights_of_a_stage_take_memory(precision: str | None) -> None:
    """The other weights are one element each, also in the compute copy of mixed precision; ties stay ties."""
    job = chain(precision)
    with_placeholders(job.model)
    assert job.model[0].weight is job.model[1].weight
    captured = capture(job, 2)
    names = [layer.name for layer in captured.layers]
    stage = Stage(captured, range(names.index("4")), share=True)
    masters(captured.job, stage.parameters(), "cpu")
    for model in (captured.job.model, job.model):
        held = {name for name, p in model.named_parameters() if not is_placeholder(p)}
        assert held == {"0.weight", *(f"{k}.bias" for k in range(4)), "2.weight", "3.weight"}
        assert model.get_parameter("2.weight").untyped_storage().nbytes() == 64 * 64 * model[2].weight.itemsize
        assert model.get_parameter("5.weight").untyped_storage().nbytes() == model[2].weight.itemsize


def test_a_shard_of_a_placeholder_is_one() -> None:
    """A tensor-parallel rank has no memory for its parts of the weights of other stages, nor do subtasks."""
    whole = models.small_job("gpt", batch_size=4, tied=False)
    with torch.device("meta"):
        model = models.GPT(models.GPTSizes(n_layer=2, d_model=32, n_head=2, seq=16))
    job = replace(whole, model=model)
    with_placeholders(job.model)
    shard = Division(job, split_of(job, 2, False), 1).job
    tasks = capture(replace(job, subtask_bytes=2000), 2).job
    for one in (shard, tasks):
        assert all(is_placeholder(p) for p in one.model.parameters())
    assert sum(p.numel() for p in shard.model.parameters()) < sum(p.numel() for p in job.model.parameters())
    assert len(list(tasks.model.parameters())) > len(list(job.model.parameters()))


def test_buffers_have_values() -> None:
    """One that state dicts have begins at zero, and is a tensor of its own; another one is refused by its name."""
    with torch.device("meta"):
        model = nn.Sequential(nn.BatchNorm1d(4))
    with_placeholders(model)
    assert model[0].running_var.stride() == (1,)
    with torch.device("meta"):
        model[0].register_buffer("mask", torch.ones(3), persistent=False)
    with pytest.raises(
        InputError, match=r"the buffer '0\.mask' on `meta`, which is in no state dict; .*Create '0' outside"
    ):
        with_placeholders(model)

"""Exported weights: whole tensors under the model's own names, whatever plan wrote the checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket import export_weights
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Manifest
from hocket.training.train import train
from tests.runtime.helpers.exported import logits, tensors_in, write_job
from tests.system.tiny import Recorder

pytestmark = pytest.mark.workers

# Two workers each: (strategy, cut into so many runs of layers, pipeline stages, shard, tensor-parallel size).
WAYS = {
    "data_parallel": ("data_parallel", 1, 1, "none", 1),
    "flush": ("flush", 2, 2, "none", 1),
    "fully_sharded": ("fully_sharded", 3, 1, "optimizer", 1),
    "tensor": ("flush", 1, 1, "none", 2),
    "subtasks": ("flush", 2, 2, "none", 1),  # the cut is inside of a linear layer: each worker writes rows of it
}


def plan_of(job: Path, way: str) -> Plan:
    """Build a plan of a job for two workers."""
    strategy, runs, stages, shard, tensor = WAYS[way]
    layers = tuple(layer.name for layer in capture(load_job(job)).layers)
    ends = [len(layers) * k // runs for k in range(runs + 1)]
    replicas = 2 // stages // tensor
    parts = tuple(
        PlanStage(
            layers[ends[k] : ends[k + 1]],
            tuple(range(k * replicas, (k + 1) * replicas)) if stages > 1 else tuple(range(replicas)),
        )
        for k in range(runs)
    )
    return Plan(
        strategy, "tied", 8, 2, parts, Cluster("l", (Level("l", 2, 1e9),), "cpu-core"), tensor=tensor, shard=shard
    )


def keys_in(run: Path) -> list[str]:
    """Return the keys in the headers of the newest checkpoint's files, with the offsets of shards."""
    files = max(run.glob("step-*")).glob("*.safetensors")
    raw = [file.read_bytes() for file in files]
    return [key for one in raw for key in json.loads(one[8 : 8 + int.from_bytes(one[:8], "little")])]


def by_own_way(run: Path, job: Path) -> nn.Module:
    """Load the newest checkpoint of a run as a resumed run does, by DCP, into the job's model."""
    path = max(run.glob("step-*"))
    found = Checkpoint(path, Manifest.read(path)).load(lambda name: name.startswith("model."))
    model = load_job(job).model
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in found.items()}, strict=False)
    return model.eval()


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.thinned(most=2)
def test_an_export_of_any_plan_is_the_trained_model(tmp_path: Path, way: str) -> None:
    """Every format gives the logits of the checkpoint, bit for bit, in a fresh model that is loaded strictly.

    The exported model's loss is the loss of the next step, when a plan on one device resumes from the checkpoint.
    """
    job, run = write_job(tmp_path, way == "subtasks"), tmp_path / "saved"
    names = load_job(job).model.state_dict().keys()
    train(job, plan_of(job, way), steps=2, checkpoint=run, listener=Recorder())
    assert any("@" in key for key in keys_in(run)) == (way == "subtasks")
    wanted = logits(by_own_way(run, job))
    assert not torch.equal(wanted, logits(load_job(job).model)), "it was trained"

    export_weights(run, tmp_path / "pt", "torch", job)
    state = torch.load(tmp_path / "pt" / "model.pt", weights_only=True)
    assert state.keys() == names
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    fresh = load_job(job).model
    fresh.load_state_dict(state, strict=True)
    assert torch.equal(logits(fresh), wanted)

    found = export_weights(run, tmp_path / "st", job=job, max_shard_bytes=600)
    index = json.loads((tmp_path / "st" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == names - {"head.weight"}
    assert {file.name for file in found.files} == {*index["weight_map"].values(), "model.safetensors.index.json"}
    assert len(found.files) > 3
    fresh = load_job(job).model
    missing, unexpected = fresh.load_state_dict(tensors_in(tmp_path / "st"), strict=False)
    assert (missing, unexpected) == (["head.weight"], [])
    assert torch.equal(logits(fresh), wanted)

    export_weights(run, tmp_path / "plain", "torch")
    state = torch.load(tmp_path / "plain" / "model.pt", weights_only=True)
    assert state.keys() == names - {"head.weight"} | {"offset"}, "without the job: as stored"

    resumed = Recorder()
    whole = plan_of(job, "data_parallel")
    alone = replace(whole, stages=(PlanStage(whole.stages[0].layers, (0,)),))
    train(job, alone, steps=3, checkpoint=run, resume=True, listener=resumed)
    loaded = load_job(job)
    loaded.model.load_state_dict(torch.load(tmp_path / "pt" / "model.pt", weights_only=True))
    assert resumed.losses == [pytest.approx(loaded.loss_of(loaded.batch_of_step(2)).item(), rel=1e-6)]


@pytest.mark.slow
def test_a_hugging_face_model_is_saved_by_its_own_way(tmp_path: Path) -> None:
    """`from_pretrained` reads config and weights of a trained GPT-2, also shards of the other format beside the config."""
    transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    job = tmp_path / "job.py"
    job.write_text(
        "import torch\nfrom transformers import GPT2Config, GPT2LMHeadModel\nfrom hocket import Job\ntorch.manual_seed(0)\n"
        "ids = [torch.arange(k, k + 6) % 20 for k in range(8)]\n"
        "config = GPT2Config(n_layer=2, n_embd=16, n_head=2, n_positions=8, vocab_size=20)\n"
        "job = Job(GPT2LMHeadModel(config), None, [{'input_ids': x, 'labels': x} for x in ids],\n"
        "    lambda p: torch.optim.SGD(p, lr=0.5), batch_size=8, name='hf')\n"
    )
    layers = tuple(layer.name for layer in capture(load_job(job)).layers)
    stages = (PlanStage(layers[:3], (0,)), PlanStage(layers[3:], (1,)))
    plan = Plan("flush", "hf", 8, 4, stages, Cluster("l", (Level("l", 2, 1e9),), "cpu-core"))
    train(job, plan, steps=2, checkpoint=tmp_path / "saved", listener=Recorder())
    ids = torch.arange(8).view(1, 8)
    with torch.no_grad():
        wanted, begun = (m(ids).logits for m in (by_own_way(tmp_path / "saved", job), load_job(job).model.eval()))
        export_weights(tmp_path / "saved", tmp_path / "hf", "hf", job)
        found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
        assert torch.equal(found(ids).logits, wanted)
        assert not torch.equal(begun, wanted), "it was trained"
        export_weights(tmp_path / "saved", tmp_path / "own", job=job, max_shard_bytes=5000)
        (tmp_path / "own" / "config.json").write_bytes((tmp_path / "hf" / "config.json").read_bytes())
        assert len(list((tmp_path / "own").glob("model-*.safetensors"))) > 2
        found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "own").eval()
        assert torch.equal(found(ids).logits, wanted)
        export_weights(tmp_path / "saved", tmp_path / "shards", "hf", job, max_shard_bytes=5000)
        found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "shards").eval()
        assert torch.equal(found(ids).logits, wanted)

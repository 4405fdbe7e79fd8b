"""Exported weights: whole tensors under the model's own names, whatever plan wrote the checkpoint."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

from hocket import export_weights
from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job, load_job
from hocket.runtime.checkpoint.checkpoint import MANIFEST, Checkpoint, Manifest, Position, damaged_path, save
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.train import train
from tests.system.tiny import Recorder

pytestmark = pytest.mark.workers

# Tied embeddings, a frozen parameter, an unused parameter, a persistent and a non-persistent buffer.
JOB = """
import torch
from torch import nn
from hocket import Job

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(8)
        self.norm.bias.requires_grad_(False)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("offset", torch.arange(8) / 8, persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x)) * self.scale + self.offset)).mean(1)


def make_job():
    data = [(torch.tensor([i % 12, (i * 5) % 12, (i * 7) % 12]), torch.tensor(i % 12)) for i in range(64)]
    return Job(
        Model(), nn.functional.cross_entropy, data, lambda p: torch.optim.Adam(p, lr=0.05), batch_size=8, name="tied"
    )
"""
# Two workers each: (strategy, cut into so many runs of layers, pipeline stages, shard, tensor-parallel size).
WAYS = {
    "data_parallel": ("data_parallel", 1, 1, "none", 1),
    "flush": ("flush", 2, 2, "none", 1),
    "fully_sharded": ("fully_sharded", 3, 1, "optimizer", 1),
    "tensor": ("flush", 1, 1, "none", 2),
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


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job file."""
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


def by_own_way(run: Path, job: Path) -> nn.Module:
    """Load the newest checkpoint of a run as a resumed run does, by DCP, into the job's model."""
    path = max(run.glob("step-*"))
    found = Checkpoint(path, Manifest.read(path)).load(lambda name: name.startswith("model."))
    model = load_job(job).model
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in found.items()}, strict=False)
    return model.eval()


def logits(model: nn.Module) -> Tensor:
    """Output of a model without dropout for some samples."""
    with torch.no_grad():
        return model.eval()(torch.arange(36).view(12, 3) % 12)


@pytest.mark.parametrize("way", list(WAYS))
def test_an_export_of_any_plan_is_the_trained_model(job: Path, tmp_path: Path, way: str) -> None:
    """Every format gives the logits of the checkpoint, bit for bit, in a fresh model that is loaded strictly.

    The exported model's loss is the loss of the next step, when a plan on one device resumes from the checkpoint.
    """
    run, names = tmp_path / "saved", load_job(job).model.state_dict().keys()
    train(job, plan_of(job, way), steps=2, checkpoint=run, listener=Recorder())
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
    pieces = [load_file(tmp_path / "st" / file) for file in sorted(set(index["weight_map"].values()))]
    assert len(pieces) == len(found.files) - 1 > 2
    fresh = load_job(job).model
    missing, unexpected = fresh.load_state_dict({k: v for piece in pieces for k, v in piece.items()}, strict=False)
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
    assert resumed.losses == [pytest.approx(float(loaded.loss_of(loaded.batch_of_step(2))), rel=1e-6)]

"""Runs of two workers on each kind of data: losses equal those of one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.planning.plan import Plan, PlanStage
from hocket.training.train import train
from tests.system.tiny import plan, reference

MODEL = """
import torch
from torch import nn

from hocket.profiling.job.job import Job


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3)
        )

    def forward(self, ids, mask):
        return self.layers((self.embedding(ids) * mask[..., None]).sum(1))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


torch.manual_seed(0)
model = Words().double()
"""
LAYERS = (("embedding", "layers.0", "layers.1"), ("layers.2", "layers.3", "layers.4", "loss"))
COLLATED = """
def collate(samples):
    ids = torch.zeros(len(samples), 5, dtype=torch.long)
    for row, words in zip(ids, samples):
        row[: len(words)] = torch.tensor(words)
    return {"ids": ids, "mask": (ids > 0).double(), "target": torch.tensor([len(words) % 3 for words in samples])}


data = [[1 + (3 * i + k) % 19 for k in range(1 + i % 5)] for i in range(20)]
"""


def write(folder: Path, data: str, arguments: str) -> Path:
    """Write a job file that creates `data` and gives these arguments to the job."""
    path = folder / "job.py"
    path.write_text(
        f"{MODEL}\n{data}\njob = Job(model, nn.CrossEntropyLoss(), optimizer=adam, name='tiny', {arguments})\n"
    )
    return path


def two_stages(strategy: str = "flush", **options: Any) -> Plan:
    """A plan of two stages on two devices."""
    parts = [PlanStage(layers, stage.devices) for layers, stage in zip(LAYERS, plan(strategy).stages, strict=True)]
    return replace(plan(strategy), stages=tuple(parts), **options)


@pytest.mark.workers
def test_ragged_samples_in_a_pipeline(tmp_path: Path) -> None:
    """Two stages train on samples that `collate` pads, over more than one epoch, with the losses of one process."""
    job = write(tmp_path, COLLATED, "data=data, batch_size=8, collate=collate")
    chosen = two_stages()
    assert train(job, chosen, steps=5).losses == pytest.approx(reference(job, chosen, 5), rel=1e-9)

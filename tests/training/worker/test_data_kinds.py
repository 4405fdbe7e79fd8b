"""Runs of two workers on each kind of data: losses equal those of one process."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest

from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.data.iterable import StreamState
from hocket.runtime.checkpoint.checkpoint import Manifest
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


STREAM = """
import random

from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    at = 0

    def __iter__(self):
        self.at = 0
        return self.rest()

    def rest(self):
        while self.at < 30:
            self.at, i = self.at + 1, self.at
            ids = torch.tensor([1 + (i + k) % 19 for k in range(3)])
            yield {"ids": ids, "mask": torch.rand(3).double(), "target": (i + random.randrange(2)) % 3, "name": "a"}
        self.at = 0


class Kept(Stream):
    def __iter__(self):
        return self.rest()

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]
"""


def write(folder: Path, data: str, arguments: str) -> Path:
    """Write a job file that creates `data` and gives these arguments to the job."""
    path = folder / "job.py"
    path.write_text(
        f"{MODEL}\n{data}\njob = Job(model, nn.CrossEntropyLoss(), optimizer=adam, name='tiny', {arguments})\n"
    )
    return path


def two_workers(strategy: str) -> Plan:
    """A plan of two stages on two devices, or of one stage on both."""
    if strategy == "data_parallel":
        parts = [PlanStage((*LAYERS[0], *LAYERS[1]), (0, 1))]
    else:
        parts = [PlanStage(layers, (device,)) for device, layers in enumerate(LAYERS)]
    return replace(plan("flush"), strategy=strategy, stages=tuple(parts))


@pytest.mark.workers
def test_ragged_samples_in_a_pipeline(tmp_path: Path) -> None:
    """Two stages train on samples that `collate` pads, over more than one epoch, with the losses of one process."""
    job = write(tmp_path, COLLATED, "data=data, batch_size=8, collate=collate")
    chosen = two_workers("flush")
    assert train(job, chosen, steps=5).losses == pytest.approx(reference(job, chosen, 5), rel=1e-9)


@pytest.mark.workers
@pytest.mark.parametrize(("kind", "strategy"), [("Stream", "flush"), ("Kept", "data_parallel")])
@pytest.mark.thinned(most=1)
def test_a_stream_that_two_workers_iterate(tmp_path: Path, kind: str, strategy: str) -> None:
    """Two workers train on an iterable dataset with the losses of one process; a resumed run continues bit for bit.

    The checkpoint keeps the state of a dataset that has one, here of the worker that has read the last samples. Without
    it, earlier samples are read again. An epoch of 30 samples ends inside of a batch of 8.
    """
    job = write(tmp_path, STREAM, f"data=DataLoader({kind}(), batch_size=8, num_workers=1)")
    chosen = two_workers(strategy)
    folders = [tmp_path / "saved" / f"step-0000000{step}" for step in (4, 8)]
    whole = train(job, chosen, steps=8, checkpoint=tmp_path / "saved", every=4, keep=2).losses
    assert whole == pytest.approx(reference(job, chosen, 8), rel=1e-9)
    states = [Manifest.read(folder).position.data_state for folder in folders]
    assert states == ([StreamState(1, {"at": 2}), StreamState(2, {"at": 4})] if kind == "Kept" else [None, None])
    rmtree(folders[1])
    assert train(job, chosen, steps=8, checkpoint=tmp_path / "saved", resume=True).losses == whole[4:]

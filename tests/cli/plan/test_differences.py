"""A job with a mean loss over tokens, from its profile to its run.

The reported differences and their remedies are tested.
"""

from pathlib import Path

import pytest

from hocket.profiling.job.job_file import load_job
from hocket.training.verify.reference_loop import plain_loop
from tests.cli.conftest import Run

JOB = """
import torch
from torch import nn

import hocket


class Counted(nn.Linear):
    def __init__(self, wide):
        super().__init__(wide, wide)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.middle, self.head = nn.Embedding(11, 8), Counted(8), nn.Linear(8, 11)

    def forward(self, words):
        return self.head(torch.tanh(self.middle(self.words(words))))


def loss(logits, labels):
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


torch.manual_seed(0)
data = []
for k in range(24):
    words, labels = torch.randint(0, 11, (6,)), torch.randint(0, 11, (6,))
    labels[1 + k % 6 :] = -100
    data.append({"words": words, "labels": labels})
job = hocket.Job(Reader(), lambda logits, labels: loss(logits, labels), data, lambda p: torch.optim.SGD(p, lr=0.5), 8{more})
"""
LINE = 'loss_weight=hocket.tokens("labels")'
BUFFERS = "1 buffer (middle.seen) is written in the forward: each replica writes its own"


def plain(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def measured(run: Run, more: str = "") -> str:
    """Write the job and profile it; returns what is said."""
    Path("job.py").write_text(JOB.replace("{more}", more))
    found = run("profile", "job.py", "-o", "own.json", "-b", 2, "--budget-s", 0.05, "--busy-workers", 0)
    assert found.code == 0, found.err
    return plain(found.out)


@pytest.mark.slow
@pytest.mark.workers
def test_a_mean_over_tokens_from_profile_to_run(run: Run, folder: Path) -> None:
    """All commands report the differences from one process.

    The commands are `hocket profile`, `plan`, `show` and `train`. With the line that they suggest, the losses equal
    those of one process.
    """
    assert f"give the job {LINE}" in measured(run)
    words = ("plan", "own.json", "cluster.yaml", "--batch", 8, "-s", "flush", "-b", 2, "-o", "own.yaml")
    planned = run(*words, "--json").json["candidates"][0]["update_rule"]
    assert planned["same_as_one_process"] is False
    assert list(planned["differences"]) == ["loss", "buffers"]
    said = plain(run(*words).out)
    assert "same but loss, buffers" in said
    for text in (said, plain(run("show", "own.yaml").out)):
        assert f"give the job {LINE}" in text
        assert BUFFERS in text
    told = run("train", "job.py", "own.yaml", "--steps", 1)
    assert told.code == 0, told.err
    assert f"give the job {LINE}" in plain(told.err)
    assert plain(told.err).count(BUFFERS) == 1

    assert LINE not in measured(run, f", {LINE}")
    assert "same but buffers" in plain(run(*words).out)
    trained = run("train", "job.py", "own.yaml", "--steps", 3, "--json")
    assert trained.code == 0, trained.err
    assert LINE not in trained.err
    losses = [float(line.split('"loss": ')[1].split(",")[0]) for line in trained.out.splitlines() if '"loss": ' in line]
    job = load_job("job.py")
    assert losses == pytest.approx([loss for _, loss, _ in plain_loop(job, 8, 3).losses], rel=1e-6)

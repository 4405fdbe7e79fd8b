"""Sparse gradients are refused by name where devices sum them or a norm is computed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.training.train import train
from tests.system.tiny import Recorder, plan

MODEL = """
import torch
from torch import nn

from hocket import Job

model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 3))
data = [(torch.tensor(k % 8), torch.tensor(k % 3)) for k in range(16)]
job = Job(model, nn.functional.cross_entropy, data, lambda p: torch.optim.SGD(p, lr=0.1), 8)
"""


def sparse(clip: float | None, trained: bool = True) -> Job:
    """Return a job with a sparse embedding."""
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True).requires_grad_(trained), nn.Linear(4, 3))
    data = [(torch.tensor(k % 8), torch.tensor(k % 3)) for k in range(16)]
    return Job(model, nn.functional.cross_entropy, data, lambda p: torch.optim.SGD(p, lr=0.1), 8, clip_grad_norm=clip)


def test_clipping_sparse_gradients_is_refused() -> None:
    """The error names the layer, before anything is computed; without clipping, or frozen, the layer is allowed."""
    with pytest.raises(RefusedError, match=r"Job\.model\.0: found Embedding\(sparse=True\).*clip_grad_norm"):
        capture(sparse(1.0))
    assert capture(sparse(None)).layers
    assert capture(sparse(1.0, trained=False)).layers


@pytest.mark.workers
def test_summing_sparse_gradients_is_refused(tmp_path: Path) -> None:
    """Replicas would sum them in flat memory, and skipped updates need a norm; a device that has them alone trains with them."""
    job = tmp_path / "job.py"
    job.write_text(MODEL)
    one, two = (
        replace(whole, stages=(replace(whole.stages[0], layers=("0", "1", "loss")),))
        for whole in (plan("data_parallel", (3, devices)) for devices in ((0,), (0, 1)))
    )
    first = PlanStage(("0",), (0,))
    apart = replace(
        plan("flush"),
        stages=(first, PlanStage(("1", "loss"), (1, 2))),
        cluster=Cluster("three", (Level("local", 3, 1e9),), "cpu-core"),
    )
    for chosen in (one, apart):
        assert train(job, chosen, steps=1, listener=Recorder()).steps == 1
    with pytest.raises(RefusedError, match=r"Job\.model\.0.* sums them over replicas .* Leave sparse=True out"):
        train(job, two, steps=1, listener=Recorder())
    with pytest.raises(RefusedError, match="on_nan skip"):
        train(job, one, steps=1, on_nan="skip", listener=Recorder())

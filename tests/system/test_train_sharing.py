"""Training under plans whose replicas share optimizer state and step: checkpoints between plans, groups, refusals."""

from pathlib import Path

import pytest

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.plan import Plan, PlanStage
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job_file import load_job
from hocket.training.train import train
from tests.system.tiny import Recorder, reference

pytestmark = pytest.mark.workers

JOB = """
from dataclasses import replace

import torch
from hocket import models

def grouped(named):
    free = [p for name, p in named if "ln" in name or name.endswith("bias")]
    rest = [p for name, p in named if not ("ln" in name or name.endswith("bias"))]
    return torch.optim.AdamW([{"params": rest, "weight_decay": 0.5}, {"params": free, "lr": 2e-3}], lr=1e-3)

job = models.small_job(
    "gpt", dtype=torch.float64, batch_size=8, samples=50, dropout=0.1,
    optimizer=grouped,
)
job = replace(job, lr_schedule={"name": "linear", "steps": 20, "warmup_steps": 4})
"""
BY_NORM = """
class ByNorm(torch.optim.SGD):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.grad.norm()
        super().step()

job = replace(job, optimizer=lambda parameters: ByNorm(parameters, lr=0.1))
"""


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job file of a small GPT with tied embeddings."""
    path = tmp_path_factory.mktemp("job") / "job.py"
    path.write_text(JOB)
    return path


def plan_of(job: Path, depth: int, members: int, replicas: int, shard: str, units: int = 0) -> Plan:
    """Stages of equal numbers of layers, each of so many replicas of so many tensor-parallel members; or units on the same."""
    layers = tuple(layer.name for layer in capture(load_job(job)).layers)
    count = units or depth
    ends = [len(layers) * s // count for s in range(count + 1)]
    places = [0 if units else s * replicas for s in range(count)]
    stages = tuple(
        PlanStage(layers[ends[s] : ends[s + 1]], tuple(range(at, at + replicas))) for s, at in enumerate(places)
    )
    cluster = Cluster("local", (Level("local", depth * members * replicas, 1e9),), "cpu-core")
    strategy = "fully_sharded" if units else "flush"
    return Plan(strategy, "gpt", 8, 2, stages, cluster, tensor=members, shard=shard)


@pytest.mark.slow
def test_checkpoints_move_between_plans(gpt: Path, tmp_path: Path) -> None:
    """Two replicas that share the step, one process, two stages of two that share it (with tied weights), tensor-parallel members
    of two that do, and two that do not: one run, of one process's losses, with parameter groups by name and one schedule."""
    saved, losses, rates = tmp_path / "saved", list[float](), list[list[float]]()
    ways = [
        (1, 1, 2, "optimizer"),
        (1, 1, 1, "none"),
        (2, 1, 2, "optimizer"),
        (1, 2, 2, "optimizer"),
        (1, 1, 2, "none"),
    ]
    for number, way in enumerate(ways):
        listener = Recorder()
        chosen, steps = plan_of(gpt, *way), 2 * (number + 1)
        train(gpt, chosen, steps=steps, checkpoint=str(saved), resume=number > 0, listener=listener)
        assert listener.first == 2 * number
        losses += listener.losses
        rates += [line["lr"] for line in listener.lines]
    assert losses == pytest.approx(reference(gpt, plan_of(gpt, 1, 1, 1, "none"), 2 * len(ways)), rel=1e-8)
    factors = [step / 4 if step < 4 else (20 - step) / 16 for step in range(2 * len(ways))]
    assert rates == [[1e-3 * factor, 2e-3 * factor] for factor in factors]


@pytest.mark.slow
def test_checkpoints_move_between_plans_without_whole_weights(gpt: Path, tmp_path: Path) -> None:
    """Units on two replicas, one process, two stages of two replicas, units of tensor-parallel members, replicas that share the
    step: one run, of one process's losses."""
    job, saved, losses = tmp_path / "job.py", tmp_path / "saved", list[float]()
    job.write_text(gpt.read_text().replace("dropout=0.1", "dropout=0.1, tied=False"))
    ways = [(1, 1, 2, "full", 4), (1, 1, 1, "none"), (2, 1, 2, "full"), (1, 2, 2, "full", 3), (1, 1, 2, "optimizer")]
    for number, way in enumerate(ways):
        listener = Recorder()
        chosen, steps = plan_of(job, *way), 2 * (number + 1)
        train(job, chosen, steps=steps, checkpoint=str(saved), resume=number > 0, listener=listener)
        assert listener.first == 2 * number
        losses += listener.losses
    assert losses == pytest.approx(reference(job, plan_of(job, 1, 1, 1, "none"), 2 * len(ways)), rel=1e-8)


def test_an_optimizer_that_looks_at_whole_weights_is_refused(tmp_path: Path) -> None:
    """Before the first step, with what would do."""
    job = tmp_path / "job.py"
    job.write_text(JOB + BY_NORM)
    with pytest.raises(
        RefusedError, match=r"found ByNorm: shard: optimizer with an optimizer .* or a plan with shard: none"
    ):
        train(job, plan_of(job, 1, 1, 2, "optimizer"), steps=1)

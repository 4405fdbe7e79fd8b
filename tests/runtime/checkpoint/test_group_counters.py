"""Checkpoints of optimizers that keep state in their parameter groups, such as a step counter."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.planning.plan import Plan
from hocket.runtime.checkpoint.checkpoint import Checkpoint, Manifest, names_in, save
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.train import train
from tests.system.tiny import Recorder, plan, reference, write_job

pytestmark = pytest.mark.workers

# Bias correction by the group's own counter, as in FusedAdam of apex.
COUNTED = """
class Counted(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                p.add_(state["mean"] / (1 - 0.9 ** group["count"]), alpha=-group["lr"])

torch.optim.Counted = Counted
"""
ONE = plan("gpipe", (7, (0,)))
GROUPS = "Counted([{'params': p[:2]}, {'params': p[2:], 'lr': 0.02}])"


def run(job: Path, chosen: Plan, **options: Any) -> Recorder:
    """Train; return what was heard."""
    listener = Recorder()
    train(job, chosen, listener=listener, **options)
    return listener


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [None, {"name": "cosine", "steps": 10, "warmup_steps": 3}], ids=["", "schedule"])
def test_a_counter_of_a_group_goes_on_under_every_plan(tmp_path: Path, schedule: dict[str, Any] | None) -> None:
    """Losses after each resume are those of an uninterrupted run, also with other stages and shards.

    Learning rates come from the schedule, not from the checkpoint.
    """
    options: dict[str, Any] = {} if schedule is None else {"lr_schedule": schedule}
    job, folder = write_job(tmp_path, COUNTED, optimizer=GROUPS, **options), tmp_path / "saved"
    losses: list[float] = []
    sharded = replace(plan("data_parallel", (7, (0, 1))), shard="optimizer")
    for steps, chosen in ((2, plan("flush")), (4, sharded), (6, ONE)):
        heard = run(job, chosen, steps=steps, checkpoint=folder, resume=steps > 2)
        assert not any("lacks" in note for note in heard.notes)
        losses += heard.losses
    assert losses == pytest.approx(reference(job, ONE, 6), rel=1e-9)
    path = folder / names_in(folder)[-1]
    values = Manifest.read(path).values
    assert {key.rpartition(".")[2]: value for key, value in values.items()} == {"group:count": 6}


def test_a_checkpoint_without_the_groups_counter_is_resumed_with_a_note(tmp_path: Path) -> None:
    """A checkpoint of an earlier version lacks the state of groups: the note names a parameter."""
    job, folder = write_job(tmp_path, COUNTED, optimizer=GROUPS), tmp_path / "saved"
    run(job, ONE, steps=2, checkpoint=folder)
    found = Checkpoint(folder / names_in(folder)[-1], Manifest.read(folder / names_in(folder)[-1]))
    save(tmp_path / "old", found.position, found.load(lambda name: "group:" not in name), KVExchange(None, 0, 1))
    heard = run(job, ONE, steps=3, checkpoint=tmp_path / "old", resume=True)
    assert heard.first == 2
    assert sum(note.endswith("and 5 more: the job's initial values are used") for note in heard.notes) == 1
    assert "lacks the optimizer's group state of 0.bias" in " ".join(heard.notes)

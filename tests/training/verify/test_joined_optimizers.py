"""Several optimizers of one job: each steps its own parameters, under every plan as in the user's own loop."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from hocket import models
from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.profiling.job.likeness import likeness
from hocket.profiling.job.optimizer import JoinedOptimizer, make_optimizer, optimizer_name, stand_ins
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.train import train
from hocket.training.verify.reference_loop import plain_loop
from tests.runtime.helpers.everything_out import everything_out
from tests.runtime.helpers.plans import Case, assert_same_weights
from tests.system.tiny import Recorder

STEPS = 4
Made = Callable[[Iterable[tuple[str, nn.Parameter]]], Any]


def split(named: Iterable[tuple[str, nn.Parameter]]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices of the blocks, and all other parameters."""
    pairs = list(named)
    blocks = [p for name, p in pairs if name.startswith("blocks.") and p.dim() == 2]
    return blocks, [p for _, p in pairs if not any(p is other for other in blocks)]


def momentum_and_adam(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> tuple[Optimizer, Optimizer]:
    """Both compute each element by itself."""
    blocks, rest = split(named_parameters)
    return torch.optim.SGD(blocks, lr=0.05, momentum=0.9), torch.optim.AdamW(rest, lr=0.01)


def muon_and_adam(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> list[Optimizer]:
    """Muon computes with whole matrices."""
    blocks, rest = split(named_parameters)
    return [torch.optim.Muon(blocks, lr=0.02), torch.optim.AdamW(rest, lr=0.01)]


def job(made: Made, **changes: Any) -> Job:
    """A GPT with untied weights in float64, without dropout."""
    found = models.small_job("gpt", batch_size=8, dropout=0.0, tied=False, optimizer=made)
    found.model.double()
    return replace(found, **changes)


def check(chosen: Job, case: Case, swapped: bool = False) -> None:
    """A plan gives the losses and weights of the plain loop."""
    graph = capture(chosen, 2)
    plan = case.plan(graph)
    program = plan.compile(graph)
    program = everything_out(program) if swapped else program
    result = run_inline(Executable(graph, plan.layout(graph), program), STEPS * plan.microbatches // program.stride)
    expected = plain_loop(chosen, 8, STEPS)
    for weights in result.weights.values():
        assert_same_weights(weights, expected.weights, 1e-9)


@pytest.mark.parametrize(
    "case",
    [
        Case("flush", (2, 1)),
        Case("data_parallel", (2,), shard="optimizer"),
        Case("fully_sharded", (2,), rounds=2, shard="full"),
        Case("interleaved", (1, 1), rounds=2),
    ],
    ids=str,
)
def test_two_optimizers_step_their_own_parameters(case: Case) -> None:
    """Also where a stage has parameters of one of them only, and where replicas divide the step."""
    check(job(momentum_and_adam), case)


@pytest.mark.parametrize("changes", [{"clip_grad_norm": 0.1}, {"ema": 0.9}], ids=str)
def test_they_are_clipped_and_averaged_together(changes: dict[str, Any]) -> None:
    """The norm is that of all gradients; the average is taken after both have stepped."""
    check(job(momentum_and_adam, **changes), Case("flush", (1, 1)))


def test_a_swapped_plan_moves_the_state_of_both() -> None:
    """Momentum and Adam's moments wait on the host."""
    check(job(momentum_and_adam), Case("flush", (1, 1)), swapped=True)


def test_matrices_stay_whole_for_one_of_them() -> None:
    """A pipeline gives each stage whole matrices; a sharded step is refused."""
    check(job(muon_and_adam), Case("flush", (1, 1)))
    with pytest.raises(InputError, match="Muon, AdamW"):
        check(job(muon_and_adam), Case("data_parallel", (2,), shard="optimizer"))


def test_a_schedule_changes_every_group() -> None:
    """The groups of both are groups of one schedule, in their order."""
    schedule = [lambda k: 0.5**k, lambda k: 1 / (1 + k)]
    check(job(momentum_and_adam, lr_schedule=schedule), Case("flush", (1, 1)))


def test_groups_and_state_are_those_of_each() -> None:
    """One dictionary of state, the same groups, and a name that tells both."""
    chosen = job(muon_and_adam)
    made = make_optimizer(chosen, stand_ins(chosen))
    assert isinstance(made, JoinedOptimizer)
    muon, adam = made.optimizers
    assert [id(group) for group in made.param_groups] == [
        id(group) for one in (muon, adam) for group in one.param_groups
    ]
    assert muon.state is adam.state is made.state
    assert optimizer_name(made) == "Muon, AdamW"
    told = likeness(chosen)["optimizer"]
    assert told["optimizer"] == "Muon, AdamW"
    assert told != likeness(job(momentum_and_adam))["optimizer"]


JOB = """
import torch
from hocket import models


def optimizers(named_parameters):
    pairs = list(named_parameters)
    blocks = [p for name, p in pairs if name.startswith("blocks.") and p.dim() == 2]
    rest = [p for name, p in pairs if not (name.startswith("blocks.") and p.dim() == 2)]
    return torch.optim.Muon(blocks, lr=0.02), torch.optim.AdamW(rest, lr=0.01)


torch.manual_seed(0)
job = models.small_job("gpt", batch_size=8, dropout=0.0, tied=False, optimizer=optimizers)
"""


@pytest.mark.slow
@pytest.mark.workers
def test_a_run_with_both_is_resumed(tmp_path: Path) -> None:
    """Real workers save and load the state of both; a resumed run has the losses of one that goes through."""
    path, saved = tmp_path / "job.py", tmp_path / "saved"
    path.write_text(JOB)
    plan = Case("flush", (1, 1)).plan(capture(load_job(path), 2))
    whole = train(path, plan, steps=4, listener=Recorder())
    train(path, plan, steps=2, checkpoint=saved, listener=Recorder())
    rest = train(path, plan, steps=4, checkpoint=saved, resume=True, listener=Recorder())
    assert rest.losses == whole.losses[2:]

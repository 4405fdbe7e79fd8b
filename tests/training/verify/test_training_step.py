"""Train with a step of the user's own: an encoder that is called three times, and two losses for two parts of a model.

Losses and weights are those of a plain PyTorch loop with the same step, under every synchronous strategy.
"""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hocket.profiling.capture.capture import Captured, capture
from hocket.profiling.data.evaluation import Evaluation
from hocket.profiling.job.derived_model.training_step import user_module
from hocket.profiling.job.job import Job
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.evaluation.evaluator import evaluation_executable
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import plain_loop, rule_loop
from tests.runtime.evaluation.test_evaluator import evaluated
from tests.runtime.helpers.plans import Case, assert_same_losses, assert_same_weights, momentum
from tests.tiers import alternating

BATCH, STEPS = 8, 4
CASES = [
    Case("data_parallel", (1,)),
    Case("data_parallel", (2,)),
    Case("data_parallel", (2,), shard="optimizer"),
    Case("fully_sharded", (2,)),
    Case("flush", (1, 1)),
    Case("flush", (1, 2), recompute=True),
    Case("gpipe", (1, 1, 1)),
    Case("waves", (1, 1)),
    Case("harmony", (2,), options={"just_in_time": False}, swap="task"),
    Case("data_parallel", (2,), compile="aot_eager"),
]


class Encoder(nn.Module):
    """Embed a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.Tanh())))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 6) to (batch, 4)."""
        return self.head(self.net(x))


class Gan(nn.Module):
    """A generator and a discriminator of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def triplet(model: nn.Module, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Margin loss over three calls of the encoder."""
    a, n, f = model(anchor), model(near), model(far)
    return nn.functional.relu((a - n).square().sum(1) - (a - f).square().sum(1) + 1).mean()


def both_losses(model: Gan, real: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Losses of both parts: each has gradients of its own loss only."""
    made = model.generator(noise)
    asked, told = model.discriminator(real), model.discriminator(made.detach())
    fixed = {name: p.detach() for name, p in model.discriminator.named_parameters()}
    fooled = functional_call(model.discriminator, fixed, (made,))
    softplus = nn.functional.softplus
    return {"loss": (softplus(-asked) + softplus(told)).mean() + softplus(-fooled).mean(), "told": told}


def told(output: dict[str, Tensor]) -> Tensor:
    """A metric: the mean output of the discriminator for what the generator made."""
    return output["told"].mean()


def toggled(model: Gan, real: Tensor, noise: Tensor) -> Tensor:
    """The same losses, with a discriminator that is frozen for a while."""
    made = model.generator(noise)
    asked, told = model.discriminator(real), model.discriminator(made.detach())
    model.discriminator.requires_grad_(False)
    fooled = model.discriminator(made)
    model.discriminator.requires_grad_(True)
    softplus = nn.functional.softplus
    return (softplus(-asked) + softplus(told)).mean() + softplus(-fooled).mean()


def triplets() -> Job:
    """Job of triplets, by name."""
    torch.manual_seed(3)
    data = [{key: torch.rand(6, dtype=torch.float64) for key in ("anchor", "near", "far")} for _ in range(20)]
    return Job(Encoder().double(), step=triplet, data=data, optimizer=momentum, batch_size=BATCH)


def pairs(step: Any = both_losses) -> Job:
    """Job of a real vector and noise, with one learning rate for each part."""
    torch.manual_seed(4)
    data = [(torch.rand(6, dtype=torch.float64), torch.rand(3, dtype=torch.float64)) for _ in range(20)]

    def optimizer(named: Any) -> torch.optim.Optimizer:
        parts: dict[str, list[Any]] = {}
        for name, p in named:
            parts.setdefault(name.split(".")[0], []).append(p)
        rates = {"generator": 0.01, "discriminator": 0.03}
        return torch.optim.Adam([{"params": own, "lr": rates[part]} for part, own in parts.items()])

    return Job(Gan().double(), step=step, data=data, optimizer=optimizer, batch_size=BATCH, ema=0.9)


JOBS = {"triplets": triplets, "pairs": pairs, "toggled": lambda: pairs(toggled)}


@cache
def captured(name: str) -> Captured:
    """The job's captured step."""
    return capture(JOBS[name](), 2)


def users_loop(job: Job) -> tuple[list[float], dict[str, Tensor]]:
    """The loop that a user would write, with the user's own function and model."""
    model = copy.deepcopy(user_module(job.model))
    named = isinstance(model, Gan)
    optimizer = job.optimizer(model.named_parameters() if named else model.parameters())
    assert job.step is not None
    losses = []
    for step in range(STEPS):
        batch = job.batch_at(step * BATCH, BATCH)
        out = job.step(model, **batch) if "anchor" in batch else job.step(model, *batch.values())
        loss = out["loss"] if isinstance(out, dict) else out
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("case", "name"), alternating(2 * CASES, tuple(JOBS)))
@pytest.mark.thinned
def test_losses_and_weights_are_those_of_the_users_loop(name: str, case: Case) -> None:
    """The same step gives the same run, whatever the plan."""
    graph = captured(name)
    plan = case.plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), STEPS)
    losses, weights = users_loop(graph.job)
    by_step = [
        sum(loss * n for _, loss, n in found.losses[k : k + BATCH // 2]) / BATCH
        for k in range(0, len(found.losses), BATCH // 2)
    ]
    assert by_step == pytest.approx(losses, rel=1e-9)
    assert_same_weights({k: v for own in found.weights.values() for k, v in own.items()}, weights, 1e-9)


@pytest.mark.parametrize("case", [Case("flush", (1, 1)), Case("data_parallel", (2,))], ids=str)
def test_evaluations_run_the_step(case: Case) -> None:
    """Their loss is that of the step, and a metric gets its whole output."""
    judged = replace(pairs(), evaluate=Evaluation(pairs().data[:13], metrics={"told": told}))
    graph = capture(judged, 2)
    plan = case.plan(graph)
    trains = Executable(graph, plan.layout(graph), plan.compile(graph))
    trained = run_inline(trains, 2)
    model = copy.deepcopy(user_module(judged.model)).eval()
    model.load_state_dict({name: tensor for own in trained.weights.values() for name, tensor in own.items()})
    with torch.no_grad():
        output = both_losses(model, *judged.batch(range(13)).values())
    found = evaluated(evaluation_executable(trains, plan.strategy, 2), trained)
    assert found == pytest.approx([float(output["loss"]), float(told(output))], rel=1e-9)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_step_in_a_shorter_precision(precision: str) -> None:
    """The step runs with the copy of the model in that precision, and trains the job's own weights."""
    job = replace(triplets(), precision=precision, model=Encoder())
    data = [{key: x.float() for key, x in sample.items()} for sample in job.data]
    graph = capture(replace(job, data=data), 2)
    plan = Case("flush", (1, 1)).plan(graph)
    program = plan.compile(graph)
    found = run_inline(Executable(graph, plan.layout(graph), program), STEPS)
    expected = rule_loop(graph, plan, program.rule, STEPS * BATCH // 2)
    assert_same_losses(found.losses, expected.losses, 1e-6)
    for own in found.weights.values():
        assert_same_weights(own, expected.weights, 1e-6)


@pytest.mark.parametrize("name", JOBS)
def test_the_reference_loop_is_the_users_loop(name: str) -> None:
    """The loop that runs are held to elsewhere runs the step as well."""
    job = captured(name).job
    found, (losses, weights) = plain_loop(job, BATCH, STEPS), users_loop(job)
    assert [loss for _, loss, _ in found.losses] == pytest.approx(losses, rel=1e-12)
    assert_same_weights(found.weights, weights, 1e-12)

"""Optimizers that need whole weights are detected, and no plan shards them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.load import LoadedPlan, validate
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.checks.elementwise_step import check_stages, is_coupled, is_elementwise
from hocket.profiling.job.job import Job

Optimizers = Callable[[Any], torch.optim.Optimizer]


class NormalizedSGD(torch.optim.Optimizer):
    """Steps of length `lr`: each depends on the norm of the whole gradient."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Step each weight."""
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.sub_(group["lr"] * p.grad / p.grad.norm())


def job(optimizer: Optimizers) -> Job:
    """A job of two linear layers with an optimizer."""
    data = [(torch.ones(8), torch.ones(8)) for _ in range(8)]
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    return Job(model, nn.functional.mse_loss, data, optimizer, 8)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), True),
        (lambda params: torch.optim.AdamW(params, lr=0.1), True),
        (NormalizedSGD, False),
    ],
    ids=["sgd", "adamw", "normalized"],
)
def test_an_optimizer_is_elementwise_or_not(optimizer: Optimizers, expected: bool) -> None:
    """The profile records whether an optimizer is elementwise, also through JSON."""
    assert is_elementwise(job(optimizer)) is expected
    profile = sketch(job(optimizer), (1, 2)).profile
    assert profile.elementwise_step is expected
    assert type(profile).from_json(profile.to_json()) == profile


class ClippingSGD(torch.optim.SGD):
    """Steps that are clipped by the norm of all gradients, as some implementations of LAMB do."""

    limit = 0.1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Clip, and step."""
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], self.limit)
        super().step(closure)


class SeldomClippingSGD(ClippingSGD):
    """Only large gradients are clipped."""

    limit = 1000.0


class NoisySGD(torch.optim.SGD):
    """Steps with noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Step, and add noise."""
        super().step(closure)
        for p in (p for group in self.param_groups for p in group["params"]):
            p.add_(torch.randn_like(p), alpha=0.01)


@pytest.mark.parametrize("optimizer", [ClippingSGD, SeldomClippingSGD])
def test_an_optimizer_that_looks_at_several_weights_is_refused_for_stages(optimizer: Any) -> None:
    """An optimizer of a stage would have some of the weights only, and clip by another norm."""
    with pytest.raises(RefusedError, match=r"Job.optimizer: found .*ClippingSGD.*depends on the other weights"):
        check_stages(job(lambda params: optimizer(params, lr=0.1)))
    assert not is_elementwise(job(lambda params: optimizer(params, lr=0.1)))
    profile = sketch(job(lambda params: optimizer(params, lr=0.1)), (1, 2)).profile
    assert profile.coupled_step
    assert type(profile).from_json(profile.to_json()) == profile


def test_no_plan_has_several_stages_with_such_an_optimizer() -> None:
    """The search leaves out plans with several stages, and says why. Plans edited by hand are refused."""
    profile = chain(6, forward_s=0.01, backward_s=0.02, device_type="v100-16gb")
    coupled = replace(profile, coupled_step=True, elementwise_step=False, optimizer="Lamb")
    cluster = Cluster("two", (Level("server", 2, 1e11),), profile.device_type)
    found = search(coupled, cluster, PlanRequest(8))
    assert {len(one.plan.stages) for one in found.candidates} == {1}
    assert any(one.strategy == "flush" and "depends on the other weights" in one.reason for one in found.refused)
    plan = next(one.plan for one in search(profile, cluster, PlanRequest(8)).candidates if len(one.plan.stages) > 1)
    profile.check_stages("stages", 2)
    coupled.check_stages("stages", 1)
    with pytest.raises(RefusedError, match=r"plan.yaml: stages: found 2, with Lamb.*depends on the other weights"):
        validate(LoadedPlan(replace(plan, shard="none"), coupled, "plan.yaml"))


def matrices_apart(params: Any) -> torch.optim.Optimizer:
    """Return an optimizer of two groups, of matrices and of vectors."""
    own = list(params)
    return torch.optim.AdamW([{"params": [p for p in own if p.dim() > 1]}, {"params": [p for p in own if p.dim() < 2]}])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: torch.optim.AdamW(params, lr=0.1, foreach=True),
        lambda params: torch.optim.Adafactor(params, lr=0.1),
        lambda params: NoisySGD(params, lr=0.1),
        NormalizedSGD,
        matrices_apart,
    ],
    ids=["sgd", "adamw", "adafactor", "noisy", "normalized", "groups"],
)
def test_stages_step_what_looks_at_one_weight(optimizer: Optimizers) -> None:
    """Each weight may be looked at as a whole; noise is not a reason to refuse."""
    own = job(optimizer)
    state = torch.get_rng_state()
    check_stages(own)
    assert not is_coupled(own)
    assert torch.equal(torch.get_rng_state(), state)


def test_adafactor_is_not_elementwise() -> None:
    """Adafactor is not elementwise: its moments are means over rows and columns."""
    assert not is_elementwise(job(lambda params: torch.optim.Adafactor(params, lr=0.1)))


def test_no_plan_shards_what_the_optimizer_reads_whole() -> None:
    """The search leaves out plans that shard such an optimizer.

    Requested plans and plans edited by hand are refused.
    """
    profile = replace(
        chain(6, forward_s=0.01, backward_s=0.02, device_type="v100-16gb"),
        elementwise_step=False,
        optimizer="Adafactor",
    )
    cluster = Cluster("two", (Level("server", 2, 1e11),), profile.device_type)
    found = search(profile, cluster, PlanRequest(8))
    assert found.candidates
    assert {one.plan.shard for one in found.candidates} == {"none"}
    assert any(one.strategy == "fully_sharded" and "whole weights" in one.reason for one in found.refused)
    for shard in ("optimizer", "full"):
        with pytest.raises(RefusedError, match=r"Adafactor.*whole weights"):
            search(profile, cluster, PlanRequest(8, shards=(shard,)))
    plan = next(
        one.plan for one in found.candidates if one.strategy == "data_parallel" and len(one.plan.stages[0].devices) == 2
    )
    with pytest.raises(RefusedError, match=r"plan.yaml: shard.*whole weights"):
        validate(LoadedPlan(replace(plan, shard="optimizer"), profile, "plan.yaml"))

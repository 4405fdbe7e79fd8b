"""A rehearsal loads, trains and steps as a worker does."""

import itertools

import pytest
import torch

from hocket import models
from hocket.cost.compute import Columns
from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.measure.measure import measure
from hocket.profiling.measure.request import MeasureRequest
from hocket.profiling.measure.worker_costs import StepMode, WorkerCosts

CPU = torch.device("cpu")


def rehearsal(job: Job, size: int = 2) -> WorkerCosts:
    """A worker for microbatches of some samples."""
    return WorkerCosts(capture(job).for_size(size), size, CPU)


def ticks() -> float:
    """A clock that always returns 0."""
    return 0.0


def test_steps_train_and_the_model_stays() -> None:
    """A step in place changes the current weights; a step on a copy changes the copy."""
    job = models.small_job("gpt")
    before = {name: p.detach().clone() for name, p in job.model.named_parameters()}
    worker = rehearsal(job)
    worker.once(ticks, StepMode.COPYING)
    found = worker.stage.parameters()
    assert all(torch.equal(found[name], p) for name, p in before.items())
    copied = {name: p.detach().clone() for name, p in worker.masters.items()}
    assert any(not torch.equal(copied[name], p) for name, p in before.items())
    worker.once(ticks)
    assert any(not torch.equal(found[name], p) for name, p in before.items())
    assert all(worker.masters[name].data_ptr() == p.data_ptr() for name, p in found.items())
    assert all(torch.equal(p, before[name]) for name, p in job.model.named_parameters())


def test_the_least_step() -> None:
    """The least step changes the smallest parameter and no other."""
    worker = rehearsal(models.small_job("gpt", optimizer=lambda p: torch.optim.SGD(p, lr=1.0)))
    before = {name: p.detach().clone() for name, p in worker.masters.items()}
    worker.once(ticks, StepMode.LEAST)
    changed = [name for name, p in worker.masters.items() if not torch.equal(p, before[name])]
    assert [before[name].numel() for name in changed] == [min(p.numel() for p in before.values())]


def test_the_gradient_of_each_step_is_its_own() -> None:
    """Each step uses its own microbatch's gradient alone, under plain SGD."""
    job = models.small_job("gpt", optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    worker = rehearsal(job)
    seen: list[float] = []
    step = worker.optimizer.step

    def looked() -> None:
        grads = [p.grad for p in worker.masters.values() if p.grad is not None]
        seen.append(float(torch.stack([g.norm() for g in grads]).norm()))
        step()

    worker.optimizer.step = looked  # type: ignore[method-assign]
    worker._loaded = 0
    worker.once(ticks)
    worker._loaded = 0
    worker.once(ticks)
    assert seen[0] > 0
    assert seen[1] == pytest.approx(seen[0], rel=1e-5)


def test_every_part_is_timed() -> None:
    """With a clock that advances by 1 at each read, each part costs one second."""
    count = itertools.count()
    seconds = rehearsal(models.small_job("gpt")).once(lambda: float(next(count)))
    assert (seconds.load, seconds.forward, seconds.backward, seconds.step) == (1.0, 1.0, 1.0, 1.0)
    profile = measure(models.small_job("gpt"), (1, 2), MeasureRequest(clock=lambda: float(next(count))))
    assert profile.load_s == (1.0, 1.0)
    assert Columns(profile).step_s(range(len(profile.layers)), copies=True) == pytest.approx(1.0)
    # A step of one parameter also costs one second: all of it is fixed cost.
    assert profile.step_call_s == 1.0
    assert all(layer.copy_s == layer.step_s == 0.0 for layer in profile.layers)


def test_nothing_to_train() -> None:
    """A model with only frozen parameters is refused."""
    job = models.small_job("gpt")
    for p in job.model.parameters():
        p.requires_grad_(False)
    with pytest.raises(InputError, match="requires a gradient"):
        rehearsal(job)

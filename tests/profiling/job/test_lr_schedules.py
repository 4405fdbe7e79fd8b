"""Learning-rate schedules, compared with transformers and torch.

Names are those of transformers; functions behave as in torch's LambdaLR; torch's schedulers are replayed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import (
    LearningRates,
    check_optimizer_and_rates,
    rates_of,
    shown_rates,
)
from hocket.profiling.job.learning_rate.named_schedules import SCHEDULES, NamedSchedule
from hocket.profiling.job.optimizer import whole_optimizer

STEPS, WARM = 20, 4
BASE = 0.3
# Arguments in Hocket, and the further arguments in transformers.
NAMED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("constant", {}, {}),
    ("constant_with_warmup", {"warmup_steps": WARM}, {}),
    ("linear", {"steps": STEPS}, {}),
    ("linear", {"steps": STEPS, "warmup_steps": WARM}, {}),
    ("cosine", {"steps": STEPS, "warmup_steps": WARM}, {}),
    ("cosine", {"steps": STEPS, "warmup_steps": 0, "num_cycles": 1.7}, {"num_cycles": 1.7}),
    ("cosine_with_restarts", {"steps": STEPS, "warmup_steps": WARM, "num_cycles": 3}, {"num_cycles": 3}),
    ("polynomial", {"steps": STEPS, "warmup_steps": WARM}, {}),
    ("polynomial", {"steps": STEPS, "power": 2.5, "lr_end": 1e-3}, {"power": 2.5, "lr_end": 1e-3}),
    ("inverse_sqrt", {"warmup_steps": WARM}, {}),
    ("inverse_sqrt", {"warmup_steps": 0, "timescale": 9}, {"timescale": 9}),
    ("cosine_with_min_lr", {"steps": STEPS, "warmup_steps": WARM, "min_lr": 0.01}, {"min_lr": 0.01}),
    ("cosine_with_min_lr", {"steps": STEPS, "min_lr_rate": 0.1}, {"min_lr_rate": 0.1}),
    (
        "cosine_warmup_with_min_lr",
        {"steps": STEPS, "warmup_steps": WARM, "min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
        {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
    ),
    ("cosine_warmup_with_min_lr", {"steps": STEPS, "warmup_steps": WARM, "min_lr": 0.1}, {"min_lr": 0.1}),
    *(
        (
            "warmup_stable_decay",
            {"steps": STEPS, "warmup_steps": WARM, "decay_steps": 7, **kinds, "min_lr_ratio": 0.1},
            {"num_decay_steps": 7, **kinds, "min_lr_ratio": 0.1},
        )
        for kind in ("linear", "cosine", "1-sqrt")
        for kinds in ({"warmup_type": kind, "decay_type": kind},)
    ),
]


def job(schedule: Any, groups: bool = False, lr: float | None = BASE) -> Job:
    """A small job with one group or two."""

    def optimizer(params: Any) -> torch.optim.Optimizer:
        halves = [{"params": params[:1]}, {"params": params[1:], "lr": 0.07}]
        return torch.optim.SGD(halves if groups else params, lr=lr, momentum=0.5)

    return Job(nn.Linear(2, 2), nn.MSELoss(), [(torch.ones(2),) * 2] * 4, optimizer, 2, lr_schedule=schedule)


def by_torch(make: Callable[[torch.optim.Optimizer], Any], steps: int, groups: bool = False) -> list[list[float]]:
    """Return the rates of every group under a torch scheduler, step by step."""
    optimizer = whole_optimizer(job(None, groups))
    optimizer.step()
    scheduler, found = make(optimizer), []
    optimizer.step()
    for _ in range(steps):
        found.append([float(group["lr"]) for group in optimizer.param_groups])
        scheduler.step()
    return found


@pytest.mark.parametrize(("name", "ours", "theirs"), NAMED)
def test_names_are_those_of_transformers(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Named schedules equal transformers to the bit, in each group.

    Rising, falling and past the end.
    """
    transformers = pytest.importorskip("transformers")
    counts = {
        f"num_{'training_' if key == 'steps' else ''}{key}": ours[key]
        for key in ("steps", "warmup_steps")
        if key in ours
    }
    if "steps" in ours or name == "inverse_sqrt":
        counts.setdefault("num_warmup_steps", 0)

    def make(optimizer: torch.optim.Optimizer) -> Any:
        return transformers.get_scheduler(name, optimizer, **counts, scheduler_specific_kwargs=theirs)

    expected = by_torch(make, STEPS + 6, groups=True)
    rates = rates_of(job({"name": name, **ours}, groups=True))
    assert [rates.lr(step) for step in range(STEPS + 6)] == expected


def test_every_name_of_transformers_is_here_or_refused_with_the_reason() -> None:
    """Every name of transformers is known, or refused because it depends on the loss."""
    transformers = pytest.importorskip("transformers")
    assert {name for name, _, _ in NAMED} == set(SCHEDULES)
    for kind in transformers.SchedulerType:
        if kind.value not in SCHEDULES:
            with pytest.raises(InputError, match=f"'{kind.value}', whose rate depends on the loss"):
                NamedSchedule.read(kind.value)


def test_functions_are_those_of_lambda_lr() -> None:
    """Functions equal LambdaLR to the bit, one for all groups or one for each."""

    def warm(step: int) -> float:
        return min(1, (step + 1) / 7)

    def fall(step: int) -> float:
        return 0.9**step

    for given in (warm, [warm, fall], (fall, warm)):
        theirs = list(given) if isinstance(given, tuple) else given
        expected = by_torch(lambda optimizer, f=theirs: lr_scheduler.LambdaLR(optimizer, f), 12, groups=True)
        rates = rates_of(job(given, groups=True))
        assert [rates.lr(step) for step in range(12)] == expected


@pytest.mark.parametrize(
    "make",
    [
        partial(lr_scheduler.StepLR, step_size=3),
        partial(lr_scheduler.CosineAnnealingLR, T_max=9),
        partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=30),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)],
            [4],
        ),
    ],
    ids=["step", "cosine", "one cycle", "sequential"],
)
def test_torchs_schedulers_are_played(make: Callable[..., Any]) -> None:
    """Replayed torch schedulers equal torch to the bit, in any order of steps.

    The scheduler's momentum is set too.
    """
    expected = by_torch(make, 16, groups=True)
    rates = rates_of(job(make, groups=True))
    for step in (0, 5, 3, 15, 0, *range(16)):
        assert rates.lr(step) == expected[step]
    optimizer = whole_optimizer(job(None, groups=True))
    LearningRates(job(make, groups=True), optimizer).set(optimizer, 5)
    assert [group["lr"] for group in optimizer.param_groups] == expected[5]
    if "OneCycle" in str(make):
        assert optimizer.param_groups[0]["momentum"] not in (0.5, 0.0)


class Decaying(lr_scheduler.LRScheduler):
    """Sets the weight decay of each step, and dampening for two steps."""

    def get_lr(self) -> list[float]:
        """Leave the rates as they are."""
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.1 * self.last_epoch
            group["dampening"] = 0.3 if self.last_epoch in (2, 3) else 0.0
            group["seen"] = self.last_epoch
        return [group["lr"] for group in self.optimizer.param_groups]


def test_every_entry_that_a_scheduler_changes_is_set() -> None:
    """A torch scheduler may change any entry of the groups, such as the weight decay.

    Entries that it leaves alone are not written, because an optimizer may keep counters of its own in its groups.
    """
    made = job(Decaying, groups=True)
    optimizer = whole_optimizer(made)
    rates = LearningRates(made, optimizer)
    for group in optimizer.param_groups:
        group["nesterov"] = "its own"
    for step in (0, 1, 3, 5, 2, 9):
        rates.set(optimizer, step)
        for group in optimizer.param_groups:
            assert group["weight_decay"] == 0.1 * step
            assert group["dampening"] == (0.3 if step in (2, 3) else 0.0)
            assert group["nesterov"] == "its own"
            assert "seen" not in group
    assert rates.lr(4) == [BASE, 0.07]


def test_a_rate_that_is_a_tensor_stays_one() -> None:
    """A rate that is a tensor stays a tensor; numbers are written into it."""
    made = job(lambda step: 0.5, lr=torch.tensor(0.25))
    optimizer = whole_optimizer(made)
    rate = optimizer.param_groups[0]["lr"]
    LearningRates(made, optimizer).set(optimizer, 3)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.125


def test_shown_rates() -> None:
    """Without a schedule, shown rates are the optimizer's own.

    With step hooks they are None.
    """

    def hooked(params: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(params, lr=0.1)
        made.register_step_pre_hook(lambda *_: None)
        return made

    assert shown_rates(job(None, groups=True))(3) == [BASE, 0.07]
    assert shown_rates(job("constant"))(3) == [BASE]
    other = Job(nn.Linear(2, 2), nn.MSELoss(), [(torch.ones(2),) * 2] * 4, hooked, 2)
    assert shown_rates(other)(3) is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("cosin", "Did you mean 'cosine' or"),
        ("cosine", 'found \'cosine\' without steps; .* Write lr_schedule={"name": "cosine", "steps": 1000}'),
        ({"steps": 3}, "a dictionary without `name`"),
        ({"name": "cosine", "num_training_steps": 3}, "num_training_steps.*unknown argument"),
        ({"name": "cosine", "num_warmup_steps": 3, "steps": 4}, "Did you mean 'warmup_steps'?"),
        ({"name": "cosine", "steps": 0}, "a whole number >= 1"),
        ({"name": "cosine", "steps": 10.5}, "a whole number >= 1"),
        ({"name": "cosine", "steps": True}, "a whole number >= 1"),
        ({"name": "cosine", "steps": 10, "warmup_steps": 11}, "at most steps = 10"),
        ({"name": "polynomial", "steps": 10, "power": float("nan")}, "a number >= 0"),
        ({"name": "cosine_with_min_lr", "steps": 10}, "neither min_lr nor min_lr_rate"),
        ({"name": "cosine_with_min_lr", "steps": 10, "min_lr": 0.1, "min_lr_rate": 0.1}, "both min_lr and min_lr_rate"),
        ({"name": "warmup_stable_decay", "decay_steps": 3}, "neither steps nor stable_steps"),
        ({"name": "warmup_stable_decay", "decay_steps": 3, "steps": 9, "decay_type": "quick"}, "one of linear, cosine"),
        ([], "an empty list"),
        ([lambda step: 1, 0.5], "a list with 0.5"),
        (0.5, "a function from a step to a factor"),
    ],
)
def test_what_is_no_schedule(given: Any, told: str) -> None:
    """An invalid schedule is refused when the job is created."""
    with pytest.raises(InputError, match=told.replace("?", r"\?")) as caught:
        job(given)
    assert caught.value.place.startswith("Job.lr_schedule")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([lambda step: 1.0] * 3, "found 3 functions; expected 2, one for each parameter group"),
        (lambda step: None, "a NoneType at step 0"),
        (lambda step: -0.5, r"the factor -0.5 at step 0; .* Keep it at 0 or more"),
        (lambda step: float("nan"), "the factor nan at step 0"),
        (lambda step: step.none, r"AttributeError: .*none.* \(.*test_lr_schedules.py, line "),
        (lambda optimizer: 0.5, "found a float; expected a torch scheduler"),
        (
            lr_scheduler.ReduceLROnPlateau,
            "a ReduceLROnPlateau, which depends on the loss.* let the rate depend on the step",
        ),
        (lambda opt: lr_scheduler.StepLR(opt, 3), "int is not an Optimizer.* Name the first argument .* `optimizer`"),
        (
            lambda optimizer: lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), 3),
            "of another optimizer",
        ),
        ({"name": "polynomial", "steps": 10, "lr_end": 5.0}, "expected lr_end below lr"),
    ],
)
def test_a_schedule_that_does_not_go_with_the_optimizer(given: Any, told: str) -> None:
    """A schedule that does not match the optimizer is refused before any computation."""
    made = job(given, groups=True)
    with pytest.raises(InputError, match=told):
        check_optimizer_and_rates(made)


def test_a_schedule_that_ends_too_early() -> None:
    """A schedule that ends or falls below zero gives an error with the step."""
    rates = rates_of(job(partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=5)))
    with pytest.raises(InputError, match="Tried to step 6 times"):
        rates.at(9)
    with pytest.raises(InputError, match="at step 11"):
        rates_of(job(lambda step: 1 - step / 10)).at(11)

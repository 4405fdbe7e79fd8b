"""Two jobs are alike if training them would be the same run."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hocket.errors import InputError
from hocket.profiling.checks import one_loss
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import check_likeness, difference, likeness
from hocket.profiling.job.loss_weight import tokens


def made(seed: int = 0, width: int = 4, bias: bool = True, dtype: torch.dtype = torch.float32) -> Job:
    """A job with weights and with buffers that hold NaN, infinity and complex numbers."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width, bias=bias), nn.BatchNorm1d(width), nn.Linear(width, 2)).to(dtype)
    model.register_buffer("odd", torch.tensor([float("nan"), float("inf"), 1.0]))
    model.register_buffer("phase", torch.tensor([1 + 2j]))
    model.register_buffer("none", torch.zeros(0))
    data = [(torch.full((3,), float(i)).to(dtype), torch.tensor(i % 2)) for i in range(8)]
    return Job(model, nn.CrossEntropyLoss(), data, lambda p: torch.optim.SGD(p, lr=0.1), 2, name="one")


def loaded(job: Job) -> Job:
    """The job after a step of training, as if weights had been loaded."""
    with torch.no_grad():
        job.model[2].weight += 1e-3 * torch.ones_like(job.model[2].weight)
    return job


class Scaled(nn.Module):
    """A module of the user's own with a setting that neither a tensor nor a text shows."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by * x


def changed(frozen: bool = False, evaluated: bool = False, dropout: float = 0.5, by: float = 1.0) -> Job:
    """A job with changes to modules that its tensors do not show."""
    job = made()
    assert isinstance(job.model, nn.Sequential)
    job.model.append(nn.Dropout(dropout)).append(Scaled(by))
    job.model[0].requires_grad_(not frozen)
    job.model[2].train(not evaluated)
    return job


def seven_times(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss that is larger than the job's."""
    return 7 * nn.functional.cross_entropy(output, target)


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss with the name of torch's, and other values."""
    return seven_times(output, target)


def groups(rate: float = 0.1, first: int = 2) -> Any:
    """An optimizer of two groups."""

    def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": params[:first]}, {"params": params[first:], "lr": rate}], lr=0.1)

    return optimizer


def test_made_again_it_is_alike() -> None:
    """A rebuilt job with the same seed is alike, also through JSON and rounding."""
    wanted = json.loads(json.dumps(likeness(made()), allow_nan=False))
    assert difference(wanted, likeness(made())) == ""
    other = made()
    with torch.no_grad():
        other.model[0].weight *= 1 + 1e-6
    assert difference(wanted, likeness(other)) == ""
    check_likeness(other, wanted)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (made(seed=1), "0.weight has other values"),
        (loaded(made()), "2.weight has other values"),
        (made(width=5), "0.weight is torch.float32 [5, 3] and not torch.float32 [4, 3]"),
        (made(dtype=torch.float64), "0.weight is torch.float64"),
        (made(bias=False), "there is no 0.bias"),
        (replace(made(), batch_size=4), "batch_size is 4 and not 2"),
        (replace(made(), seed=4), "seed is 4 and not 0"),
        (replace(made(), data=made().data * 2), "samples is 16 and not 8"),
        (replace(made(), name="two"), "name is two and not one"),
        (replace(made(), subtask_bytes=512), "subtask_bytes is 512 and not None"),
        (replace(made(), optimizer=torch.optim.AdamW), "optimizer is AdamW and not SGD"),
        (replace(made(), optimizer=lambda p: torch.optim.SGD(p, lr=5.0)), "lr of parameter group 0 is 5.0 and not 0.1"),
        (replace(made(), optimizer=groups()), "parameter group of 1.weight is 1 and not 0"),
        (replace(made(), lr_schedule="constant"), "lr_schedule is constant and not None"),
        (replace(made(), loss=seven_times), "loss is seven_times and not CrossEntropyLoss"),
        (replace(made(), data=[(100 + x, y) for x, y in made().data]), "Job.data["),
    ],
)
def test_another_job_is_refused(other: Job, told: str) -> None:
    """A different job is refused with the first difference and the next step."""
    with pytest.raises(InputError, match=r"torch\.manual_seed") as caught:
        check_likeness(other, likeness(made()))
    assert told in caught.value.found


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"frozen": True}, "0.weight does not require a gradient"),
        (
            {"evaluated": True},
            "module 2 is Linear(in_features=4, out_features=2, bias=True) in evaluation mode and not",
        ),
        ({"dropout": 0.1}, "module 3 is Dropout(p=0.1, inplace=False) in training mode and not Dropout(p=0.5,"),
        ({"by": 3.0}, "the loss of its first sample is "),
    ],
)
def test_a_changed_model_is_refused(other: dict[str, Any], told: str) -> None:
    """Frozen parameters, modes and settings of modules are compared."""
    assert difference(likeness(changed()), likeness(changed())) == ""
    with pytest.raises(InputError) as caught:
        check_likeness(changed(**other), likeness(changed()))
    assert told in caught.value.found


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"loss": nn.functional.cross_entropy}, {"loss": cross_entropy}, "the loss of its first sample is "),
        ({"lr_schedule": lambda step: 1.0}, {"lr_schedule": lambda step: 0.5}, "at step 0 is 0.05 and not 0.1"),
        (
            {"lr_schedule": lambda step: 1.0},
            {"lr_schedule": lambda step: min(1.0, 500 / (step + 1))},
            "at step 1000 is 0.0",
        ),
        ({"optimizer": groups()}, {"optimizer": groups(0.2)}, "lr of parameter group 1 is 0.2 and not 0.1"),
        ({"optimizer": groups()}, {"optimizer": groups(first=1)}, "parameter group of 0.bias is 1 and not 0"),
        (
            {"loss_weight": tokens(1)},
            {"loss_weight": tokens(1, ignore=0)},
            "loss_weight is Tokens(key='item1', ignore=0",
        ),
        ({"loss_weight": lambda batch: 1}, {"loss_weight": lambda batch: 2}, "the loss of its first sample is "),
    ],
)
def test_changed_settings_are_refused(one: dict[str, Any], other: dict[str, Any], told: str) -> None:
    """Functions are compared by what they return."""
    assert difference(likeness(replace(made(), **one)), likeness(replace(made(), **one))) == ""
    assert told in difference(likeness(replace(made(), **one)), likeness(replace(made(), **other)))


def test_the_job_is_not_changed() -> None:
    """The comparison leaves buffers, modes and the random generators as they are."""
    job = made()
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    draws = torch.get_rng_state()
    assert likeness(job)["loss"] is not None
    assert torch.equal(draws, torch.get_rng_state())
    assert all(module.training for module in job.model.modules())
    for name, value in job.model.state_dict().items():
        assert torch.equal(value.nan_to_num(), before[name].nan_to_num()), name


def test_no_loss_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards of much computation, or with an error, end without a loss; everything else is compared."""
    assert likeness(replace(made(), loss=lambda output, target: output.missing))["loss"] is None
    monkeypatch.setattr(one_loss, "_MOST_FLOPS", 10)
    found = likeness(made())
    assert found["loss"] is None
    assert difference(found, likeness(made())) == ""


def test_samples_that_differ_at_every_read() -> None:
    """Data that do not repeat are told as such, and not as another job."""

    class Counted(list[Any]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            type(self).reads += 1
            x, y = super().__getitem__(index)
            return x + type(self).reads, y

    job = replace(made(), data=Counted(made().data))
    with pytest.raises(InputError, match="at the second read"):
        check_likeness(job, likeness(job))


def test_schedules_that_end() -> None:
    """A schedule that fails at a later step is compared as far as it goes."""
    factors = [1.0] * 20
    job = replace(made(), lr_schedule=lambda step: factors[step])
    found = likeness(job)["optimizer"]
    assert found["lr of parameter group 0 at step 10"] == 0.1
    assert not any("at step 100" in name for name in found)


def test_more_than_was_wanted() -> None:
    """An additional parameter is a difference too."""
    wanted = likeness(made())
    del wanted["tensors"]["0.bias"]
    assert difference(wanted, likeness(made())) == "there is 0.bias as well"

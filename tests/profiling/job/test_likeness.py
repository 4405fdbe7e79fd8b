"""Two jobs are alike if training them would be the same run."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import check_likeness, difference, likeness


def made(seed: int = 0, width: int = 4, bias: bool = True, dtype: torch.dtype = torch.float32) -> Job:
    """A job with weights and with buffers that hold NaN, infinity and complex numbers."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width, bias=bias), nn.BatchNorm1d(width), nn.Linear(width, 2)).to(dtype)
    model.register_buffer("odd", torch.tensor([float("nan"), float("inf"), 1.0]))
    model.register_buffer("phase", torch.tensor([1 + 2j]))
    model.register_buffer("none", torch.zeros(0))
    data = [(torch.zeros(3), torch.tensor(0))] * 8
    return Job(model, nn.CrossEntropyLoss(), data, lambda p: torch.optim.SGD(p, lr=0.1), 2)


def loaded(job: Job) -> Job:
    """The job after a step of training, as if weights had been loaded."""
    with torch.no_grad():
        job.model[2].weight += 1e-3 * torch.ones_like(job.model[2].weight)
    return job


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
    ],
)
def test_another_job_is_refused(other: Job, told: str) -> None:
    """A different job is refused with the first difference and the next step."""
    with pytest.raises(InputError, match=r"torch\.manual_seed") as caught:
        check_likeness(other, likeness(made()))
    assert told in caught.value.found


def test_more_than_was_wanted() -> None:
    """An additional parameter is a difference too."""
    wanted = likeness(made())
    del wanted["tensors"]["0.bias"]
    assert difference(wanted, likeness(made())) == "there is 0.bias as well"

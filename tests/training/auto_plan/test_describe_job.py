"""Description of a job: it changes with everything that decides a profile, and with nothing else."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import load_job
from hocket.training.auto_plan.describe_job import describe_job
from tests.limits import HUNG_S
from tests.paths import ROOT


class Squared(nn.Module):
    """Model of the user, with code of its own."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Linear(3, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the squared output."""
        return self.inner(x) ** 2


class Cubed(nn.Module):
    """The same modules and weights, with another forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the cubed output."""
        return self.inner(x) ** 3


Cubed.__name__ = Cubed.__qualname__ = "Squared"


def sgd(**settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Return an optimizer function."""
    return lambda parameters: torch.optim.SGD(parameters, **({"lr": 0.1} | settings))


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return a mean loss."""
    return (output - target).mean()


def made(seed: int = 0, inputs: int = 3) -> Job:
    """Return the job that tests change."""
    torch.manual_seed(seed)
    return Job(Squared(), loss, [(torch.ones(inputs), torch.ones(4))] * 8, sgd(), batch_size=4)


WORKS = {
    "width": {"model": Squared(5), "data": [(torch.ones(3), torch.ones(5))] * 8},
    "code": {"model": Cubed()},
    "type": {"model": Squared().double()},
    "frozen": {"model": Squared().requires_grad_(False)},
    "batch": {"batch_size": 8},
    "precision": {"precision": "bfloat16"},
    "clip": {"clip_grad_norm": 1.0},
    "clip each stage": {"clip_grad_norm": 1.0, "clip_grad_norm_over": "stage"},
    "momentum": {"optimizer": sgd(momentum=0.9)},
    "optimizer": {"optimizer": lambda parameters: torch.optim.Adam(parameters)},
    "loss": {"loss": lambda output, target: (output - target).abs().mean()},
    "sample": {"data": [(torch.ones(2, 3), torch.ones(2, 4))] * 8},
}


@pytest.mark.parametrize("change", WORKS.values(), ids=WORKS)
def test_a_changed_job_has_another_description(change: dict[str, Any]) -> None:
    """Model, code, types, batch, optimizer, precision, loss and sample all decide seconds or bytes."""
    assert describe_job(replace(made(), **change)) != describe_job(made())


@pytest.mark.parametrize(
    "change",
    [{"optimizer": sgd(lr=0.5)}, {"seed": 3}, {"data": [(torch.zeros(3), torch.ones(4))] * 9}],
    ids=["learning rate", "seed", "values of samples"],
)
def test_values_do_not_count(change: dict[str, Any]) -> None:
    """Learning rates, seeds, samples' values and initial weights change no seconds."""
    assert describe_job(replace(made(), **change)) == describe_job(made())
    assert describe_job(made(seed=1)) == describe_job(made())


@pytest.mark.slow
def test_a_description_is_the_same_in_every_process(tmp_path: Path) -> None:
    """It is plain data, and independent of the seed of hashes and of line numbers."""
    text = """
import torch
from torch import nn
from hocket import Job

class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x) if x.dtype in {torch.float32, torch.float64} or "a" in {"a", "b", "c"} else x

job = Job(Net(nn.Linear(2, 2)), nn.functional.mse_loss, [(torch.ones(2), torch.ones(2))] * 4,
    lambda p: torch.optim.SGD(p, lr=0.1), batch_size=2)
"""
    path, moved = tmp_path / "job.py", tmp_path / "moved.py"
    path.write_text(text)
    moved.write_text("\n" + text)
    code = "import json, sys; from hocket.profiling.job.job_file import load_job; "
    code += "from hocket.training.auto_plan.describe_job import describe_job; "
    code += "print(json.dumps(describe_job(load_job(sys.argv[1]))))"
    environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(moved)], capture_output=True, text=True, env=environment, timeout=HUNG_S
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads(json.dumps(describe_job(load_job(path))))

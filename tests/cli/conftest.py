"""A folder with a job, its profile, a cluster and a plan, and a way to run commands in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.hardware.cluster import Cluster, Level
from hocket.plan.search import search
from hocket.profile.synthetic import chain

JOB = """
import torch
from torch import nn

from hocket import Job

torch.manual_seed(0)


class Data:
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return torch.full((6,), i / 16), i % 3


def make_job():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return Job(model, nn.functional.cross_entropy, Data(), lambda p: torch.optim.SGD(p, lr=0.1), batch_size=4, name="tiny")
"""


@dataclass
class Result:
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document, as strictly as other languages read it."""
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; paths become text."""

    def command(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """profile.json, cluster.yaml, plan.yaml and job.py (of another model than the profile's) in the working folder."""
    monkeypatch.chdir(tmp_path)
    profile = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
    cluster = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core")
    profile.save("profile.json")
    cluster.save("cluster.yaml")
    found = search(profile, cluster, 8, strategies=("flush",), profile_path="profile.json")
    found.best.plan.save("plan.yaml")
    Path("job.py").write_text(JOB)
    return tmp_path

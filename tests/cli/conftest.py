"""Fixtures: a folder with a job and a plan, and in-process commands.

The folder also has the profile and the cluster.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain

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
    """Result of a command."""

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
    """Working folder with profile.json, cluster.yaml, plan.yaml and job.py.

    The job's model is not the model of the profile.
    """
    monkeypatch.chdir(tmp_path)
    profile = chain(4, forward_s=0.01, backward_s=0.02, device_type="cpu-core")
    cluster = Cluster("two", (Level("server", 2, 1e9, 1e-5),), "cpu-core")
    profile.save("profile.json")
    cluster.save("cluster.yaml")
    found = search(profile, cluster, PlanRequest(8, strategies=("flush",)), profile_path="profile.json")
    found.best.plan.save("plan.yaml")
    Path("job.py").write_text(JOB)
    return tmp_path


WORKERS = "workers:\n  - {name: v100, workers: 4, per_server: 4, price_usd_per_hour: 2}\n  - {name: k80, workers: 4, price_usd_per_hour: 0.5}\n"


@pytest.fixture
def shared(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working folder with workers.yaml, jobs.json and snapshot.json.

    jobs.json has twelve jobs, and snapshot.json has three other jobs.
    """
    monkeypatch.chdir(tmp_path)
    Path("workers.yaml").write_text(WORKERS)
    words = "cluster generate continuous-multiple --rate 20 --jobs 12 --seed 3 -o jobs.json"
    assert run(*words.split()).code == 0
    jobs = [
        {
            "id": k,
            "job_type": "A3C",
            "total_steps": 100,
            "num_steps_remaining": 50,
            "throughput": {"v100": 2.0 + k, "k80": 1.0},
        }
        for k in range(3)
    ]
    whole = {
        "worker_types": ["v100", "k80"],
        "cluster": {"v100": 1, "k80": 1},
        "instance_costs": {"v100": 2.0, "k80": 0.5},
        "jobs": jobs,
    }
    Path("snapshot.json").write_text(json.dumps(whole, indent=1))
    return tmp_path


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, str]]:
    """Record the messages of simulation bars."""
    words: list[tuple[float, float, str]] = []

    class Bar:
        def __init__(self, title: str, enabled: bool) -> None:
            self.enabled = enabled

        def __enter__(self) -> object:
            return (lambda *said: words.append(said)) if self.enabled else None

        def __exit__(self, *_: object) -> None:
            pass

    for module in ("runs", "load_curves"):
        monkeypatch.setattr(f"hocket.cli.cluster.{module}.Progress", Bar)
    return words

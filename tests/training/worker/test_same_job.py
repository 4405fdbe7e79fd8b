"""Workers that created different jobs do not train them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.runtime.kv_exchange import KVExchange
from hocket.training.train import train
from hocket.training.worker.same_job import check_same_job
from tests.runtime.checkpoint.test_checkpoint import together
from tests.system.tiny import plan, write_job


def seeded(seed: int, batch_size: int = 4) -> Job:
    """A job of one layer, whose weights a seed draws."""
    torch.manual_seed(seed)
    data = [(torch.zeros(3), torch.tensor(0))] * 8
    return Job(nn.Linear(3, 4), nn.functional.cross_entropy, data, torch.optim.SGD, batch_size)


@pytest.mark.parametrize(
    ("third", "told"), [(seeded(1), "weight has other values"), (seeded(0, 8), "batch_size is 8 and not 4")]
)
def test_every_worker_learns_of_the_one_that_differs(third: Job, told: str) -> None:
    """Equal jobs are accepted; otherwise all workers raise one error, with the worker and the first difference."""
    alike = [seeded(0), seeded(0), seeded(0)]
    assert together(3, lambda board: check_same_job(alike[board.rank], board)) == [None] * 3
    jobs = [*alike[:2], third]
    found = together(3, lambda board: check_same_job(jobs[board.rank], board))
    texts = {str(error) for error in found if isinstance(error, InputError)}
    (text,) = texts
    assert text.startswith(f"job: found another job on worker 2 than on worker 0: {told}; expected the same job on")
    assert "Seed it" in text


def test_the_last_digits_may_differ_and_the_store_stays_small() -> None:
    """Weights that differ by rounding are the same job. For equal jobs the workers exchange less than a kilobyte."""
    near = [seeded(0), seeded(0)]
    with torch.no_grad():
        near[1].model.weight.mul_(1 + 1e-6)  # type: ignore[union-attr, operator]
    assert together(2, lambda board: check_same_job(near[board.rank], board)) == [None] * 2

    class Counted(KVExchange):
        def share(self, fact: object) -> list[object]:
            assert len(json.dumps(fact)) < 1000
            return [fact, fact]

    wide = replace(seeded(0), model=nn.Sequential(*(nn.Linear(3, 3) for _ in range(50))))
    check_same_job(wide, Counted(None, 0, 2))


def test_one_worker_has_no_one_to_differ_from() -> None:
    """A single worker trains without a seed."""
    check_same_job(seeded(0), KVExchange(None, 0, 1))


@pytest.mark.slow
@pytest.mark.workers
def test_replicas_of_unseeded_weights_are_refused(tmp_path: Path) -> None:
    """A run ends before its first step if its workers drew different weights.

    Otherwise each replica trains another model with the gradients of all.
    """
    draw = "import numpy\nnoise = numpy.random.default_rng()"
    job = write_job(tmp_path, start=draw)
    job.write_text(job.read_text() + "with torch.no_grad():\n    model[0].bias += float(noise.normal())\n")
    with pytest.raises(InputError, match=r"job: found another job on worker 1 than on worker 0: 0\.bias has other val"):
        train(job, plan("data_parallel", (7, (0, 1))), steps=2, checkpoint=tmp_path / "saved", every=2)
    assert not list((tmp_path / "saved").glob("step-*"))

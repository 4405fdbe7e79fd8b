"""Random numbers in data[i] depend only on the job's seed and the stream position."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hocket.profiling.job.job import Job
from tests.runtime.helpers.plans import momentum

DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),
    "random": lambda: random.random(),
    "numpy's own, seeded from the global one": lambda: float(np.random.default_rng(np.random.randint(2**31)).random()),
}


class Noise:
    """Dataset: sample i is i and a random number."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 5

    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.tensor([self.draw()], dtype=torch.float64)


def job_of(data, seed=0):
    return Job(nn.Linear(1, 1), functional.mse_loss, data, momentum, 2, seed=seed)


def draws(job, position, count):
    """Return (index, draw) of the first samples of the stream."""
    batch = job.batch_at(position, count)
    return list(zip(batch["item0"][:, 0].tolist(), batch["item1"][:, 0].tolist(), strict=True))


@pytest.mark.parametrize("kind", DRAWS)
def test_draws_follow_from_the_place_alone(kind):
    """Each position has one draw, for any cut of the stream and any earlier draws.

    Other positions and seeds have other draws.
    """
    job = job_of(Noise(DRAWS[kind]))
    whole = draws(job, 0, 15)
    DRAWS[kind]()
    assert [found for k in range(15) for found in draws(job, k, 1)] == whole
    assert draws(job, 7, 4) == whole[7:11]
    assert [index for index, _ in whole[:5]] != [index for index, _ in whole[5:10]]
    assert len({draw for _, draw in whole}) == 15
    assert {draw for _, draw in draws(job_of(Noise(DRAWS[kind]), seed=1), 0, 15)}.isdisjoint(d for _, d in whole)


def test_the_generators_are_left_as_they_were():
    """Reading samples does not advance the process's generators.

    Not even the second number of a pair of normal ones is used.
    """

    def numbers():
        return float(torch.rand(())), np.random.randn(), np.random.randn(), random.gauss(0, 1), random.gauss(0, 1)

    job, found = job_of(Noise(np.random.randn)), []
    for reads in (False, True):
        torch.manual_seed(3), np.random.seed(3), random.seed(3)
        first = np.random.randn(), random.gauss(0, 1)
        if reads:
            job.batch_at(0, 5)
        found.append((first, numbers()))
    assert found[0] == found[1]


def test_the_generators_are_put_back_after_an_error():
    """The generators are restored after an error inside data[i]."""

    def fail():
        raise ValueError(np.random.rand())

    random.seed(3)
    state = random.getstate()
    with pytest.raises(Exception, match="ValueError"):
        job_of(Noise(fail)).batch_at(0, 1)
    assert random.getstate() == state

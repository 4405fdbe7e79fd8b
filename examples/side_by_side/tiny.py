"""Model, data and settings that the three scripts of this folder share.

Two workers train. An update has 16 samples: 2 workers x 2 microbatches x 4 samples. An epoch has 10 updates.
"""

import torch
from torch import Tensor, nn

WORKERS, MICROBATCHES, MICROBATCH = 2, 2, 4
BATCH = WORKERS * MICROBATCHES * MICROBATCH
UPDATES_OF_AN_EPOCH = 10
RATE, NORM, EVERY = 0.05, 0.5, 4


def samples(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return `count` pairs of an input, shape (8,), and the number of the largest of its first four values."""
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return list(zip(inputs, inputs[:, :4].argmax(1), strict=True))


TRAINED = samples(BATCH * UPDATES_OF_AN_EPOCH, seed=1)
HELD_OUT = samples(4 * BATCH, seed=2)


def make_model() -> nn.Sequential:
    """Return the model; its weights are the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))


def factor(update: int) -> float:
    """Return the factor of the learning rate at an update, counted from 0: warm-up in three updates, then decay."""
    return min((update + 1) / 3, 1 - update / 40)

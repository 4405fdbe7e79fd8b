"""Small language model with unequal numbers of counted labels.

Some samples have no counted label.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hocket.profiling.job.job import Job

WORDS, LENGTH, SAMPLES = 11, 6, 24
BY_CLASS = torch.linspace(0.5, 3.0, WORDS, dtype=torch.float64)


class Reader(nn.Module):
    """Words (samples, length) to logits (samples, length, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Compute the output for words."""
        return self.head(self.layers(self.words(words)))


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that are not -100."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def sum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over them."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the mean loss of labels, each compared with the output before it.

    Hugging Face's causal language models compute it like this.
    """
    return mean_loss(logits[:, :-1], labels[:, 1:])


def divided_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over them whose gradient is no number either where there are none."""
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), reduction="none")
    counts = labels.flatten().ne(-100).to(each.dtype)
    return (each * counts).sum() / counts.sum()


def class_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean weighted by classes."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=BY_CLASS.to(logits.dtype))


def class_weight(batch: dict[str, Tensor]) -> Tensor:
    """The divisor of `class_loss`."""
    labels = batch["item1"]
    return BY_CLASS[labels[labels.ne(-100)]].sum()


def job(loss: Callable[..., Tensor] = mean_loss, dtype: torch.dtype = torch.float64, **options: Any) -> Job:
    """The job, with seven lengths of labels from none to all."""
    draw = torch.Generator().manual_seed(1)
    data = []
    for k in range(SAMPLES):
        words, labels = (torch.randint(0, WORDS, (LENGTH,), generator=draw) for _ in range(2))
        labels[k % (LENGTH + 1) :] = -100
        data.append((words, labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Reader().to(dtype)
    return Job(model, loss, data, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 8, **options)

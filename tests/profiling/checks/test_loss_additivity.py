"""A loss that is not the mean of its parts' losses is found and explained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hocket
from hocket import models
from hocket.errors import InputError
from hocket.profiling.checks.loss_additivity import Additivity, additivity
from hocket.profiling.checks.mean_draws import Means
from hocket.profiling.job.job import Job
from tests.runtime.helpers import uneven

MIXED = "and no weighted mean of them: the loss or a layer looks at several samples together"


class Noisy(nn.Module):
    """A model that draws random numbers in its forward, in many ways."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(5, 8), nn.Linear(8, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        """(samples, 5) to (samples, 3)."""
        return self.last(self.draw(self.first(x)))


def classes(model: nn.Module, loss: Any = functional.cross_entropy, **options: Any) -> Job:
    """A job of three classes."""
    draw = torch.Generator().manual_seed(1)
    data = [(torch.randn(5, generator=draw), torch.tensor(k % 3)) for k in range(24)]
    return Job(model, loss, data, lambda p: torch.optim.SGD(p, lr=0.1), 8, **options)


def contrastive(outputs: Tensor, labels: Tensor) -> Tensor:
    """A contrastive loss: each sample against the others."""
    outputs = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def padded_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that are not 0."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten().clamp(min=0), ignore_index=0)


def padded() -> Job:
    """A job with samples of different lengths; labels are padded with 0."""
    made = uneven.job(padded_loss, torch.float32)
    for _, labels in made.data:
        labels.add_(1).clamp_(max=uneven.WORDS - 1).masked_fill_(labels < 0, 0)
    return made


@pytest.mark.parametrize("name", ["gpt", "lstm", "vgg", "inception", "resnet"])
def test_means_over_samples_are_none_of_it(name: str) -> None:
    """Means over samples give no finding, and the models are unchanged.

    Models in float32, with dropout and batch normalisation.
    """
    options = {"dropout": 0.1} if name in ("gpt", "lstm") else {}
    job = models.small_job(name, samples=64, **options)
    before = {key: tensor.clone() for key, tensor in job.model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert additivity(job) == Additivity()
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(tensor, before[key]) for key, tensor in job.model.state_dict().items())
    assert all(module.training for module in job.model.modules())
    assert all(p.grad is None for p in job.model.parameters())


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (
            uneven.job(),
            "a mean over the entries of 'item1' that are not -100; give the job loss_weight=hocket.tokens(1)",
        ),
        (uneven.job(uneven.shifted_loss, torch.float32), "give the job loss_weight=hocket.tokens(1, shift=1)"),
        (padded(), "that are not 0; give the job loss_weight=hocket.tokens(1, ignore=0)"),
        (uneven.job(uneven.sum_loss), 'it is a sum over samples; give the job loss_weight="sum"'),
        (
            classes(nn.Linear(5, 3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))),
            "weighted by the classes in 'item1'; give the job loss_weight=lambda batch: weight[batch[\"item1\"]].sum()",
        ),
        (
            classes(nn.Linear(5, 3), lambda o, t: functional.cross_entropy(o, t, weight=torch.tensor([1.0, 2.0, 5.0]))),
            "it is a mean that weights two halves of 2 samples by 0.167 and 0.833; give the job a loss_weight",
        ),
        (classes(nn.Linear(5, 3), lambda o, t: functional.cross_entropy(o - o.mean(0), t)), MIXED),
        (classes(nn.Linear(5, 4), contrastive), MIXED),
        (uneven.job(loss_weight=hocket.tokens(1, shift=2)), "weighted by loss_weight"),
    ],
)
def test_what_is_found_and_what_to_do(job: Job, line: str) -> None:
    """Findings with advice: token means, sums, class weights, losses over samples.

    The line of the advice removes the finding.
    """
    found = additivity(job)
    assert line in found.finding
    assert found.finding.startswith("the loss of 4 samples is not the mean of the losses of its halves")


@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        (uneven.mean_loss, hocket.tokens(1)),
        (uneven.shifted_loss, hocket.tokens(1, shift=1)),
        (uneven.sum_loss, "sum"),
        (uneven.class_loss, uneven.class_weight),
    ],
)
def test_with_the_right_weight_nothing_is_found(loss: Any, weight: Any) -> None:
    """The right loss weight gives no finding, in both types."""
    for dtype in (torch.float32, torch.float64):
        assert additivity(uneven.job(loss, dtype, loss_weight=weight)) == Additivity()


def test_a_model_whose_losses_are_all_alike_is_seen_by_its_gradients() -> None:
    """Gradients show a token mean if an output layer of zeros makes losses equal."""
    job = uneven.job()
    with torch.no_grad():
        job.model.head.weight.zero_()
        job.model.head.bias.zero_()
    assert "(it differs by 0.00%, gradients by" in additivity(job).finding


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: functional.dropout(x, 0.5),
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.25)),
        lambda x: x + torch.randn_like(x),
        lambda x: x + torch.rand(x.shape),
        lambda x: x + torch.empty_like(x).normal_(2.0).add_(torch.empty_like(x).uniform_(1, 2)),
    ],
)
def test_random_numbers_are_their_means(draw: Callable[[Tensor], Tensor]) -> None:
    """Random numbers are replaced by their means, so they give no finding."""
    torch.manual_seed(0)
    assert additivity(classes(Noisy(draw))) == Additivity()


def test_draws_without_a_mean_are_said() -> None:
    """Draws without a known mean, or failing code, give a note and no finding."""
    drawn = additivity(classes(Noisy(lambda x: x[:, torch.randperm(8)])))
    assert drawn.finding == ""
    assert "not compared with that of its parts: random numbers of randperm" in drawn.notes[0]

    def small(outputs: Tensor, labels: Tensor) -> Tensor:
        if len(labels) > 3:
            raise ValueError("too many")
        return functional.cross_entropy(outputs, labels)

    failed = additivity(classes(nn.Linear(5, 3), small))
    assert failed.finding == ""
    assert "ValueError: too many" in failed.notes[0]


def test_a_weight_that_is_none_is_an_error() -> None:
    """A wrong loss weight is an error, not a note."""
    with pytest.raises(InputError, match=r"Job\.loss_weight"):
        additivity(uneven.job(loss_weight=lambda batch: -1))


def test_the_mean_of_dropout_is_its_input() -> None:
    """The mean of dropout is its input, also for the fused operation."""
    x = torch.arange(6.0, requires_grad=True)
    with Means() as means:
        kept, mask = torch.native_dropout(x, 0.5, True)
        kept.sum().backward()
    assert (kept.tolist(), mask.all().item(), x.grad.tolist()) == (x.tolist(), True, [1.0] * 6)  # type: ignore[union-attr]
    assert not means.unknown

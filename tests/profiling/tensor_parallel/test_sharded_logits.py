"""Parts of logits: operations on them, their cross-entropy, and gathering."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.sharded_logits import LogitsLog, LogitsPart, as_part
from hocket.profiling.tensor_parallel.sharded_modules import part_of
from hocket.profiling.tensor_parallel.split import Cut
from hocket.profiling.tensor_parallel.threaded_group import ThreadedGroup
from hocket.profiling.tensor_parallel.vocab_parallel import VocabularyRange

WORDS, WIDTH = 11, 3  # parts of 4, 4 and 3
SHAPE = (2, 5, WORDS)
TARGET = torch.tensor([[0, 3, -100, 4, 10], [7, 8, 9, -100, 1]])


def both(work: Callable[[Tensor], Tensor], shape: tuple[int, ...] = SHAPE, scale: float = 3.0) -> list[str]:
    """Run a function with whole logits and with parts along the last dimension.

    Results and gradients are compared. The return value is the operation that needed the whole, by device; "" for
    none.
    """
    draw = torch.Generator().manual_seed(0)
    whole = (scale * torch.randn(shape, generator=draw, dtype=torch.float64)).requires_grad_()
    expected = work(whole)
    (gradient,) = torch.autograd.grad(expected.sum(), whole)
    cut = Cut(len(shape) - 1, words=WORDS)

    def one(rank: int, members: TensorParallelGroup) -> tuple[Tensor, Tensor, str]:
        leaf = part_of(whole.detach(), cut, WIDTH, rank).clone().requires_grad_()
        journal = LogitsLog()
        found = work(as_part(leaf.view_as(leaf), VocabularyRange.of(cut, WIDTH, rank, members), cut.dim, journal))
        assert type(found) is Tensor
        (own,) = torch.autograd.grad(found.sum(), leaf)
        return found.detach(), own, journal.refused

    runs = ThreadedGroup(WIDTH).run(one)
    for rank, (found, own, _) in enumerate(runs):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(own, part_of(gradient, cut, WIDTH, rank), rtol=1e-12, atol=1e-12)
        assert torch.equal(found, runs[0][0])  # to the bit: ranks continue with equal values
    return [refused for *_, refused in runs]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 4])
@pytest.mark.parametrize("scale", [3.0, 1000.0])
def test_cross_entropy(reduction: str, smoothing: float, ignored: int, scale: float) -> None:
    """Cross-entropy equals torch's in values and gradients, also for huge logits."""
    target = TARGET.clone() if ignored < 0 else TARGET.clamp(min=0)

    def work(logits: Tensor) -> Tensor:
        return functional.cross_entropy(
            logits.flatten(0, 1), target.flatten(), reduction=reduction, ignore_index=ignored, label_smoothing=smoothing
        )

    assert both(work, scale=scale) == [""] * WIDTH


def loss_of(logits: Tensor, target: Tensor = TARGET) -> Tensor:
    """Cross-entropy of the usual shapes."""
    return functional.cross_entropy(logits, target)


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda x: loss_of(x.view(-1, WORDS), TARGET.view(-1)),
    "asked for its size": lambda x: loss_of(x.reshape(-1, x.size(-1)), TARGET.flatten()),
    "by its shape": lambda x: loss_of(x.view(x.shape[0] * x.shape[1], x.shape[-1]), TARGET.flatten()),
    "words second": lambda x: loss_of(x.transpose(1, 2)),
    "permuted": lambda x: loss_of(x.permute(0, 2, 1)),
    "one token": lambda x: loss_of(x[1, 0], TARGET[1, 0]),
    "shifted": lambda x: loss_of(x[..., :-1, :].contiguous().view(-1, WORDS), TARGET[:, 1:].reshape(-1)),
    "of one sample": lambda x: loss_of(x[1], TARGET[1]),
    "with a new dimension": lambda x: loss_of(x[:, None][:, 0].unsqueeze(0)[0].flatten(0, 1), TARGET.flatten()),
    "scaled and capped": lambda x: loss_of(5 * torch.tanh(x / 5).flatten(0, 1) * 0.5, TARGET.flatten()),
    "of a module": lambda x: nn.CrossEntropyLoss(label_smoothing=0.1)(x.flatten(0, 1), TARGET.flatten()),
    "unflattened": lambda x: loss_of(x.flatten(0, 1).unflatten(0, (2, 5)).movedim(-1, 1)),
    "in a type": lambda x: loss_of(x.to(torch.float64).double().flatten(0, 1), TARGET.flatten()),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_is_done_with_parts(way: str) -> None:
    """Changes of shape, type and scale work on parts without a gather."""
    assert both(WAYS[way]) == [""] * WIDTH


ODD: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "softmax": (lambda x: x.softmax(-1)[..., 2], "softmax"),
    "some words": (lambda x: x[..., 1:4], "__getitem__"),
    "a mask": (lambda x: loss_of(x[TARGET >= 0], TARGET[TARGET >= 0]), "__getitem__"),
    "weights": (lambda x: functional.cross_entropy(x.flatten(0, 1), TARGET.flatten(), torch.arange(11.0).double()), "cross_entropy"),
    "probabilities": (lambda x: loss_of(x[0], torch.full((5, WORDS), 1 / WORDS).double()), "cross_entropy"),
    "two of them": (lambda x: x + x * 2, "add"),
    "words apart": (lambda x: x.flatten().cumsum(0), "flatten"),
    "rows": (lambda x: torch.stack(list(x)), "unbind"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_needs_the_whole_gets_it(name: str) -> None:
    """Other operations get the whole logits, and the log names them."""
    work, reason = ODD[name]
    assert both(work) == [reason] * WIDTH


def test_a_part_says_the_size_of_the_whole() -> None:
    """A part reports the size of the whole, and its own other properties.

    A copy of it is the whole.
    """
    cut = Cut(2, words=WORDS)
    own = torch.randn(2, 5, len(cut.words_of(WIDTH, 2)))

    def one(rank: int, members: TensorParallelGroup) -> Any:
        x = as_part(
            own.clone() if rank == 2 else torch.randn(2, 5, 4), VocabularyRange.of(cut, WIDTH, rank, members), 2
        )
        assert isinstance(x, LogitsPart)
        assert isinstance(x, Tensor)
        assert (x.shape, x.size(2), x.numel(), len(x), x.dim(), x.dtype) == (SHAPE, 11, 110, 2, 3, torch.float32)
        return torch.as_tensor(x.detach().tolist()).shape

    assert ThreadedGroup(WIDTH).run(one) == [SHAPE] * WIDTH


def test_a_target_that_is_no_word() -> None:
    """A target outside the vocabulary is refused, as torch does on a CPU."""
    with pytest.raises(RuntimeError, match="out of bounds"):
        parts_of_a_target_that_is_no_word()


def parts_of_a_target_that_is_no_word() -> None:
    """Cross-entropy of word 11 of 11, counted from 0."""
    cut = Cut(1, words=WORDS)
    ThreadedGroup(WIDTH).run(
        lambda rank, members: loss_of(
            as_part(torch.randn(1, len(cut.words_of(WIDTH, rank))), VocabularyRange.of(cut, WIDTH, rank, members), 1),
            torch.tensor([WORDS]),
        )
    )


def test_half_types_are_added_up_in_float32() -> None:
    """The loss of bfloat16 logits is the rounded float32 loss of the same numbers."""
    whole = torch.randn(20, WORDS, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.arange(20) % WORDS
    cut = Cut(1, words=WORDS)

    def one(rank: int, members: TensorParallelGroup) -> Tensor:
        part = part_of(whole, cut, WIDTH, rank).clone()
        return functional.cross_entropy(as_part(part, VocabularyRange.of(cut, WIDTH, rank, members), 1), target)

    expected = functional.cross_entropy(whole.float(), target).bfloat16()
    assert all(torch.equal(found, expected) for found in ThreadedGroup(WIDTH).run(one))

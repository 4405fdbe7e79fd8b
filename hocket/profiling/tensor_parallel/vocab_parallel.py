"""Vocabulary parallelism: ranges of the vocabulary and their cross-entropy.

The cross-entropy needs three numbers of every rank for each token (four with label smoothing). No rank ever holds the
logits of the whole vocabulary.
Rules of this file: each function is one operation for a `TorchFunctionMode`. Its tensors are plain parts.
Source: Shoeybi et al. 2019, section 3. The largest logits and the sums of exponentials of all ranks are combined as
in Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", so that the ranks need a single gather.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.profiling.tensor_parallel.group import TensorParallelGroup
from hocket.profiling.tensor_parallel.split import Cut

REDUCTIONS = ("mean", "sum", "none")
"""Reductions of `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class VocabularyRange:
    """The part of the vocabulary that one tensor-parallel rank holds.

    Attributes:
        size: entries of the whole vocabulary.
        width: number of ranks.
        own: token ids of this rank, as indices into the whole vocabulary.
        members: the group, as seen by this rank.
    """

    size: int
    width: int
    own: range
    members: TensorParallelGroup

    @classmethod
    def of(cls, cut: Cut, width: int, rank: int, members: TensorParallelGroup) -> "VocabularyRange":
        """Return the range of one rank, for the vocabulary that a cut divides."""
        return cls(cut.words, width, cut.words_of(width, rank), members)

    @property
    def most(self) -> int:
        """Largest number of vocabulary entries on a rank."""
        return -(-self.size // self.width)

    def sought(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Index of each token id in this rank's range, and a mask of the ids in it.

        The index is 0 for ids of other ranks.
        """
        known = (ids >= self.own.start) & (ids < self.own.stop)
        return torch.where(known, ids - self.own.start, 0), known


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, words: VocabularyRange, dim: int) -> Tensor:
        ctx.words, ctx.dim = words, dim
        own = part.detach().movedim(dim, 0)
        if len(words.own) < words.most:
            own = torch.cat([own, own.new_zeros(words.most - len(words.own), *own.shape[1:])])
        return words.members.gathered(own.contiguous(), words.width).flatten(0, 1)[: words.size].movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # All ranks do the same after the gather, so each has the gradient of the whole.
        own = ctx.words.own
        return gradients[0].narrow(ctx.dim, own.start, len(own)).clone(), None, None


def gathered(part: Tensor, words: VocabularyRange, dim: int) -> Tensor:
    """All-gather the logits of the whole vocabulary.

    This is one operation for a `TorchFunctionMode`.

    Arguments:
        dim: index of the vocabulary dimension.
    """
    if torch.overrides.has_torch_function((part,)):
        found: Tensor = torch.overrides.handle_torch_function(gathered, (part,), part, words, dim)
        return found
    return _Gather.apply(part, words, dim)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy of each token, from (..., vocabulary entries of this rank) logits.

    Autograd saves the logits. The backward recomputes the probabilities from them without communication.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, words: VocabularyRange, smoothing: float) -> Tensor:
        exact = logits.float() if logits.dtype.itemsize < 4 else logits
        at, known = words.sought(target)
        largest = exact.max(-1).values
        exponents = (exact - largest.masked_fill(largest.isneginf(), 0.0).unsqueeze(-1)).exp_().sum(-1)
        scores = exact.gather(-1, at.unsqueeze(-1)).squeeze(-1).masked_fill(~known, 0.0)
        rows = [largest, exponents, scores, *([exact.sum(-1)] if smoothing else [])]
        largest, exponents, scores, *sums = words.members.gathered(torch.stack(rows), words.width).unbind(1)
        most = largest.amax(0)
        normalizer = most + (exponents * (largest - most).exp()).sum(0).log()
        loss = normalizer - scores.sum(0)
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing * (normalizer - sums[0].sum(0) / words.size)
        ctx.save_for_backward(logits, target, normalizer)
        ctx.words, ctx.smoothing = words, smoothing
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,), (logits, target, normalizer) = gradients, ctx.saved_tensors
        exact = logits.float() if logits.dtype.itemsize < 4 else logits
        at, known = ctx.words.sought(target)
        found = (exact - normalizer.unsqueeze(-1)).exp_()
        if ctx.smoothing:
            found -= ctx.smoothing / ctx.words.size
        one = known.to(found.dtype) * (ctx.smoothing - 1)
        found.scatter_add_(-1, at.unsqueeze(-1), one.unsqueeze(-1))
        return found.mul_(gradient.unsqueeze(-1)).to(logits.dtype), None, None, None


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    words: VocabularyRange,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy over the whole vocabulary, from this rank's part of the logits.

    The result is that of `torch.nn.functional.cross_entropy` on the gathered logits. This is one operation for a
    `TorchFunctionMode`.

    Arguments:
        logits: (C,), (N, C) or (N, C, ...) for N samples and the C vocabulary entries of this rank.
        target: token ids in the whole vocabulary, in the shape of `logits` without the dimension C.
    """
    if torch.overrides.has_torch_function((logits, target)):
        found: Tensor = torch.overrides.handle_torch_function(
            cross_entropy, (logits, target), logits, target, words, ignore_index, reduction, label_smoothing
        )
        return found
    kind = logits.device.type
    dtype = torch.float32 if torch.is_autocast_enabled(kind) and logits.dtype.itemsize < 4 else logits.dtype
    kept = target != ignore_index
    torch._assert_async(
        (~kept | ((target >= 0) & (target < words.size))).all(), "cross_entropy: a target out of bounds"
    )  # type: ignore[no-untyped-call]
    losses: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.movedim(min(1, logits.dim() - 1), -1), target, words, label_smoothing
    )
    losses = losses.masked_fill(~kept, 0.0)
    match reduction:
        case "none":
            return losses.to(dtype)
        case "sum":
            return losses.sum().to(dtype)
    return (losses.sum() / kept.sum()).to(dtype)

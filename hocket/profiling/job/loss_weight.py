"""Loss weights: the loss of a batch from the losses of its microbatches.

Rules of this file: no torch is imported; a weight is computed from the batch alone, before and without the model.

For a mean over samples, the weight of a microbatch is its number of samples. A mean over other units (tokens that are
not padding, classes with weights) needs an explicit weight of each microbatch:

    L(batch) = sum over m of w[m] L[m] / sum over m of w[m]
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from hocket.errors import CaptureError, InputError

Batch = dict[str, Any]
"""A batch or a microbatch: tensors by name."""
SUM = "sum"
"""The loss is a sum over samples, and not a mean."""
LossWeight = Callable[[Batch], Any] | str


class Weighted(Protocol):
    """Protocol of a job: the attributes that determine its loss weight."""

    @property
    def batch_size(self) -> int:
        """Samples of one optimizer update."""

    @property
    def loss_weight(self) -> LossWeight | None:
        """Loss weight of a microbatch."""

    @property
    def own(self) -> Any:
        """The original job with the master weights; None without mixed precision."""


@dataclass(frozen=True)
class Tokens:
    """The number of tokens that a loss averages over; see `tokens`."""

    key: str
    ignore: int = -100
    shift: int = 0

    def __call__(self, batch: Batch) -> int:
        """Count the tokens of a batch.

        Raises:
            InputError: the batch has no such tensor.
        """
        if self.key not in batch:
            found, expected = f"no {self.key!r} in the samples", f"one of {', '.join(map(repr, batch))}"
            raise InputError("Job.loss_weight", found, expected, "Items of a tuple are called item0, item1, ...")
        labels = batch[self.key]
        return int((labels[..., self.shift :] if self.shift else labels).ne(self.ignore).sum())


def tokens(key: str | int, ignore: int = -100, shift: int = 0) -> Tokens:
    """Return a `Job.loss_weight` for a loss that is a mean over tokens.

    Arguments:
        key: name of the labels in a sample, or their position in a tuple.
        ignore: label of tokens that do not count, as `ignore_index` of `torch.nn.functional.cross_entropy`.
        shift: number of tokens at the beginning of a sample without a prediction. It is 1 for Hugging Face's causal
            language models, which compare the output at each position with the next label, and 0 if inputs and labels
            are aligned.
    """
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise InputError("tokens: key", repr(key), "the name of the labels in a sample, or their position in a tuple")
    if isinstance(shift, bool) or not isinstance(shift, int) or shift < 0:
        raise InputError("tokens: shift", repr(shift), "a whole number >= 0")
    return Tokens(f"item{key}" if isinstance(key, int) else key, ignore, shift)


def loss_in(output: Any) -> Any:
    """Return the loss in the output of a model that computes it itself.

    Arguments:
        output: the loss, a tensor with one number and without dimensions; or a dictionary or an object with a `loss`.

    Raises:
        CaptureError: the output is no loss and has none.
    """
    if getattr(output, "shape", None) == ():
        return output
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if found is None:
        hint = "Give Job.loss, or let the model or Job.step return the loss."
        shape = getattr(output, "shape", None)
        what = f"a {type(output).__name__} without a `loss`" if shape is None else f"a tensor of shape {tuple(shape)}"
        found = f"None, and the output is {'None' if output is None else what}"
        raise CaptureError("Job.loss", found, "an output that is the loss (one number), or has a `loss`", hint)
    return found


def check_loss_weight(given: Any) -> None:
    """Refuse a value of `Job.loss_weight` that is none of the allowed kinds.

    Raises:
        InputError: the value is neither a function, nor "sum", nor None.
    """
    if given is not None and given != SUM and not callable(given):
        hint = 'For example hocket.tokens("labels"), which counts the labels that are not -100.'
        raise InputError("Job.loss_weight", repr(given), 'a function of a batch, "sum" or None', hint)


def loss_weight(job: Weighted, batch: Batch, samples: int) -> float:
    """Compute the weight of a microbatch in the loss of its batch.

    The default is the number of samples.

    Arguments:
        batch: the microbatch, from `Job.batch`. In a shorter precision, its floating tensors are converted to float32.
        samples: number of samples of the microbatch.

    Raises:
        InputError: the job's function does not return a valid weight.
    """
    if not callable(job.loss_weight):
        return samples
    if job.own is not None:  # sums in a short type would be rounded
        batch = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    given = job.loss_weight(batch)
    try:
        weight = float(given)
    except (TypeError, ValueError, RuntimeError):
        weight = float("nan")
    if not isfinite(weight) or weight < 0:
        found = f"{given!r} for a microbatch of {samples} samples"
        raise InputError("Job.loss_weight", found, "a number >= 0, or a tensor of one number")
    return weight


def whole_loss(job: Weighted, loss: Any, samples: int) -> Any:
    """Scale the loss of a microbatch to the size of a whole batch.

    A loss that is a sum over samples grows with their number. A mean is returned as it is.

    Arguments:
        loss: a number or a tensor.
        samples: number of samples of the microbatch.
    """
    return loss * (job.batch_size / samples) if job.loss_weight == SUM else loss

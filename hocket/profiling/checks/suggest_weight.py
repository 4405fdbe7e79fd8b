"""Suggestions of common loss weights, each with its line in a job file.

Rules of this file: another module tests which weight explains a loss (loss_additivity.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hocket.profiling.job.job import Job
from hocket.profiling.job.loss_weight import Batch, Tokens

_IGNORED = (-100, 0, -1)
_SHIFTS = (0, 1)


@dataclass(frozen=True)
class Suggestion:
    """A candidate for `Job.loss_weight`.

    Attributes:
        text: description of the loss that this weight explains.
        line: argument of `Job` to write into the job file.
    """

    weight: Callable[[Batch], Any]
    text: str
    line: str


def suggestions(job: Job, batch: Batch) -> Iterator[Suggestion]:
    """Yield possible loss weights for a batch: by classes, token counts and masks."""
    yield from _of_classes(job, batch)
    whole = [key for key, value in batch.items() if not value.is_floating_point() and not value.is_complex()]
    known = {key: list(dict.fromkeys((*_IGNORED, _commonest(batch[key])))) for key in whole}
    for rank in range(max(map(len, known.values()), default=0)):
        for key in (key for key in whole if rank < len(known[key])):
            yield from _of_tokens(key, batch[key], known[key][rank])
    for key in (key for key, value in batch.items() if value.is_floating_point() and _is_mask(value)):
        yield Suggestion(_total(key), f"a mean over {key!r}", f'loss_weight=lambda batch: batch["{key}"].sum()')


def _of_tokens(key: str, labels: Tensor, ignored: int) -> Iterator[Suggestion]:
    for shift in _SHIFTS if labels.dim() > 1 else (0,):
        name = key.removeprefix("item") if key.startswith("item") else f'"{key}"'
        more = f", ignore={ignored}" * (ignored != -100) + f", shift={shift}" * bool(shift)
        behind = " behind the first of a sample" if shift else ""
        yield Suggestion(
            Tokens(key, ignored, shift),
            f"a mean over the entries of {key!r}{behind} that are not {ignored}",
            f"loss_weight=hocket.tokens({name}{more})",
        )


def _of_classes(job: Job, batch: Batch) -> Iterator[Suggestion]:
    """Suggest class weights, as in `torch.nn.CrossEntropyLoss(weight=...)`.

    A `functools.partial` of the function is recognised too.
    """
    given = (
        {**vars(job.loss).get("_buffers", {}), **getattr(job.loss, "keywords", {})}
        if hasattr(job.loss, "__dict__")
        else {}
    )
    weight, ignored = given.get("weight"), getattr(job.loss, "ignore_index", given.get("ignore_index", -100))
    if not isinstance(weight, Tensor) or weight.dim() != 1:
        return
    for key, labels in batch.items():
        if not labels.is_floating_point() and bool((labels < len(weight)).all()):
            yield Suggestion(
                lambda one, key=key: _weights_of(one[key], weight, ignored),  # type: ignore[misc]
                f"a mean weighted by the classes in {key!r}",
                f'loss_weight=lambda batch: weight[batch["{key}"]].sum(), with the weight of its classes',
            )


def _weights_of(labels: Tensor, weight: Tensor, ignored: int) -> Tensor:
    counted = labels[labels.ne(ignored) & (labels >= 0)]
    return weight.cpu()[counted].sum()


def _total(key: str) -> Callable[[Batch], Any]:
    return lambda batch: batch[key].sum()


def _is_mask(value: Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _commonest(value: Tensor) -> int:
    return int(value.flatten().long().mode().values)

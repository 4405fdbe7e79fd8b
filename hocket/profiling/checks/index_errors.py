"""Refusal: an index or target out of range, refused by an operation of torch, with the samples that it came from.

Rules of this file: torch says at most the value. The samples of the microbatch, and the values in them, are said here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hocket.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = re.compile(r"out of (bounds|range)|class values must be", re.IGNORECASE)
_MAX_SHOWN = 16


@contextmanager
def naming_samples(indices: Sequence[int], batch: "Mapping[str, Tensor]") -> Iterator[None]:
    """Name the samples where a forward refuses an index or target of theirs.

    Arguments:
        indices: of the microbatch's samples. batch: what the forward gets of them, by key.

    Raises:
        InputError: in the place of such an error of torch.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:
        refused = refusal(error, indices, batch)
        if refused is None:
            raise
        raise refused from error


def refusal(error: BaseException, indices: Sequence[int], batch: "Mapping[str, Tensor]") -> InputError | None:
    """The error of a forward with the samples that it is about; None where it is not about an index or a target."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    whole = {key: value for key, value in batch.items() if _is_whole(value) and len(value) == len(indices)}
    if not whole or not isinstance(error, IndexError | RuntimeError) or not _RANGE.search(text):
        return None
    expected = "targets that are classes of the model, and indices inside what they select from"
    number = re.search(r"-?\d+", text)  # the value comes first where torch says it
    for key, value in whole.items() if number else ():
        rows = (value == int(number[0])).reshape(len(value), -1).any(1).tolist() if number else []
        if any(rows):
            index = indices[rows.index(True)]
            return InputError(
                f"Job.data[{index}]", f"{number[0]} in {_plain(key)} ({text})" if number else text, expected
            )
    shown = ", ".join(map(str, indices[:_MAX_SHOWN])) + (", ..." if len(indices) > _MAX_SHOWN else "")
    ranges = [_range_of(key, value, indices) for key, value in whole.items()]
    return InputError(f"Job.data, samples {shown}", f"{text} ({'; '.join(ranges)})", expected)


def _is_whole(value: "Tensor") -> bool:
    if value.is_floating_point() or value.is_complex() or value.numel() == 0:
        return False
    return str(value.dtype) != "torch.bool"


def _range_of(key: str, value: "Tensor", indices: Sequence[int]) -> str:
    flat = value.reshape(len(value), -1)
    low, high = flat.min(1).values, flat.max(1).values
    first, last = int(low.argmin()), int(high.argmax())
    return f"{_plain(key)} from {int(low[first])} in sample {indices[first]} to {int(high[last])} in sample {indices[last]}"


def _plain(key: str) -> str:
    """The item's own name, where the batch's tensors go by the names of the capture."""
    return key.removeprefix("batch:")

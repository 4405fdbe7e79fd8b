"""Errors of torch about an index or target out of range, with their samples.

Rules of this file: the error of torch contains at most the value. The errors here add the samples of the microbatch and
their values.
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
    """Add the samples to an error of a forward about an index or target.

    Arguments:
        indices: indices of the samples of the microbatch.
        batch: inputs of the forward, by key.

    Raises:
        InputError: replaces an error of torch about an index or target.
    """
    try:
        yield
    except (IndexError, RuntimeError) as error:
        refused = refusal(error, indices, batch)
        if refused is None:
            raise
        raise refused from error


def refusal(error: BaseException, indices: Sequence[int], batch: "Mapping[str, Tensor]") -> InputError | None:
    """Convert an error of a forward into an error that names the samples.

    The result is None if the error is not about an index or a target.
    """
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    whole = {key: value for key, value in batch.items() if _is_whole(value) and len(value) == len(indices)}
    if not whole or not isinstance(error, IndexError | RuntimeError) or not _RANGE.search(text):
        return None
    expected = "targets that are classes of the model, and indices inside the tensors that they select from"
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
    """Return the original item name for a tensor name of the capture."""
    return key.removeprefix("batch:")

"""Batches: the tensors of several samples, with the samples along the first dimension.

Rules of this file: an error names the samples or the function that the user must change. Every batch of a job has the
same items, shapes and types, because the layers of the job are captured for one shape, and a worker knows the shapes of
the tensors that arrive from another worker. torch is imported only when a batch is made.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hocket.errors import HocketError, InputError
from hocket.profiling.checks.user_frames import raised_at
from hocket.profiling.data.items import Items, Receivers, items_in
from hocket.profiling.data.seeding import own_draws, seed_all
from hocket.util.units import show_count

if TYPE_CHECKING:
    from torch import Tensor

Collate = Callable[[list[Any]], Any]
"""Function from a list of samples to a batch, as `collate_fn` of torch's DataLoader."""
PAD = (
    "Pad every batch to one fixed length, not to its longest sample (for a tokenizer: padding='max_length' and max_length=...). "
    "Layers are captured for one shape."
)
_TO_TENSOR = {
    "numpy": "Write torch.as_tensor(array), or .item() of a single number.",
    "PIL": "Write torchvision.transforms.functional.pil_to_tensor(image), or torch.as_tensor(numpy.array(image)).",
    "bool": "Write int(flag), or torch.tensor(flag).",
    "str": "Turn text into numbers, or leave it out of the sample.",
    "NoneType": "Leave it out of the sample.",
    "list": "Write torch.tensor(values).",
    "tuple": "Write torch.tensor(values).",
}
_MAX_SHOWN = 4


def stacked(samples: Sequence[Any], indices: Sequence[int], receivers: Receivers) -> Items:
    """Stack samples of equal items, shapes and types.

    Items that are no tensors and that neither the model nor the loss gets are dropped.

    Arguments:
        samples: results of data[i].
        indices: indices of the samples, for errors.

    Raises:
        InputError: a sample has other items than the first, or an item is not a tensor; the error names the sample.
    """
    import torch

    rows, dropped = [], set[str]()
    for index, sample in zip(indices, samples, strict=True):
        row, left_out = _tensors(sample, index, receivers)
        rows.append(row)
        dropped |= left_out
    first = rows[0]
    out: Items = {}
    for name in first:
        column = []
        for i, row in zip(indices, rows, strict=True):
            if row.keys() - dropped != first.keys() - dropped:
                raise InputError(f"Job.data[{i}]", f"items {list(row)}", f"{list(first)}, as in the other samples")
            if name in dropped:
                continue
            if row[name].shape != first[name].shape or row[name].dtype != first[name].dtype:
                found = f"{name} of shape {tuple(row[name].shape)} and type {row[name].dtype}"
                expected = f"{tuple(first[name].shape)} and {first[name].dtype}, as in sample {indices[0]}"
                step = "Pad or crop the samples to one shape, or give the job a `collate` that does."
                raise InputError(f"Job.data[{i}]", found, expected, step)
            column.append(row[name])
        if column:
            out[name] = torch.stack(column)
    return out


def _tensors(sample: Any, index: int, receivers: Receivers) -> tuple[Items, set[str]]:
    """Convert a sample to tensors by name, and return the names of the items that were left out."""
    import torch

    place = f"Job.data[{index}]"
    items, of_tuple = items_in(sample, place, _advice(sample))
    dropped = set[str]()
    for name, value in items.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            items[name] = torch.tensor(value)
        elif not isinstance(value, torch.Tensor):
            dropped.add(name)
            if receivers.gets(name, of_tuple) or len(dropped) == len(items):
                raise InputError(
                    place, f"{name} of type {type(value).__name__}", "a tensor or a number", _advice(value)
                )
    return {name: value for name, value in items.items() if name not in dropped}, dropped


def collated(collate: Collate, samples: list[Any], indices: Sequence[int], receivers: Receivers, seed: int) -> Items:
    """Call the user's `collate` for samples, and check that each sample has a row in its result.

    Arguments:
        samples: results of data[i], of any type.
        indices: indices of the samples, for errors.
        seed: seed of the random numbers that `collate` draws.

    Raises:
        InputError: the function fails, or its result is no batch of these samples.
    """
    import torch

    place = "Job.collate"
    with own_draws():
        seed_all(seed)
        try:
            made = collate(samples)
        except HocketError:
            raise
        except (Exception, SystemExit) as error:
            found = f"{type(error).__name__}: {error}".rstrip(": ")
            step = f"It was raised here:\n{raised_at(error)}"
            raise InputError(place, f"{found}, for {_shown(indices)}", "a batch of these samples", step) from error
    items, of_tuple = items_in(made, place)
    out: Items = {}
    for name, value in items.items():
        if not isinstance(value, torch.Tensor):
            if receivers.gets(name, of_tuple) or len(items) == 1:
                raise InputError(place, f"{name} of type {type(value).__name__}", "a tensor", _advice(value))
            continue
        if value.dim() == 0 or len(value) != len(samples):
            found = f"{name} of shape {tuple(value.shape)} for {show_count(len(samples), 'sample')}"
            step = "Return one row for each sample, in their order, along the first dimension, as torch.stack does."
            raise InputError(place, found, f"a first dimension of {len(samples)}", step)
        out[name] = value
    if not out:
        raise InputError(place, "no tensor", "at least one tensor")
    return out


class BatchShapes:
    """Shapes and types of a job's batches, without the first dimension; the first batch determines them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._first: Sequence[int] = ()

    def check(self, batch: "dict[str, Tensor]", indices: Sequence[int], collates: bool) -> None:
        """Compare a batch with the first batch.

        Arguments:
            batch: tensors of shape (samples, ...), by name.
            indices: indices of its samples, for the error.
            collates: True if the job has a `collate`, which the error then names.

        Raises:
            InputError: an item is missing, or has another shape or type.
        """
        shapes = {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in batch.items()}
        if not self._known:
            self._known, self._first = shapes, tuple(indices[: _MAX_SHOWN + 1])
            return
        if shapes == self._known:
            return
        for name, (shape, dtype) in self._known.items():
            there = shapes.get(name)
            if there == (shape, dtype):
                continue
            found = f"no {name}" if there is None else f"{name} of shape {_of_rows(there[0])} and type {there[1]}"
            expected = f"{_of_rows(shape)} and {dtype}, as in the batch of {_shown(self._first)}"
            place = "Job.collate" if collates else f"Job.data[{indices[0]}]"
            step = PAD if collates else "Pad or crop the samples to one shape, or give the job a `collate` that does."
            raise InputError(place, f"{found}, for {_shown(indices)}", expected, step)


def _of_rows(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['samples', *map(str, shape)])})"


def _shown(indices: Sequence[int]) -> str:
    more = ", ..." if len(indices) > _MAX_SHOWN else ""
    return f"sample{'s' * (len(indices) != 1)} {', '.join(str(i) for i in indices[:_MAX_SHOWN])}{more}"


def _advice(value: Any) -> str:
    """Return advice on the conversion of a value to a tensor, if its type is known."""
    kind = type(value)
    return _TO_TENSOR.get(kind.__name__) or _TO_TENSOR.get(kind.__module__.partition(".")[0], "")

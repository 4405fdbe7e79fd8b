"""Sample reading: named tensors from the user's data, with seeded random numbers.

Rules of this file: an error names the sample, and shows the user's own code lines. torch is imported only when a sample
is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hocket.errors import HocketError, InputError
from hocket.profiling.checks.user_frames import raised_at
from hocket.profiling.data.seeding import own_draws, sample_seed, seed_all
from hocket.util.units import show_count

_TO_TENSOR = {
    "numpy": "Write torch.as_tensor(array), or .item() of a single number.",
    "PIL": "Write torchvision.transforms.functional.pil_to_tensor(image), or torch.as_tensor(numpy.array(image)).",
    "bool": "Write int(flag), or torch.tensor(flag).",
    "str": "Turn text into numbers, or leave it out of the sample.",
    "NoneType": "Leave it out of the sample.",
    "list": "Write torch.tensor(values).",
    "tuple": "Write torch.tensor(values).",
}


def read_samples(data: Any, indices: Sequence[int], positions: Iterable[int], seed: int) -> list[dict[str, Any]]:
    """Read samples, each with its own seed, and restore the random generators.

    The overhead is 80 microseconds per call and 7 per sample (see `seeding`). A plain list or tuple has no overhead,
    because reading it draws no random numbers.

    Arguments:
        data: the dataset of the job.
        indices: indices of the samples.
        positions: position of each sample in the stream; it seeds the random numbers of the sample.
        seed: seed of the job.

    Raises:
        InputError: a sample cannot be read, or is not made of tensors; the error names the sample.
    """
    if type(data) in (list, tuple):
        return [_read(data, int(i)) for i in indices]
    found = []
    with own_draws():
        for i, position in zip(indices, positions, strict=True):
            seed_all(sample_seed(seed, int(position)))
            found.append(_read(data, int(i)))
    return found


def _read(data: Any, index: int) -> dict[str, Any]:
    try:
        sample = data[index]
    except HocketError:
        raise
    except (Exception, SystemExit) as error:
        known = show_count(len(data), "sample")
        steps = [f"len(data) says {known}."] if isinstance(error, LookupError | StopIteration) else []
        steps.append(f"It was raised here:\n{raised_at(error)}")
        found = f"{type(error).__name__}: {error}".rstrip(": ")
        raise InputError(f"Job.data[{index}]", found, "a sample", " ".join(steps)) from error
    return items_of(sample, index)


def items_of(sample: Any, index: int) -> dict[str, Any]:
    """Convert a sample to named tensors; tuple items are named item0, item1, ...

    Raises:
        InputError: the sample is invalid, or an item is not a tensor; the error explains the conversion.
    """
    import torch

    if isinstance(sample, torch.Tensor):
        sample = (sample,)
    if isinstance(sample, Mapping):
        items = dict(sample)
    elif isinstance(sample, tuple | list):
        items = {f"item{k}": value for k, value in enumerate(sample)}
    else:
        expected = "a tensor, a tuple of tensors, or a dictionary of tensors"
        raise InputError(f"Job.data[{index}]", f"a value of type {type(sample).__name__}", expected, _advice(sample))
    for name, value in items.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            items[name] = torch.tensor(value)
        elif not isinstance(value, torch.Tensor):
            found = f"{name} of type {type(value).__name__}"
            raise InputError(f"Job.data[{index}]", found, "a tensor or a number", _advice(value))
    if not items:
        raise InputError(f"Job.data[{index}]", "nothing", "at least one tensor")
    return items


def _advice(value: Any) -> str:
    """Return advice on the conversion of a value to a tensor, if its type is known."""
    kind = type(value)
    return _TO_TENSOR.get(kind.__name__) or _TO_TENSOR.get(kind.__module__.partition(".")[0], "")

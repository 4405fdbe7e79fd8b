"""Sample reading: results of data[i], with seeded random numbers.

Rules of this file: an error names the sample, and shows the user's own code lines. torch is imported only when a sample
is read.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hocket.errors import HocketError, InputError
from hocket.profiling.checks.user_frames import raised_at
from hocket.profiling.data.iterable import IterableSamples
from hocket.profiling.data.seeding import own_draws, sample_seed, seed_all
from hocket.util.units import show_count


def read_samples(data: Any, indices: Sequence[int], positions: Iterable[int], seed: int) -> list[Any]:
    """Read samples, each with its own seed, and restore the random generators.

    The overhead is 80 microseconds per call and 7 per sample (see `seeding`). A plain list or tuple has no overhead,
    because reading it draws no random numbers.

    Arguments:
        data: the dataset of the job.
        indices: indices of the samples; in iterable data, their positions in the stream, which seed them too.
        positions: position of each sample in the stream; it seeds the random numbers of the sample.
        seed: seed of the job.

    Raises:
        InputError: a sample cannot be read; the error names the sample.
    """
    if isinstance(data, IterableSamples):
        return data.read(indices, seed)
    if type(data) in (list, tuple):
        return [_read(data, int(i)) for i in indices]
    found = []
    with own_draws():
        for i, position in zip(indices, positions, strict=True):
            seed_all(sample_seed(seed, int(position)))
            found.append(_read(data, int(i)))
    return found


def _read(data: Any, index: int) -> Any:
    try:
        return data[index]
    except HocketError:
        raise
    except (Exception, SystemExit) as error:
        known = show_count(len(data), "sample")
        steps = [f"len(data) says {known}."] if isinstance(error, LookupError | StopIteration) else []
        steps.append(f"It was raised here:\n{raised_at(error)}")
        found = f"{type(error).__name__}: {error}".rstrip(": ")
        raise InputError(f"Job.data[{index}]", found, "a sample", " ".join(steps)) from error


@contextmanager
def real_tensors(wanted: bool = True) -> Iterator[bool]:
    """Context in which the user's code makes real tensors, also where Hocket computes with fake ones.

    Its value is True if tensors are fake outside of it.

    Arguments:
        wanted: False for a context without effect.
    """
    if not wanted:
        yield False
        return
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
        yield False
        return
    with _disable_current_modes():
        yield True

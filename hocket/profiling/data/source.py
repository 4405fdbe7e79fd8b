"""Source of a job's batches: its data, their order, and the way from samples to tensors.

Samples form an endless stream. The seed and the number of samples alone determine their order. torch is imported only
when a batch is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from hocket.errors import InputError
from hocket.profiling.data.batches import BatchShapes, Collate, collated, stacked
from hocket.profiling.data.items import Items, Receivers
from hocket.profiling.data.iterable import FIRST, IterableSamples
from hocket.profiling.data.samples import read_samples, real_tensors
from hocket.profiling.data.seeding import sample_seed
from hocket.util.units import show_count

MAX_LOADERS = 256
"""Largest number of processes that read the samples of a worker."""


@lru_cache(maxsize=4)
def _shuffled(epoch: int, samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(samples)


def indices_at(position: int, count: int, samples: int, seed: int) -> list[int]:
    """Return `count` consecutive sample indices of the sample stream.

    Every epoch has its own shuffled order. The stream continues across the end of an epoch.

    Arguments:
        position: number of earlier samples in the stream, over all epochs.
        samples: number of samples of the data.
    """
    out: list[int] = []
    while len(out) < count:
        epoch, start = divmod(position, samples)
        taken = _shuffled(epoch, samples, seed)[start : start + count - len(out)]
        out.extend(int(i) for i in taken)
        position += len(taken)
    return out


def order(step: int, batch_size: int, samples: int, seed: int) -> list[int]:
    """Return the sample indices of step `step` (from 0), `batch_size` of them.

    The position in the stream is step * batch_size. Every sample is used once per epoch.

    Raises:
        InputError: a number is out of range.
    """
    if step < 0 or batch_size < 1 or samples < 1:
        raise InputError("order", f"step {step}, batch {batch_size}, {samples} samples", "step >= 0, others >= 1")
    return indices_at(step * batch_size, batch_size, samples, seed)


@dataclass(frozen=True)
class SampleSource:
    """Data, order and collate function of a job; the arguments are those of `Job`.

    Attributes:
        data: map-style data, or `IterableSamples`.
        samples: number of samples of map-style data.
        receivers: model and loss, which get the items of the samples.
    """

    data: Any
    samples: int
    seed: int
    shuffle: bool | None
    collate: Collate | None
    receivers: Receivers
    _shapes: BatchShapes = field(default_factory=BatchShapes, init=False, repr=False)

    def indices_at(self, position: int, count: int) -> list[int]:
        """Return the indices of `count` consecutive samples of the stream; of iterable data, their positions."""
        if isinstance(self.data, IterableSamples):
            return list(range(position, position + count))
        if self.shuffle is False:
            return [place % self.samples for place in range(position, position + count)]
        return indices_at(position, count, self.samples, self.seed)

    def batch(self, indices: Sequence[int], positions: Sequence[int]) -> Items:
        """Read samples and make a batch of them, with the samples along the first dimension.

        Raises:
            InputError: see `Job.batch`.
        """
        with real_tensors(self.collate is not None or isinstance(self.data, IterableSamples)) as fake:
            samples = read_samples(self.data, indices, positions, self.seed)
            if self.collate is None:
                out = stacked(samples, indices, self.receivers)
            else:
                seed = sample_seed(self.seed, int(positions[0]))
                out = collated(self.collate, samples, indices, self.receivers, seed)
        if fake:
            out = {name: value.clone() for name, value in out.items()}
        self._shapes.check(out, indices, self.collate is not None)
        return out

    def check_length(self) -> None:
        """Refuse data of another length than when the job was made.

        Raises:
            InputError: the length has changed.
        """
        if isinstance(self.data, IterableSamples) or len(self.data) == self.samples:
            return
        found, expected = show_count(len(self.data), "sample"), f"{self.samples}, as when the job was created"
        hint = "Keep the length of the data constant: it determines the order of the samples."
        raise InputError("Job.data", found, expected, hint)


def check_loaders(count: int) -> None:
    """Refuse a number of loader processes that is out of range.

    Raises:
        InputError: it is.
    """
    if type(count) is not int or not 0 <= count <= MAX_LOADERS:
        raise InputError("loaders", repr(count), f"a number of processes from 0 to {MAX_LOADERS}")


def samples_in(data: Any, batch_size: int, shuffle: Any) -> int:
    """Return the number of samples by index: of all map-style data, or of the beginning of iterable data.

    Raises:
        InputError: the data is of another kind, or too short for a batch; or `shuffle` does not fit it.
    """
    if shuffle is not None and not isinstance(shuffle, bool):
        raise InputError("Job.shuffle", repr(shuffle), "True, False, or None for the order of a DataLoader")
    if isinstance(data, IterableSamples):
        if shuffle:
            hint = "Leave it out, and shuffle in `__iter__`: the global generators are seeded there."
            raise InputError("Job.shuffle", "True, for an IterableDataset", "the order of its samples", hint)
        return FIRST
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        expected = "a map-style dataset (len(data) and data[i]), a torch.utils.data.IterableDataset or a DataLoader"
        raise InputError("Job.data", type(data).__name__, expected)
    if len(data) < batch_size:
        hint = "Lower batch_size or give more data."
        raise InputError("Job.data", show_count(len(data), "sample"), f"at least batch_size = {batch_size}", hint)
    return len(data)

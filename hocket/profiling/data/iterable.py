"""Iterable data: the samples of a `torch.utils.data.IterableDataset`, by their position in the stream.

Rules of this file: the stream is the samples that iterating gives, epoch after epoch. Every process iterates its own copy
of the dataset, and picks its positions. The global generators are seeded for each position, also of samples that are
only passed over, so that a sample follows from its position alone.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

from hocket.errors import HocketError, InputError
from hocket.profiling.checks.user_frames import raised_at
from hocket.profiling.data.seeding import own_draws, sample_seed, seed_all

FIRST = 64
"""Number of samples at the beginning of a stream that checks and measurements read by their position."""


@dataclass(frozen=True)
class StreamState:
    """State of a stream after some samples, as plain data for JSON.

    Attributes:
        epoch: number of the epoch, from 0.
        state: result of the dataset's `state_dict`.
    """

    epoch: int
    state: Any

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


class IterableSamples:
    """Samples of an iterable dataset, by position.

    Reading forward iterates the dataset once, and passes over the positions that are not wanted: a worker iterates all
    samples, also if it trains on a part of them. The most recent samples are kept, at least `FIRST` and two batches. An
    earlier position starts over at the beginning, or at the restored state, which costs as much as reading all samples
    from there.

    Attributes:
        dataset: the dataset. `set_epoch(epoch)` is called before each epoch, if it has this method.
        has_state: True if the dataset has `state_dict` and `load_state_dict`.
        trusted: False if these were seen to restore other samples; earlier samples are then read and passed over.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.trusted = dataset, True
        self.has_state = all(callable(getattr(dataset, name, None)) for name in ("state_dict", "load_state_dict"))
        self._most = FIRST
        self._seed: int | None = None
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._initial: StreamState | None = None  # before anything was read
        self._base: tuple[int, StreamState] | None = None  # position and state that were restored
        self._iterator: Iterator[Any] | None = None
        self._next, self._epoch, self._inside = 0, 0, False

    def keep(self, batch_size: int) -> None:
        """Keep at least the samples of two batches of this size."""
        self._most = max(self._most, 2 * batch_size)

    def read(self, positions: Sequence[int], seed: int) -> list[Any]:
        """Return the samples at some positions of the stream, and restore the random generators.

        Arguments:
            positions: numbers of earlier samples in the stream, over all epochs.
            seed: seed of the job.

        Raises:
            InputError: the dataset fails, or has an epoch without samples; the error names the position.
        """
        with own_draws():
            if seed != self._seed:
                self._seed = seed
                self.start_over()
            return [self._sample(int(position)) for position in positions]

    def start_over(self) -> None:
        """Forget the samples that were read, and iterate again from the restored state, or from the beginning."""
        self._kept.clear()
        self._iterator = None
        self._next, self._epoch = (self._base[0], self._base[1].epoch) if self._base is not None else (0, 0)
        self._inside = self._base is not None

    def state_at(self, position: int) -> StreamState | None:
        """Return the state of the stream before a position, as plain data for JSON.

        Returns:
            None if the stream stands at another position, or if the dataset has no state that restores it.

        Raises:
            InputError: the state is not plain data.
        """
        if not self.has_state or not self.trusted or self._next != position or self._iterator is None:
            return None
        with self._user_code():
            return StreamState(self._epoch, _copied(self.dataset.state_dict()))

    def restore(self, position: int, state: StreamState | None) -> None:
        """Continue at a position, from the state of an earlier run.

        Arguments:
            position: number of earlier samples in the stream.
            state: result of `state_at` in the earlier run. None to read the earlier samples again when the position is
                read.
        """
        self._base = (position, state) if state is not None and self.has_state else None
        self.start_over()

    def _sample(self, position: int) -> Any:
        if position in self._kept:
            return self._kept[position]
        if position < self._next:
            if self._base is not None and position < self._base[0]:
                self._base = None
            self.start_over()
        while self._next <= position:
            self._kept[self._next] = self._advance()
            self._next += 1
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[position]

    def _advance(self) -> Any:
        """Return the next sample, of the next epoch if the present one ends."""
        if self._iterator is None:
            self._iterator = self._begun()
        found, sample = self._following()
        if not found and self._inside:
            self._epoch, self._inside = self._epoch + 1, False
            self._iterator = self._begun()
            found, sample = self._following()
        if not found:
            step = (
                "Let `__iter__` return a new iterator at each call, for each epoch. A generator that is made once is at its end "
                "after the first epoch."
            )
            expected = "at least one sample in each epoch"
            raise InputError("Job.data", f"no sample in epoch {self._epoch} (position {self._next})", expected, step)
        self._inside = True
        return sample

    def _begun(self) -> Iterator[Any]:
        """Iterate the dataset from the beginning of an epoch, or from the state to start over from."""
        with self._user_code():
            known, starts = self._initial, self._iterator is None
            if self.has_state and known is None:
                self._initial = StreamState(0, _copied(self.dataset.state_dict()))
            state = self._base[1] if self._base is not None else known
            seed_all(sample_seed(self._seed or 0, self._next))
            if callable(set_epoch := getattr(self.dataset, "set_epoch", None)):
                set_epoch(self._epoch)
            if self.has_state and starts and state is not None:
                self.dataset.load_state_dict(_copied(state.state))
            return iter(self.dataset)

    def _following(self) -> tuple[bool, Any]:
        """Return True and the iterator's next sample; False at its end."""
        assert self._iterator is not None
        end = object()
        with self._user_code():
            seed_all(sample_seed(self._seed or 0, self._next))
            sample = next(self._iterator, end)
        return sample is not end, sample

    @contextmanager
    def _user_code(self) -> Iterator[None]:
        """Context that attributes errors of the dataset to a position in the stream."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._seed = None  # an iterator that has failed is at its end: start over at the next read
            if isinstance(error, HocketError):
                raise
            found = f"{type(error).__name__}: {error}".rstrip(": ")
            step = f"It was raised here:\n{raised_at(error)}"
            raise InputError(f"Job.data[{self._next}]", found, "a sample", step) from error


def by_position(data: Any, batch_size: int) -> Any:
    """Return iterable data of torch as `IterableSamples`, and other data as they are.

    Arguments:
        data: `Job.data`.
        batch_size: samples of a batch, of which some are kept.
    """
    loaders = sys.modules.get("torch.utils.data")
    if loaders is not None and isinstance(data, loaders.IterableDataset):
        data = IterableSamples(data)
    if isinstance(data, IterableSamples):
        data.keep(batch_size)
    return data


def _copied(value: Any, name: str = "") -> Any:
    """Copy a dataset's state as plain data for JSON.

    Raises:
        InputError: the state contains something else; the error names it.
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    if type(value) is list:
        return [_copied(one, f"{name}[{k}]") for k, one in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _copied(one, f"{name}[{key!r}]") for key, one in value.items()}
    found = f"{value!r}" if isinstance(value, float) else f"a value of type {type(value).__name__}"
    raise InputError(
        f"Job.data.state_dict(){name}",
        f"{found}{' with keys that are no texts' if isinstance(value, dict) else ''}",
        "numbers, texts, None, lists, and dictionaries with texts as keys, as in JSON",
        "Convert it there (list(values), tensor.tolist()), and back in load_state_dict.",
    )

"""Microbatches: the samples of each microbatch of a batch.

Rules of this file: samples stay whole, and each is in exactly one microbatch. If microbatches run one by one, all have
the full size and the last one has the rest. If several run as one (`StageShape.merged`), all microbatches are as equal
as whole samples allow, and so are the merged ones: if a batch runs in g groups of merged microbatches, no group has
more than ceil(batch / g) samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from hocket.errors import InputError
from hocket.util.units import show_count


@dataclass(frozen=True)
class Microbatches:
    """Microbatches of every batch of a run, numbered across batches.

    Attributes:
        batch_size: samples of a batch.
        size: maximum samples of a microbatch.
        count: number of microbatches of a batch.
        even: True if the microbatches are as equal as they can be.
    """

    batch_size: int
    size: int
    count: int
    even: bool = False

    @classmethod
    def of(cls, batch_size: int, size: int) -> "Microbatches":
        """Make microbatches of a fixed size; the last one of a batch holds the rest."""
        return cls(batch_size, size, -(-batch_size // size))

    @classmethod
    def bundled(cls, batch_size: int, size: int, widths: Iterable[int]) -> "Microbatches":
        """Make microbatches of at most `size` samples, in a number that `widths` divide.

        Arguments:
            widths: numbers that must divide the number of microbatches, such as the replicas of each stage.

        Raises:
            InputError: there would be microbatches without a sample. The message says which batch or size would do.
        """
        numbers = sorted(set(widths))
        together = lcm(*numbers)
        count = -(-batch_size // size)
        count += -count % together
        if together > batch_size:
            found = f"{batch_size}, to be divided among {_spoken(numbers)} devices"
            expected = f"at least {together}, a multiple of all of these: each microbatch needs a sample"
            raise InputError(
                "batch_size", found, expected, "Use a larger batch, or other numbers of devices for the stages."
            )
        if count > batch_size:
            found = f"{size}: {show_count(count, 'microbatch')} of a batch of {show_count(batch_size, 'sample')}"
            raise InputError("microbatch_size", found, f"at least {-(-batch_size // together)}")
        return cls(batch_size, size, count, even=True)

    def start(self, microbatch: int) -> int:
        """Number of samples of the run before a microbatch.

        Arguments:
            microbatch: number of the microbatch, counted across batches.
        """
        batch, within = divmod(microbatch, self.count)
        before = -(-within * self.batch_size // self.count) if self.even else within * self.size
        return batch * self.batch_size + before

    def samples(self, microbatch: int, merged: int = 1) -> int:
        """Number of samples of a microbatch, or of several microbatches that run as one.

        Arguments:
            microbatch: number of the first microbatch.
            merged: number of consecutive microbatches.
        """
        return self.start(microbatch + merged) - self.start(microbatch)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples of each microbatch of a batch."""
        return tuple(self.samples(m) for m in range(self.count))


def _spoken(numbers: Sequence[int]) -> str:
    """Write numbers as text, such as "2, 3 and 4"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last

"""Microbatches: the samples of each microbatch of a batch.

Rules of this file: samples stay whole, and each is in exactly one microbatch. If microbatches run one by one, all have
the full size and the last one has the rest. If several run together (StageShape.merged), they are as equal as whole
samples allow, and so are the bundles: if a batch has g bundles, none has more than ceil(batch / g) samples.
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
        size: samples of the largest microbatch.
        count: microbatches of a batch.
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
        """Samples of the run before a microbatch."""
        batch, within = divmod(microbatch, self.count)
        before = -(-within * self.batch_size // self.count) if self.even else within * self.size
        return batch * self.batch_size + before

    def samples(self, microbatch: int, merged: int = 1) -> int:
        """Samples of one microbatch, or of `merged` microbatches from it on."""
        return self.start(microbatch + merged) - self.start(microbatch)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each microbatch of a batch."""
        return tuple(self.samples(m) for m in range(self.count))


def _spoken(numbers: Sequence[int]) -> str:
    """Numbers as text, such as "2, 3 and 4"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last

"""Microbatches: which samples of a batch each of its microbatches has.

Rules of this file: whole samples, none twice and none left out. Where microbatches are run one by one all are as large as they may be,
and the last has what is left. Where several run together (StageShape.merged) they are as equal as whole samples can be, and so is
every bundle: of g bundles in a batch none has more than ceil(batch / g) samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from hocket.errors import InputError
from hocket.util.units import show_count


@dataclass(frozen=True)
class Microbatches:
    """The microbatches of every batch of a run, numbered on from batch to batch.

    Attributes:
        count: of one batch; size: samples of the largest. even: whether they are as equal as they can be.
    """

    batch_size: int
    size: int
    count: int
    even: bool = False

    @classmethod
    def of(cls, batch_size: int, size: int) -> "Microbatches":
        """Microbatches of a fixed size; the last microbatch of a batch holds the rest."""
        return cls(batch_size, size, -(-batch_size // size))

    @classmethod
    def bundled(cls, batch_size: int, size: int, widths: Iterable[int]) -> "Microbatches":
        """Microbatches of at most `size` samples, in a number that all `widths` divide.

        Raises:
            InputError: there would be microbatches without a sample; it says what batch or size would do.
        """
        numbers = sorted(set(widths))
        together = lcm(*numbers)
        count = -(-batch_size // size)
        count += -count % together
        if together > batch_size:
            found = f"{batch_size}, to be divided among {_spoken(numbers)} devices"
            expected = f"at least {together}, which all of these divide: a microbatch has a sample at least"
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
        """Samples of one microbatch, or of so many from it on."""
        return self.start(microbatch + merged) - self.start(microbatch)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each microbatch of a batch."""
        return tuple(self.samples(m) for m in range(self.count))


def _spoken(numbers: Sequence[int]) -> str:
    """Numbers as text, such as "2, 3 and 4"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last

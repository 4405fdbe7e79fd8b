"""Bundles: pieces of borders in stages that run several microbatches at once.

Rules of this file: the same behaviour as runtime/stage/bundles.py, for values. Pieces are copied from a bundle's
output, and joined into a bundle's input.
"""

from collections.abc import Iterator
from math import gcd

from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.passes.borders import StageCut

BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})


class Bundles:
    """The bundles of one plan's stages.

    Arguments:
        samples: samples of each microbatch of a batch.
    """

    def __init__(self, cuts: tuple[StageCut, ...], samples: tuple[int, ...]) -> None:
        self._cuts, self._samples = cuts, samples

    def piece(self, value: Value) -> int:
        """Microbatches in an activation or gradient.

        The number divides the bundles of both stages.
        """
        return gcd(self._cuts[value.stage].merged, self._cuts[value.part].merged)

    def samples_in(self, instruction: Instruction, value: Value, samples: int) -> int:
        """Samples of one value of an instruction.

        Activations and gradients of a bundle have the samples of their piece.
        """
        merged = self._cuts[instruction.stage].merged
        if merged == 1 or value.what not in BORDER or instruction.kind not in (Kind.FORWARD, Kind.BACKWARD):
            return samples
        return sum(self._samples[m % len(self._samples)] for m in range(value.index, value.index + self.piece(value)))

    def maker(self, value: Value) -> StageCut:
        """The stage that writes an activation or gradient."""
        return self._cuts[value.stage if value.what is ValueKind.ACTIVATION else value.part]

    def reader(self, value: Value) -> StageCut:
        """The stage that reads an activation or gradient."""
        return self._cuts[value.part if value.what is ValueKind.ACTIVATION else value.stage]

    def split(self, value: Value) -> bool:
        """True if the value is one of several pieces copied from a bundle's output."""
        return self.maker(value).merged > self.piece(value)

    def joined(self, value: Value, device: int) -> bool:
        """True if a device copies the value when it joins the pieces of a bundle."""
        reader = self.reader(value)
        return reader.merged > self.piece(value) and reader.device(value.index) == device

    def joins(self, instruction: Instruction) -> Iterator[Value]:
        """Yield the pieces that a forward or backward joins before it begins."""
        what = ValueKind.ACTIVATION if instruction.kind is Kind.FORWARD else ValueKind.GRADIENT
        return (v for v in instruction.reads if v.what is what and self.joined(v, instruction.device))

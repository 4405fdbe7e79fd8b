"""Bundles: microbatches that a stage runs together, and pieces of their messages.

An activation or gradient on a stage boundary is a piece: the microbatches that go from one device to another together.
Pieces are copied from the output of a bundle, and joined into the input of a bundle.

Rules of this file: the same behaviour as runtime/stage/bundles.py, for values.
"""

from collections.abc import Iterator
from math import gcd

from hocket.program.instruction import Instruction, Kind, Value, ValueKind
from hocket.program.passes.borders import StageCut

BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})


class Bundles:
    """Bundles and pieces of one plan's stages.

    Arguments:
        cuts: the stages.
        samples: samples of each microbatch of a batch.
    """

    def __init__(self, cuts: tuple[StageCut, ...], samples: tuple[int, ...]) -> None:
        self._cuts, self._samples = cuts, samples

    def piece(self, value: Value) -> int:
        """Number of microbatches in an activation or gradient.

        It divides the number of microbatches in the bundles of both stages.
        """
        return gcd(self._cuts[value.stage].merged, self._cuts[value.part].merged)

    def samples_in(self, instruction: Instruction, value: Value, samples: int) -> int:
        """Number of samples of one value of an instruction.

        An activation or gradient that a forward or backward of a bundle reads or writes has the samples of a piece.
        All other values have the samples of the instruction.

        Arguments:
            samples: samples of the instruction's microbatches.
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
        """True if an activation or gradient is one of several pieces of a bundle's output.

        Pieces are copies.
        """
        return self.maker(value).merged > self.piece(value)

    def joined(self, value: Value, device: int) -> bool:
        """True if a device copies an activation or gradient to join it with other pieces.

        It does so if it runs the bundle that reads the value, and the bundle has several pieces.
        """
        reader = self.reader(value)
        return reader.merged > self.piece(value) and reader.device(value.index) == device

    def joins(self, instruction: Instruction) -> Iterator[Value]:
        """Yield the pieces that a forward or backward joins before it begins."""
        what = ValueKind.ACTIVATION if instruction.kind is Kind.FORWARD else ValueKind.GRADIENT
        return (v for v in instruction.reads if v.what is what and self.joined(v, instruction.device))

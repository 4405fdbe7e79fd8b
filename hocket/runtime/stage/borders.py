"""Stage boundaries: tensors between stages, as one device receives and sends them.

A stage that runs several microbatches at once (merged microbatches) may receive the tensors of a boundary in pieces,
each for some of the samples. It joins them. In the same way it splits its outputs into the pieces that the stage at
the other end reads. bundles.py joins and splits the tensors.
"""

from collections.abc import Iterable, Iterator, Sequence

from hocket.profiling.capture.capture import Captured
from hocket.program.instruction import Instruction, Value, ValueKind
from hocket.program.microbatches import Microbatches
from hocket.program.order import piece
from hocket.program.program import Program
from hocket.runtime.stage.bundles import Border, Pieces
from hocket.runtime.stage.stage_layout import StagePart
from hocket.runtime.swapping.swapper import Store


class Borders:
    """Stage boundaries of one device's stages."""

    def __init__(self, captured: Captured, batches: Microbatches, program: Program, parts: Sequence[StagePart]) -> None:
        """Find the batch dimensions of each boundary that is received or sent in pieces.

        Arguments:
            parts: the device's stages.

        Raises:
            InputError: a tensor cannot be split along a batch dimension.
        """
        self._batches, self._program = batches, program
        self._pieces = {
            (part.number, other): Pieces(captured, names, flowing[other], self._unlike(part, other))
            for part in parts
            for borders, flowing in (
                (part.arriving, part.arriving_gradients),
                (part.leaving, part.leaving_gradients),
            )
            for other, names in borders.items()
            if self._piece(part.number, other) < part.shape.merged
        }

    def _unlike(self, part: StagePart, other: int) -> tuple[int, int]:
        """Return how many samples the merged microbatches have together, and how many one piece has.

        Arguments:
            other: the stage at the other end of the boundary.
        """
        return self._batches.samples(0, part.shape.merged), self._batches.samples(0, self._piece(part.number, other))

    def _piece(self, one: int, other: int) -> int:
        """Return the number of microbatches in one piece between two stages."""
        return piece(self._program.stages, one, other)

    def come(self, instruction: Instruction, store: Store, what: ValueKind) -> Iterator[tuple[int, Border]]:
        """Yield the boundary tensors that an instruction reads, joined from pieces.

        The pieces in the store become views of the joined tensors.

        Arguments:
            what: ACTIVATION or GRADIENT.

        Yields:
            (the stage at the other end of the boundary, its tensors).
        """
        for other, values in by_stage(instruction.stage, instruction.reads, what).items():
            if len(values) == 1:
                yield other, store[values[0]]
                continue
            pieces = self._pieces[instruction.stage, other]
            whole, views = pieces.joined(what, [store[value] for value in values])
            store.update(zip(values, views, strict=True))
            yield other, whole

    def hand_on(
        self,
        instruction: Instruction,
        store: Store,
        other: int,
        values: list[Value],
        whole: Border,
    ) -> None:
        """Store boundary tensors for another stage, split into the pieces that it reads.

        Arguments:
            other: the stage at the other end of the boundary.
            values: names of the pieces.
            whole: the tensors.
        """
        found = [whole]
        if len(values) > 1:
            each = self._piece(instruction.stage, other)
            samples = [self._batches.samples(value.index, each) for value in values]
            found = self._pieces[instruction.stage, other].split(values[0].what, whole, samples)
        store.update(zip(values, found, strict=True))


def by_stage(stage: int, values: Iterable[Value], what: ValueKind) -> dict[int, list[Value]]:
    """Group values of one kind by the stage at the other end of the boundary.

    Arguments:
        stage: the stage at this end.
        what: ACTIVATION or GRADIENT; other values are left out.
    """
    found: dict[int, list[Value]] = {}
    for value in sorted(value for value in values if value.what is what):
        found.setdefault(value.stage if value.part == stage else value.part, []).append(value)
    return found

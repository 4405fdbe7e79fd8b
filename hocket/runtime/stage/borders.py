"""Stage boundaries: tensors between stages, as one device receives and sends them.

Rules of this file: a bundle of microbatches finds the pieces of a border in one, and leaves them in as many as the stage at the other end
runs at once; how tensors are joined and split is bundles.py's.
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
    """The borders of one device's stages."""

    def __init__(self, captured: Captured, batches: Microbatches, program: Program, parts: Sequence[StagePart]) -> None:
        """Find how those are divided that come or go in pieces.

        Raises:
            InputError: a tensor that no dimension divides.
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
        """Samples of a bundle, and of a piece of it for or from another stage."""
        return self._batches.samples(0, part.shape.merged), self._batches.samples(0, self._piece(part.number, other))

    def _piece(self, one: int, other: int) -> int:
        """Microbatches of a piece on the border of two stages."""
        return piece(self._program.stages, one, other)

    def come(self, instruction: Instruction, store: Store, what: ValueKind) -> Iterator[tuple[int, Border]]:
        """Yield the boundary values that a bundle reads from other stages, joined.

        Pieces become views.
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
        """Store a bundle's boundary value for another stage.

        It is divided into as many pieces as that stage reads.
        """
        found = [whole]
        if len(values) > 1:
            each = self._piece(instruction.stage, other)
            samples = [self._batches.samples(value.index, each) for value in values]
            found = self._pieces[instruction.stage, other].split(values[0].what, whole, samples)
        store.update(zip(values, found, strict=True))


def by_stage(stage: int, values: Iterable[Value], what: ValueKind) -> dict[int, list[Value]]:
    """Activations or gradients of an instruction, by the stage at the other end."""
    found: dict[int, list[Value]] = {}
    for value in sorted(value for value in values if value.what is what):
        found.setdefault(value.stage if value.part == stage else value.part, []).append(value)
    return found

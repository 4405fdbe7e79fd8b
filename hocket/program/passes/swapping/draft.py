"""Draft: the unfinished instructions of one device, and completion markers.

A lane of swaps or computation waits for another lane by a completion marker: a value without bytes that the one
instruction writes and the other reads.

Rules of this file: it knows neither the meaning of instructions nor why one waits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hocket.program.instruction import COMPUTE, SWAP_LANES, Instruction, Value, ValueKind


@dataclass
class Item:
    """An unfinished instruction. Its reads, writes and frees may still grow."""

    instruction: Instruction
    reads: list[Value]
    writes: list[Value]
    frees: list[Value]

    def finished(self) -> Instruction:
        """The instruction, with each value freed once."""
        return replace(
            self.instruction, reads=tuple(self.reads), writes=tuple(self.writes), frees=tuple(dict.fromkeys(self.frees))
        )


class Draft:
    """Instructions of all lanes, numbered in the order in which they were added.

    An item is such an instruction, given by its number.

    Attributes:
        computed: number of the last item of the compute lane, -1 before the first.
    """

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._marks = 0
        self._waited = dict.fromkeys((COMPUTE, *SWAP_LANES.values()), -1)  # by lane: highest item that it waits for
        self.computed = -1

    def __getitem__(self, number: int) -> Item:
        return self._items[number]

    def add(self, i: Instruction, reads: Iterable[Value], writes: Iterable[Value], frees: Iterable[Value]) -> int:
        """Add an instruction at the end of its lane; return its number."""
        self._items.append(Item(i, list(reads), list(writes), list(frees)))
        if i.lane == COMPUTE:
            self.computed = len(self._items) - 1
        return len(self._items) - 1

    def waits(self, number: int, last: int) -> bool:
        """True if an item's lane already waits for another item.

        This is taken to be so if the lane waits for any item with the number `last` or a higher one.

        Arguments:
            number: the item that would wait. Only its lane matters.
            last: the item to wait for.
        """
        return last <= self._waited[self._items[number].instruction.lane]

    def wait(self, number: int, *others: int) -> None:
        """Let an item wait for earlier items of other lanes, by completion markers.

        No marker is added where `waits` is true.

        Arguments:
            number: the item that waits.
            others: the items to wait for; -1 for none.
        """
        item = self._items[number]
        lane = item.instruction.lane
        for other in others:
            if not self.waits(number, other):
                self._mark(self._items[other], item)
        self._waited[lane] = max(self._waited[lane], *others)

    def _mark(self, before: Item, item: Item) -> None:
        mark = Value(ValueKind.MARK, before.instruction.stage, 0, self._marks)
        self._marks += 1
        before.writes.append(mark)
        item.reads.append(mark)
        item.frees.append(mark)

    def finished(self) -> Iterator[Instruction]:
        """Yield all instructions; the instructions of each lane are in their order."""
        return (item.finished() for item in self._items)

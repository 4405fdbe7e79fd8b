"""Where a row or a block of a burst plan stands: what it leads to, on how many devices, and whether its ends change to others."""

from dataclasses import dataclass, replace

from hocket.strategies.burst.graph import UnitRow


@dataclass(frozen=True)
class BranchPosition:
    """Position of a row or a block in the graph.

    Attributes:
        target: the unit that it leads to, None for the loss.
        budget: devices that there are for it.
        aside_in, aside_out: whether what comes from the unit before, and what goes to the target, changes to other devices.
    """

    target: int | None
    budget: int
    aside_in: bool = False
    aside_out: bool = False

    @property
    def aside(self) -> bool:
        """True if an edge from one end to the other runs on devices of its own."""
        return self.aside_in or self.aside_out

    def of_branch(self, width: int, aside: bool) -> "BranchPosition":
        """A branch on so many devices, its own ones or not."""
        return BranchPosition(self.target, width, self.aside_in or aside, self.aside_out or aside)

    def of_block(self, row: UnitRow, k: int) -> "BranchPosition":
        """The k-th block of a row that stands here."""
        last = k == len(row.units)
        return replace(
            self,
            target=self.target if last else row.units[k],
            aside_in=self.aside_in and k == 0,
            aside_out=self.aside_out and last,
        )

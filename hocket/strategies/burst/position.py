"""Position of a row or a block in a burst-parallel plan: target and devices."""

from dataclasses import dataclass, replace

from hocket.strategies.burst.graph import UnitRow


@dataclass(frozen=True)
class BranchPosition:
    """Position of a row or a block in the graph.

    Attributes:
        target: the unit that it leads to; None for the loss.
        budget: number of devices that it may use.
        aside_in: True if inputs from the unit before it move to other devices.
        aside_out: True if outputs to the target move to other devices.
    """

    target: int | None
    budget: int
    aside_in: bool = False
    aside_out: bool = False

    @property
    def aside(self) -> bool:
        """True if an edge from one end to the other moves to other devices."""
        return self.aside_in or self.aside_out

    def of_branch(self, width: int, aside: bool) -> "BranchPosition":
        """Position of a branch on `width` devices; `aside`: devices of its own."""
        return BranchPosition(self.target, width, self.aside_in or aside, self.aside_out or aside)

    def of_block(self, row: UnitRow, k: int) -> "BranchPosition":
        """Position of the k-th block of a row at this position."""
        last = k == len(row.units)
        return replace(
            self,
            target=self.target if last else row.units[k],
            aside_in=self.aside_in and k == 0,
            aside_out=self.aside_out and last,
        )

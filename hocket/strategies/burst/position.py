"""Position of a row or a block of units (graph.py) in a burst-parallel plan."""

from dataclasses import dataclass, replace

from hocket.strategies.burst.graph import UnitRow


@dataclass(frozen=True)
class BranchPosition:
    """Position of a row or a block in the graph.

    Attributes:
        target: the unit after it; None for the loss.
        budget: number of devices that it may use.
        aside_in: True if its first units are on other devices than the unit before it.
        aside_out: True if its last units are on other devices than `target`.
    """

    target: int | None
    budget: int
    aside_in: bool = False
    aside_out: bool = False

    @property
    def aside(self) -> bool:
        """True if a direct edge from the unit before to `target` goes to other devices."""
        return self.aside_in or self.aside_out

    def of_branch(self, width: int, aside: bool) -> "BranchPosition":
        """Position of a branch of a block at this position.

        Arguments:
            width: number of devices of the branch.
            aside: True if the branch has separate devices, in parallel to other branches.
        """
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

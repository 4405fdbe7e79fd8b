"""The fastest numbers of devices for the units of a row under a limit of every unit's GPU-second amplification.

Rules of this file: a step from one unit to the next is allowed or not by itself (amplification of the unit that it leads to:
transfer, compute and synchronisation times devices, over the seconds on one), so that the fastest row is a shortest path; of a
block of branches only a matrix counts, by devices before and behind. How its branches are run is branches.py's; what figures are,
and cost, lagrangian.py's.
Source: DeepPool section 4.2; the test of its Algorithm 1 stands in `algorithm1.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hocket.strategies.burst.branches import BranchOptions, best_ways
from hocket.strategies.burst.costs import BurstCosts, Edge
from hocket.strategies.burst.graph import BranchBlock, UnitRow
from hocket.strategies.burst.lagrangian import Prices, back
from hocket.strategies.burst.position import BranchPosition

SLACK = 1 + 1e-9  # of a limit: sums of the same numbers in another order


class BurstSearch:
    """The search of one row of units.

    Arguments:
        limit: of the amplification of every unit.
        only: for some units the one number of devices (an index into the counts) that they may have.
        prices: seconds that a GPU-second and a byte are worth; None where neither is counted.

    Attributes:
        whole: where the row stands.
    """

    def __init__(
        self,
        costs: BurstCosts,
        row: UnitRow,
        limit: float,
        only: Mapping[int, int] | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        self.costs, self.row, self.limit = costs, row, limit
        self._n = len(costs.counts)
        self._prices = Prices(prices)
        own_s = costs.own_s.copy()
        for unit, count in (only or {}).items():
            own_s[unit, np.arange(self._n) != count] = np.inf
        amounts = () if prices is None else (costs.own_s * costs.counts, costs.held_bytes)
        self._own = np.stack((own_s, *amounts), axis=1)
        top = int(costs.counts[-1])
        self._widths = sorted({top, *(2**k for k in range(top.bit_length()))})
        self.whole = BranchPosition(None, costs.cluster.devices)
        self._units: dict[int, np.ndarray] = {}
        self._edges: dict[tuple[Edge, int | None, bool], np.ndarray] = {}
        self._rows: dict[tuple[int, BranchPosition], np.ndarray] = {}
        self._blocks: dict[tuple[int, BranchPosition], BranchOptions] = {}

    def at_prices(self, prices: tuple[float, float]) -> "BurstSearch":
        """The search with other prices; results that do not depend on prices are kept."""
        found = copy(self)
        found._prices = Prices(prices)
        found._rows, found._blocks = {}, {}
        return found

    def steps(self) -> Iterator[np.ndarray]:
        """Yield figures of each block with the unit after it, by devices before (rows) and after (columns)."""
        for unit, step in self._row_steps(self.row, self.whole):
            yield step if unit is None else step + self._own[unit][:, None]

    def fastest(self) -> tuple[float, tuple[int, ...]]:
        """Least cost of a row (infinite if nothing is allowed) with its counts: batch, units, loss."""
        cost, came = np.zeros(self._n), []
        for step in self.steps():
            cost, before = self._prices.forward(cost, step)
            came.append(before)
        end = int(cost.argmin())
        return float(cost[end]), back(came, end)

    def seconds(self, counts: tuple[int, ...]) -> float:
        """Seconds of the row with these counts."""
        return sum(float(step[0][pair]) for step, pair in zip(self.steps(), pairwise(counts), strict=True))

    def _edge(self, edge: Edge, where: BranchPosition) -> np.ndarray:
        """Figures of a transfer; infinite where the unit that it leads to would be above the limit."""
        costs, target = self.costs, where.target
        key = (edge, target if self.limit < np.inf else None, where.aside)
        if key not in self._edges:
            found = costs.transfer_s(edge, where.aside)
            amounts = () if not self._prices.amounts else (found * costs.counts, np.zeros_like(found))
            if target is not None and self.limit < np.inf:
                spent = (found + costs.own_s[target]) * costs.counts
                found = np.where(spent <= self.limit * costs.alone_s[target] * SLACK, found, np.inf)
            self._edges[key] = np.stack((found, *amounts))
        return self._edges[key]

    def _block(self, block: BranchBlock, where: BranchPosition) -> np.ndarray:
        """Figures between two units, both left out."""
        if not block.branches:
            assert block.edge is not None
            return self._edge(block.edge, where)
        return self.ways(block, where).figures

    def ways(self, block: BranchBlock, where: BranchPosition) -> BranchOptions:
        """Best way to run the branches of a block, for each pair of counts."""
        key = (id(block), where)
        if key not in self._blocks:
            self._blocks[key] = self._compared(block, where)
        return self._blocks[key]

    def _compared(self, block: BranchBlock, where: BranchPosition) -> BranchOptions:
        widths = [width for width in self._widths if width <= where.budget]

        def by_width(branches: Sequence[int], aside: bool) -> np.ndarray:
            own = where.of_branch(self._widths[-1], aside)
            return np.stack([self._row(block.branches[c], own)[: len(widths)] for c in branches])

        direct = self._edge(block.edge, where) if block.edge is not None else None
        return best_ways(len(block.branches), by_width, direct, widths, where.budget, self._prices)

    def _row(self, row: UnitRow, where: BranchPosition) -> np.ndarray:
        """Figures of a branch by devices before and after it, for each width; shape (widths, figures, counts, counts)."""
        key = (id(row), where)
        if key not in self._rows:
            found: np.ndarray | None = None
            for k, block in enumerate(row.blocks):
                step = self._each_width(block, where.of_block(row, k))
                found = step if found is None else self._prices.least_sums(found, step)
                if k < len(row.units):
                    found = found + self._on_widths(row.units[k])
            assert found is not None
            self._rows[key] = found
        return self._rows[key]

    def _each_width(self, block: BranchBlock, where: BranchPosition) -> np.ndarray:
        """Figures of a block in a branch; shape (widths, figures, counts, counts), or 1 for widths if all are equal."""
        if not block.branches:
            return self._block(block, where)[None]
        return np.stack([self._block(block, replace(where, budget=width)) for width in self._widths])

    def _on_widths(self, unit: int) -> np.ndarray:
        """A unit's own figures on at most so many devices; shape (widths, figures, 1, counts)."""
        if unit not in self._units:
            found = np.repeat(self._own[unit][None, :, None], len(self._widths), axis=0)
            for w, width in enumerate(self._widths):
                found[w, 0, 0, self.costs.counts > width] = np.inf
            self._units[unit] = found
        return self._units[unit]

    def _row_steps(self, row: UnitRow, where: BranchPosition) -> Iterator[tuple[int | None, np.ndarray]]:
        """Yield the figures of each block, and the unit after it (None for the last)."""
        for k, block in enumerate(row.blocks):
            unit = row.units[k] if k < len(row.units) else None
            yield unit, self._block(block, where.of_block(row, k))

    def inside(self, row: UnitRow, pair: tuple[int, int], where: BranchPosition) -> tuple[int, ...]:
        """The counts of a branch's units between two given ones, with these."""
        cost, came = np.full(self._n, np.inf), []
        cost[pair[0]] = 0.0
        for unit, step in self._row_steps(row, where):
            cost, at = self._prices.forward(cost, step)
            if unit is not None:
                cost = cost + self._prices.cost(self._on_widths(unit)[self._widths.index(where.budget)])[0]
            came.append(at)
        return back(came, pair[1])

"""Shortest-path search for the fastest numbers of devices of a row of units.

Every unit has an amplification limit. The amplification of a unit is its GPU-seconds (transfer, compute and
all-reduce, times devices) divided by its seconds on one device. A step from one unit to the next is allowed if the
amplification of the next unit is within the limit. This does not depend on other steps, so the fastest plan is a
shortest path.

A block of branches is one matrix, by number of devices before and after the block. branches.py decides how its
branches run. graph.py defines units, rows and blocks; lagrangian.py defines counts, figures (arrays of costs) and
costs.

Source: DeepPool, section 4.2. `algorithm1.py` has the limit test of its Algorithm 1.
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

SLACK = 1 + 1e-9  # factor by which a limit may be exceeded, because sums in another order differ a little


class BurstSearch:
    """Search for the numbers of devices of a model's units.

    Arguments:
        row: the row of the whole model.
        limit: maximum amplification of a unit; infinite for no limit.
        only: fixed number of devices of some units, as an index into the possible counts.
        prices: price in seconds of a GPU-second and of a byte; None to ignore both.

    Attributes:
        whole: position of the row in the graph.
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
        """Copy of the search with other prices.

        Both share the cached results that do not depend on prices.
        """
        found = copy(self)
        found._prices = Prices(prices)
        found._rows, found._blocks = {}, {}
        return found

    def steps(self) -> Iterator[np.ndarray]:
        """Yield the figures of each block together with the unit after it.

        Rows are by number of devices before the block, columns by number of devices after it.
        """
        for unit, step in self._row_steps(self.row, self.whole):
            yield step if unit is None else step + self._own[unit][:, None]

    def fastest(self) -> tuple[float, tuple[int, ...]]:
        """Find the plan with the least cost.

        Returns:
            Cost of the plan in seconds: the time of an iteration, plus GPU-seconds and bytes times their prices if
                there are prices. It is infinite if no plan keeps the amplification limit.
            Device count of the batch, of each unit of the row, and of the loss, as indices into `costs.counts`.
        """
        cost, came = np.zeros(self._n), []
        for step in self.steps():
            cost, before = self._prices.forward(cost, step)
            came.append(before)
        end = int(cost.argmin())
        return float(cost[end]), back(came, end)

    def seconds(self, counts: tuple[int, ...]) -> float:
        """Seconds of the plan with these device counts.

        Arguments:
            counts: device count of the batch, of each unit of the row, and of the loss, as indices into `costs.counts`.
        """
        return sum(float(step[0][pair]) for step, pair in zip(self.steps(), pairwise(counts), strict=True))

    def _edge(self, edge: Edge, where: BranchPosition) -> np.ndarray:
        """Figures of the transfer over an edge.

        Seconds are infinite where the unit after the edge would exceed the amplification limit.
        """
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
        """Figures of a block between two units, without the units themselves."""
        if not block.branches:
            assert block.edge is not None
            return self._edge(block.edge, where)
        return self.ways(block, where).figures

    def ways(self, block: BranchBlock, where: BranchPosition) -> BranchOptions:
        """Best way to run a block, for each number of devices before and after it."""
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
        """Figures of a branch, for each number of devices (width) that it may use.

        Returns:
            Shape (widths, figures, counts before, counts after).
        """
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
        """Figures of a block inside a branch, for each width of the branch.

        Returns:
            Shape (widths, figures, counts before, counts after). The first axis has length 1 if all widths have the
            same figures.
        """
        if not block.branches:
            return self._block(block, where)[None]
        return np.stack([self._block(block, replace(where, budget=width)) for width in self._widths])

    def _on_widths(self, unit: int) -> np.ndarray:
        """Figures of a unit without transfers, for each width of its branch.

        Seconds are infinite for more devices than the width.

        Returns:
            Shape (widths, figures, 1, counts).
        """
        if unit not in self._units:
            found = np.repeat(self._own[unit][None, :, None], len(self._widths), axis=0)
            for w, width in enumerate(self._widths):
                found[w, 0, 0, self.costs.counts > width] = np.inf
            self._units[unit] = found
        return self._units[unit]

    def _row_steps(self, row: UnitRow, where: BranchPosition) -> Iterator[tuple[int | None, np.ndarray]]:
        """Yield the unit after each block (None for the last), and the block's figures."""
        for k, block in enumerate(row.blocks):
            unit = row.units[k] if k < len(row.units) else None
            yield unit, self._block(block, where.of_block(row, k))

    def inside(self, row: UnitRow, pair: tuple[int, int], where: BranchPosition) -> tuple[int, ...]:
        """Best numbers of devices of the units of a branch, as indices.

        Arguments:
            pair: numbers of devices before and after the branch, as indices.

        Returns:
            The number before the branch, of each of its units, and after it.
        """
        cost, came = np.full(self._n, np.inf), []
        cost[pair[0]] = 0.0
        for unit, step in self._row_steps(row, where):
            cost, at = self._prices.forward(cost, step)
            if unit is not None:
                cost = cost + self._prices.cost(self._on_widths(unit)[self._widths.index(where.budget)])[0]
            came.append(at)
        return back(came, pair[1])

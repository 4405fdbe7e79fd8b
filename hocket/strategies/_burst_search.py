"""The fastest numbers of devices for the units of a row under a limit of every unit's GPU-second amplification.

Rules of this file: a step from one unit to the next is allowed or not by itself (amplification of the unit that it leads to:
transfer, compute and synchronisation times devices, over the seconds on one), so that the fastest row is a shortest path; of a
block of branches only the matrix of its seconds counts, by devices before and behind. Branches run one after the other, or some of
them meanwhile on devices of their own, whichever is faster.
Source: DeepPool section 4.2; the test of its Algorithm 1 stands in `_burst_printed.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from hocket.strategies._burst_cost import BurstCosts, Edge
from hocket.strategies._burst_graph import START, Block, Row

SLACK = 1 + 1e-9  # of a limit: sums of the same numbers in another order
_CELLS = 2_000_000  # of sums at once in memory
_SIDE_BY_SIDE = 3  # branches that leave the others


@dataclass(frozen=True)
class Placed:
    """Where a unit is: `count` is an index into the counts, `first` its first device; comm_s of all that comes to it."""

    unit: int
    first: int
    count: int
    comm_s: float
    amplification: float


@dataclass(frozen=True)
class _Way:
    """How branches are divided: devices of those that run in turn, and of each that runs beside them."""

    width: int
    beside: tuple[tuple[int, int], ...] = ()  # branch, devices


class BurstSearch:
    """The search of one row of units.

    Arguments:
        limit: of the amplification of every unit.
        only: for some units the one number of devices (an index into the counts) that they may have.
        among: indices of the numbers that units may have, the largest of which branches side by side have together.
    """

    def __init__(
        self,
        costs: BurstCosts,
        row: Row,
        limit: float,
        only: Mapping[int, int] | None = None,
        among: range | None = None,
    ) -> None:
        self.costs, self.row, self.limit = costs, row, limit
        self._n = len(costs.counts)
        self._own_s = costs.own_s.copy()
        self._budget = costs.cluster.devices
        if among is not None:
            self._own_s[:, : among.start] = self._own_s[:, among.stop :] = np.inf
            self._budget = int(costs.counts[among.stop - 1])
        for unit, count in (only or {}).items():
            self._own_s[unit, np.arange(self._n) != count] = np.inf
        top = int(costs.counts[-1])
        self._widths = sorted({top, *(2**k for k in range(top.bit_length()))})
        self._rows: dict[tuple[int, int, bool, bool], np.ndarray] = {}
        self._blocks: dict[tuple[int, int, bool, bool], tuple[np.ndarray, np.ndarray, list[_Way]]] = {}

    def steps(self) -> Iterator[np.ndarray]:
        """Seconds of each block of the row and the unit behind it, by devices before (rows) and behind (columns)."""
        for unit, step in self._row_steps(self.row, START, None, self._budget, False, False):
            yield step if unit is None else step + self._own_s[unit]

    def fastest(self) -> tuple[float, tuple[int, ...]]:
        """Seconds of the fastest row, infinite where nothing is allowed, and its counts: of the batch, the units, the loss."""
        seconds, came = np.zeros(self._n), []
        for step in self.steps():
            seconds, before = _forward(seconds, step)
            came.append(before)
        end = int(seconds.argmin())
        return float(seconds[end]), _back(came, end)

    def seconds(self, counts: tuple[int, ...]) -> float:
        """Seconds of the row with these counts."""
        return sum(float(step[pair]) for step, pair in zip(self.steps(), pairwise(counts), strict=True))

    def placed(self, counts: tuple[int, ...]) -> list[Placed]:
        """Every unit's place when those of the row have these counts."""
        steps = (self.placed_step(k, pair) for k, pair in enumerate(pairwise(counts)))
        return [one for step in steps for one in step]

    def placed_step(self, k: int, pair: tuple[int, int]) -> list[Placed]:
        """The places of one step: of what its block holds, and of the unit behind it."""
        return self._place_step(self.row, k, START, None, pair, self._budget, False, False, 0)

    def _edge(self, edge: Edge, target: int | None, aside: bool) -> np.ndarray:
        """Seconds of a transfer; infinite where the unit that it leads to would be above the limit."""
        found = self.costs.transfer_s(edge, aside)
        if target is None or self.limit == np.inf:
            return found
        costs = self.costs
        spent = (found + costs.own_s[target]) * costs.counts
        allowed = self.limit * costs.alone_s[target] * SLACK
        return np.where(spent <= allowed, found, np.inf)

    def _block(
        self, block: Block, before: int, target: int | None, budget: int, aside_in: bool, aside_out: bool
    ) -> np.ndarray:
        """Seconds between two units, both left out; shape (counts, counts)."""
        if not block.branches:
            assert block.edge is not None
            return self._edge(block.edge, target, aside_in or aside_out)
        return self._ways(block, before, target, budget, aside_in, aside_out)[0]

    def _ways(
        self, block: Block, before: int, target: int | None, budget: int, aside_in: bool, aside_out: bool
    ) -> tuple[np.ndarray, np.ndarray, list[_Way]]:
        """Of a block with branches: seconds, which way is taken, and the ways."""
        key = (id(block), budget, aside_in, aside_out)
        if key not in self._blocks:
            self._blocks[key] = self._compared(block, before, target, budget, aside_in, aside_out)
        return self._blocks[key]

    def _compared(
        self, block: Block, before: int, target: int | None, budget: int, aside_in: bool, aside_out: bool
    ) -> tuple[np.ndarray, np.ndarray, list[_Way]]:
        branches = block.branches
        widths = [width for width in self._widths if width <= budget]

        def branch(c: int, width: int, aside: bool = False) -> np.ndarray:
            return self._row(branches[c], before, target, width, aside_in or aside, aside_out or aside)

        alone = np.stack([[branch(c, width) for width in widths] for c in range(len(branches))])
        direct = self._edge(block.edge, target, aside_in or aside_out) if block.edge is not None else 0.0
        best = direct + alone[:, -1].sum(axis=0)
        chosen, ways = np.zeros(best.shape, dtype=np.int64), [_Way(widths[-1])]
        moved: dict[int, np.ndarray] = {}
        for size in range(1, min(_SIDE_BY_SIDE, len(branches) - 1) + 1 if len(widths) > 1 else 1):
            shared = np.array(list(_divisions(size + 1, widths, budget))).reshape(-1, size + 1)
            for group in combinations(range(len(branches)), size) if len(shared) else ():
                for c in group:
                    if c not in moved:
                        moved[c] = np.stack([branch(c, width, aside=True) for width in widths])
                rest = direct + alone[[c for c in range(len(branches)) if c not in group]].sum(axis=0)
                for part in np.array_split(shared, max(1, len(shared) * best.size // _CELLS)):
                    found = rest[part[:, 0]]
                    for k, c in enumerate(group):
                        np.maximum(found, moved[c][part[:, k + 1]], out=found)
                    at = found.argmin(axis=0)
                    least = np.take_along_axis(found, at[None], axis=0)[0]
                    better = least < best
                    best = np.where(better, least, best)
                    chosen = np.where(better, at + len(ways), chosen)
                    ways += [
                        _Way(widths[one[0]], tuple((c, widths[k]) for c, k in zip(group, one[1:], strict=True)))
                        for one in part
                    ]
        return best, chosen, ways

    def _row(
        self, row: Row, before: int, target: int | None, budget: int, aside_in: bool, aside_out: bool
    ) -> np.ndarray:
        """Seconds of a branch by devices before and behind it; shape (counts, counts)."""
        key = (id(row), budget, aside_in, aside_out)
        if key not in self._rows:
            found = None
            for unit, step in self._row_steps(row, before, target, budget, aside_in, aside_out):
                found = step if found is None else least_sums(found, step)
                if unit is not None:
                    found = found + self._within(unit, budget)
            assert found is not None
            self._rows[key] = found
        return self._rows[key]

    def _within(self, unit: int, budget: int) -> np.ndarray:
        """A unit's own seconds on at most so many devices."""
        return np.where(self.costs.counts <= budget, self._own_s[unit], np.inf)

    def _row_steps(
        self, row: Row, before: int, target: int | None, budget: int, aside_in: bool, aside_out: bool
    ) -> Iterator[tuple[int | None, np.ndarray]]:
        """Each block's seconds, and the unit behind it, None for the last."""
        ends = (before, *row.units)
        for k, block in enumerate(row.blocks):
            last = k == len(row.units)
            to = target if last else row.units[k]
            seconds = self._block(block, ends[k], to, budget, aside_in and k == 0, aside_out and last)
            yield (None if last else to), seconds

    def _place_step(
        self,
        row: Row,
        k: int,
        before: int,
        target: int | None,
        pair: tuple[int, int],
        budget: int,
        aside_in: bool,
        aside_out: bool,
        first: int,
    ) -> list[Placed]:
        """One block of a row and the unit behind it; behind the last block, what comes to `target`."""
        last = k == len(row.units)
        to = target if last else row.units[k]
        came_from = before if k == 0 else row.units[k - 1]
        inside = self._place_block(
            row.blocks[k], came_from, to, pair, budget, aside_in and k == 0, aside_out and last, first
        )
        if last:
            return inside
        came = [one for one in inside if one.unit == to]
        return [one for one in inside if one.unit != to] + [self._arrived(row.units[k], first, pair[1], came)]

    def _arrived(self, unit: int, first: int, count: int, came: list[Placed]) -> Placed:
        """A unit with all that comes to it; the largest transfer decides its amplification."""
        most = max((one.comm_s for one in came), default=0.0)
        costs = self.costs
        spent = (most + costs.own_s[unit, count]) * costs.counts[count]
        alone = costs.alone_s[unit]
        amplification = spent / alone if alone > 0 else 1.0
        return Placed(unit, first, count, sum(one.comm_s for one in came), float(amplification))

    def _place_block(
        self,
        block: Block,
        before: int,
        target: int | None,
        counts: tuple[int, int],
        budget: int,
        aside_in: bool,
        aside_out: bool,
        first: int,
    ) -> list[Placed]:
        """The units of a block, and for each transfer to `target` an entry of it that says its seconds."""
        placed: list[Placed] = []
        if block.edge is not None and target is not None:
            comm_s = self.costs.transfer_s(block.edge, aside_in or aside_out)[counts]
            placed.append(Placed(target, first, counts[1], float(comm_s), 0.0))
        if not block.branches:
            return placed
        _, chosen, ways = self._ways(block, before, target, budget, aside_in, aside_out)
        way = ways[int(chosen[counts])]
        beside, end = dict(way.beside), first + budget
        for c in sorted(range(len(block.branches)), key=lambda c: -beside.get(c, 0)):
            row, aside = block.branches[c], c in beside
            width = beside.get(c, way.width)
            end -= width if aside else 0
            flags = (aside_in or aside, aside_out or aside)
            inside = self._inside(row, before, target, counts, width, *flags)
            for k, pair in enumerate(pairwise(inside)):
                placed += self._place_step(row, k, before, target, pair, width, *flags, end if aside else first)
        return placed

    def _inside(
        self,
        row: Row,
        before: int,
        target: int | None,
        counts: tuple[int, int],
        budget: int,
        aside_in: bool,
        aside_out: bool,
    ) -> tuple[int, ...]:
        """The counts of a branch's units between two given ones, with these."""
        seconds, came = np.full(self._n, np.inf), []
        seconds[counts[0]] = 0.0
        for unit, step in self._row_steps(row, before, target, budget, aside_in, aside_out):
            seconds, at = _forward(seconds, step)
            if unit is not None:
                seconds = seconds + self._within(unit, budget)
            came.append(at)
        return _back(came, counts[1])


def _divisions(parts: int, widths: list[int], budget: int) -> Iterator[tuple[int, ...]]:
    """Indices of widths for so many sets of devices, the last as wide as the budget lets it."""
    if parts == 1:
        fitting = [k for k, width in enumerate(widths) if width <= budget]
        if fitting:
            yield (fitting[-1],)
        return
    for k, width in enumerate(widths):
        for rest in _divisions(parts - 1, widths, budget - width):
            yield (k, *rest)


def least_sums(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """min over k of first[i, k] + second[k, j]."""
    if first.shape[0] * second.size <= _CELLS:
        whole: np.ndarray = (first[:, :, None] + second[None]).min(axis=1)
        return whole
    return np.stack([(row[:, None] + second).min(axis=0) for row in first])


def _forward(seconds: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sums = seconds[:, None] + step
    at = sums.argmin(axis=0)
    return np.take_along_axis(sums, at[None], axis=0)[0], at


def _back(came: list[np.ndarray], end: int) -> tuple[int, ...]:
    """The counts along the way that ends here, the first one before the first step."""
    found = [end]
    for at in reversed(came):
        found.append(int(at[found[-1]]))
    return tuple(reversed(found))

"""The fastest numbers of devices for the units of a row under a limit of every unit's GPU-second amplification.

Rules of this file: a step from one unit to the next is allowed or not by itself (amplification of the unit that it leads to:
transfer, compute and synchronisation times devices, over the seconds on one), so that the fastest row is a shortest path; of a
block of branches only a matrix counts, by devices before and behind. Branches run one after the other, or some of
them meanwhile on devices of their own, whichever costs less. Where amounts have prices (`AMOUNTS`), figures stand in arrays
of shape (1 + amounts, counts, counts), seconds first, and cost is their sum; otherwise cost is seconds. What is not allowed takes
infinite seconds; amounts are always finite.
Source: DeepPool section 4.2; the test of its Algorithm 1 stands in `_burst_printed.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise, product

import numpy as np

from hocket.strategies._burst_cost import BurstCosts, Edge
from hocket.strategies._burst_graph import Block, Row

SLACK = 1 + 1e-9  # of a limit: sums of the same numbers in another order
AMOUNTS = 2  # GPU-seconds; bytes that one device would hold of all units
_CELLS, _QUICK_CELLS = (
    2_000_000,
    100_000,
)  # of sums at once in memory; of several groups, so that they stay near the processor
_SIDE_BY_SIDE = 3  # branches that leave the others
_LONGEST = 6  # branches that may be among them


@dataclass(frozen=True)
class Placed:
    """Where a unit is: `count` is an index into the counts, `first` its first device; comm_s of all that comes to it."""

    unit: int
    first: int
    count: int
    comm_s: float
    amplification: float


@dataclass(frozen=True)
class _Where:
    """What a row or a block stands in.

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
        """Whether an edge from one end to the other does."""
        return self.aside_in or self.aside_out

    def of_branch(self, width: int, aside: bool) -> "_Where":
        """A branch on so many devices, its own ones or not."""
        return _Where(self.target, width, self.aside_in or aside, self.aside_out or aside)


@dataclass(frozen=True)
class _Ways:
    """A block's figures, and how it is run: for each pair of counts an index into groups and their divisions.

    Attributes:
        groups: branches that have devices of their own, and for each way the widths: of the others, then of each of these.
        starts: index of the first way of each group.
    """

    figures: np.ndarray
    chosen: np.ndarray
    groups: tuple[tuple[tuple[int, ...], np.ndarray], ...]
    starts: tuple[int, ...]

    def at(self, pair: tuple[int, int]) -> tuple[int, dict[int, int]]:
        """Devices of the branches that run in turn, and of each that runs beside them."""
        way = int(self.chosen[pair])
        k = max(k for k, start in enumerate(self.starts) if start <= way)
        group, widths = self.groups[k]
        own = [int(width) for width in widths[way - self.starts[k]]]
        return own[0], dict(zip(group, own[1:], strict=True))


class BurstSearch:
    """The search of one row of units.

    Arguments:
        limit: of the amplification of every unit.
        only: for some units the one number of devices (an index into the counts) that they may have.
        prices: seconds that a GPU-second and a byte are worth; None where neither is counted.
    """

    def __init__(
        self,
        costs: BurstCosts,
        row: Row,
        limit: float,
        only: Mapping[int, int] | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        self.costs, self.row, self.limit = costs, row, limit
        self._n = len(costs.counts)
        self._prices = np.array((1.0,) if prices is None else (1.0, *prices))
        own_s = costs.own_s.copy()
        for unit, count in (only or {}).items():
            own_s[unit, np.arange(self._n) != count] = np.inf
        amounts = () if prices is None else (costs.own_s * costs.counts, costs.held_bytes)
        self._own = np.stack((own_s, *amounts), axis=1)
        top = int(costs.counts[-1])
        self._widths = sorted({top, *(2**k for k in range(top.bit_length()))})
        self._whole = _Where(None, costs.cluster.devices)
        self._units: dict[int, np.ndarray] = {}
        self._edges: dict[tuple[Edge, int | None, bool], np.ndarray] = {}
        self._rows: dict[tuple[int, _Where], np.ndarray] = {}
        self._blocks: dict[tuple[int, _Where], _Ways] = {}

    def at_prices(self, prices: tuple[float, float]) -> "BurstSearch":
        """The same search where amounts are worth this; what does not depend on it is not worked out again."""
        found = copy(self)
        found._prices = np.array((1.0, *prices))
        found._rows, found._blocks = {}, {}
        return found

    def steps(self) -> Iterator[np.ndarray]:
        """Figures of each block of the row and the unit behind it, by devices before (rows) and behind (columns)."""
        for unit, step in self._row_steps(self.row, self._whole):
            yield step if unit is None else step + self._own[unit][:, None]

    def fastest(self) -> tuple[float, tuple[int, ...]]:
        """The least cost of a row, infinite where nothing is allowed, and its counts: of the batch, the units, the loss."""
        cost, came = np.zeros(self._n), []
        for step in self.steps():
            cost, before = self._forward(cost, step)
            came.append(before)
        end = int(cost.argmin())
        return float(cost[end]), _back(came, end)

    def seconds(self, counts: tuple[int, ...]) -> float:
        """Seconds of the row with these counts."""
        return sum(float(step[0][pair]) for step, pair in zip(self.steps(), pairwise(counts), strict=True))

    def placed(self, counts: tuple[int, ...]) -> list[Placed]:
        """Every unit's place when those of the row have these counts."""
        return self._place_row(self.row, counts, self._whole, 0)

    def _cost(self, figures: np.ndarray) -> np.ndarray:
        """Cost of figures, which stand along the last axis but two."""
        cost: np.ndarray = figures[..., 0, :, :]
        for k, price in enumerate(self._prices[1:], 1):
            if price:
                cost = cost + price * figures[..., k, :, :]
        return cost

    def _edge(self, edge: Edge, where: _Where) -> np.ndarray:
        """Figures of a transfer; infinite where the unit that it leads to would be above the limit."""
        costs, target = self.costs, where.target
        key = (edge, target if self.limit < np.inf else None, where.aside)
        if key not in self._edges:
            found = costs.transfer_s(edge, where.aside)
            amounts = () if len(self._prices) == 1 else (found * costs.counts, np.zeros_like(found))
            if target is not None and self.limit < np.inf:
                spent = (found + costs.own_s[target]) * costs.counts
                found = np.where(spent <= self.limit * costs.alone_s[target] * SLACK, found, np.inf)
            self._edges[key] = np.stack((found, *amounts))
        return self._edges[key]

    def _block(self, block: Block, where: _Where) -> np.ndarray:
        """Figures between two units, both left out."""
        if not block.branches:
            assert block.edge is not None
            return self._edge(block.edge, where)
        return self._ways(block, where).figures

    def _ways(self, block: Block, where: _Where) -> _Ways:
        key = (id(block), where)
        if key not in self._blocks:
            self._blocks[key] = self._compared(block, where)
        return self._blocks[key]

    def _compared(self, block: Block, where: _Where) -> _Ways:
        """Every way to run the branches of a block, and the one that costs least for each pair of counts."""
        many = len(block.branches)
        widths = np.array([width for width in self._widths if width <= where.budget])
        alone = self._by_width(block, widths, where, range(many), aside=False)
        best: np.ndarray = alone[:, -1].sum(axis=0)
        direct = self._edge(block.edge, where) if block.edge is not None else np.zeros_like(best)
        best = best + direct
        chosen = np.zeros(best.shape[1:], dtype=np.int64)
        groups: list[tuple[tuple[int, ...], np.ndarray]] = [((), widths[-1:, None])]
        starts, after = [0], 1
        longest = sorted(sorted(range(many), key=lambda c: -float(alone[c, -1, 0].min()))[:_LONGEST])
        most = min(_SIDE_BY_SIDE, many - 1) if len(widths) > 1 else 0
        moved = self._by_width(block, widths, where, longest, aside=True) if most else alone[:0]
        for size in range(1, most + 1):
            shared = _shared(size + 1, tuple(self._widths[: len(widths)]), where.budget)
            every = list(combinations(range(len(longest)), size)) if len(shared) else []
            at_once = max(1, _QUICK_CELLS // (max(len(widths), len(shared)) * best.size))
            for some in (every[k : k + at_once] for k in range(0, len(every), at_once)):
                beside = [tuple(longest[c] for c in group) for group in some]
                rest = direct + np.stack(
                    [alone[[c for c in range(many) if c not in own]].sum(axis=0) for own in beside]
                )
                # By group, then by division.
                pairs = np.arange(len(some) * len(shared))
                for part in np.array_split(pairs, min(len(pairs), -(-len(pairs) * best.size // _CELLS))):
                    group, division = np.array(some)[part // len(shared)], shared[part % len(shared)]
                    found = rest[part // len(shared), division[:, 0]]
                    for k in range(size):
                        other = moved[group[:, k], division[:, k + 1]]
                        np.maximum(found[:, 0], other[:, 0], out=found[:, 0])
                        found[:, 1:] += other[:, 1:]
                    cost = self._cost(found)
                    at = cost.argmin(axis=0)
                    better = np.take_along_axis(cost, at[None], axis=0)[0] < self._cost(best)
                    best = np.where(better, np.take_along_axis(found, at[None, None], axis=0)[0], best)
                    chosen = np.where(better, at + (after + part[0]), chosen)
                groups += [(own, widths[shared]) for own in beside]
                starts += range(after, after + len(pairs), len(shared))
                after += len(pairs)
        return _Ways(best, chosen, tuple(groups), tuple(starts))

    def _by_width(
        self, block: Block, widths: np.ndarray, where: _Where, branches: Sequence[int], aside: bool
    ) -> np.ndarray:
        """Figures of branches on these numbers of devices; shape (branches, widths, figures, counts, counts)."""
        own = where.of_branch(self._widths[-1], aside)
        return np.stack([self._row(block.branches[c], own)[: len(widths)] for c in branches])

    def _row(self, row: Row, where: _Where) -> np.ndarray:
        """Figures of a branch by devices before and behind it, on each number of devices that there may be for it; shape (widths,
        figures, counts, counts)."""
        key = (id(row), where)
        if key not in self._rows:
            found: np.ndarray | None = None
            for k, block in enumerate(row.blocks):
                step = self._each_width(block, _part(row, k, where))
                found = step if found is None else self._least_sums(found, step)
                if k < len(row.units):
                    found = found + self._on_widths(row.units[k])
            assert found is not None
            self._rows[key] = found
        return self._rows[key]

    def _each_width(self, block: Block, where: _Where) -> np.ndarray:
        """Figures of a block in a branch; shape (widths, figures, counts, counts), or 1 for widths where all are the same."""
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

    def _row_steps(self, row: Row, where: _Where) -> Iterator[tuple[int | None, np.ndarray]]:
        """Each block's figures, and the unit behind it, None for the last."""
        for k, block in enumerate(row.blocks):
            unit = row.units[k] if k < len(row.units) else None
            yield unit, self._block(block, _part(row, k, where))

    def _place_row(self, row: Row, counts: tuple[int, ...], where: _Where, first: int) -> list[Placed]:
        """Units of a row, and an entry of its target for each transfer to it."""
        placed: list[Placed] = []
        for k, pair in enumerate(pairwise(counts)):
            own = _part(row, k, where)
            inside = self._place_block(row.blocks[k], pair, own, first)
            if k < len(row.units):
                came = [one for one in inside if one.unit == own.target]
                inside = [one for one in inside if one.unit != own.target]
                inside.append(self._arrived(row.units[k], first, pair[1], came))
            placed += inside
        return placed

    def _arrived(self, unit: int, first: int, count: int, came: list[Placed]) -> Placed:
        """A unit with all that comes to it; the largest transfer decides its amplification."""
        most = max((one.comm_s for one in came), default=0.0)
        costs = self.costs
        spent = (most + costs.own_s[unit, count]) * costs.counts[count]
        alone = costs.alone_s[unit]
        amplification = spent / alone if alone > 0 else 1.0
        return Placed(unit, first, count, sum(one.comm_s for one in came), float(amplification))

    def _place_block(self, block: Block, pair: tuple[int, int], where: _Where, first: int) -> list[Placed]:
        """The units of a block, and for each transfer to its target an entry of that, which says its seconds."""
        placed: list[Placed] = []
        if block.edge is not None and where.target is not None:
            comm_s = self.costs.transfer_s(block.edge, where.aside)[pair]
            placed.append(Placed(where.target, first, pair[1], float(comm_s), 0.0))
        if not block.branches:
            return placed
        in_turn, beside = self._ways(block, where).at(pair)
        end = first + where.budget
        for c in sorted(range(len(block.branches)), key=lambda c: -beside.get(c, 0)):
            row, own = block.branches[c], where.of_branch(beside.get(c, in_turn), c in beside)
            end -= beside.get(c, 0)
            placed += self._place_row(row, self._inside(row, pair, own), own, end if c in beside else first)
        return placed

    def _inside(self, row: Row, pair: tuple[int, int], where: _Where) -> tuple[int, ...]:
        """The counts of a branch's units between two given ones, with these."""
        cost, came = np.full(self._n, np.inf), []
        cost[pair[0]] = 0.0
        for unit, step in self._row_steps(row, where):
            cost, at = self._forward(cost, step)
            if unit is not None:
                cost = cost + self._cost(self._on_widths(unit)[self._widths.index(where.budget)])[0]
            came.append(at)
        return _back(came, pair[1])

    def _forward(self, cost: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least cost behind a step, and where it comes from."""
        sums = cost[:, None] + self._cost(step)
        at = sums.argmin(axis=0)
        return np.take_along_axis(sums, at[None], axis=0)[0], at

    def _least_sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Figures of first[i, k] + second[k, j] for the k of the least cost, for each width."""
        widths, kinds, n = max(len(first), len(second)), first.shape[1], first.shape[-1]
        before, behind = self._cost(first)[..., None], self._cost(second)[:, None]
        if widths * n**3 <= _CELLS:
            at = (before + behind).argmin(axis=2)
        else:
            before, behind = (np.broadcast_to(one, (widths, *one.shape[1:])) for one in (before, behind))
            at = np.empty((widths, n, n), dtype=np.int64)
            for w, i in product(range(widths), range(n)):
                at[w, i] = (before[w, i] + behind[w, 0]).argmin(axis=0)
        width, kind, row, column = _grid(widths, kinds, n)
        at = at[:, None]
        sums: np.ndarray = first[width % len(first), kind, row, at] + second[width % len(second), kind, at, column]
        return sums


@lru_cache(maxsize=64)
def _grid(widths: int, kinds: int, n: int) -> tuple[np.ndarray, ...]:
    """Indices along each axis of figures by width."""
    return tuple(np.ogrid[:widths, :kinds, :n, :n])


def _part(row: Row, k: int, where: _Where) -> _Where:
    """What the k-th block of a row stands in."""
    last = k == len(row.units)
    return replace(
        where,
        target=where.target if last else row.units[k],
        aside_in=where.aside_in and k == 0,
        aside_out=where.aside_out and last,
    )


@lru_cache(maxsize=1024)
def _shared(parts: int, widths: tuple[int, ...], budget: int) -> np.ndarray:
    """All divisions of a budget; shape (divisions, parts)."""
    return np.array(list(_divisions(parts, list(widths), budget)), dtype=np.int64).reshape(-1, parts)


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


def _back(came: list[np.ndarray], end: int) -> tuple[int, ...]:
    """The counts along the way that ends here, the first one before the first step."""
    found = [end]
    for at in reversed(came):
        found.append(int(at[found[-1]]))
    return tuple(reversed(found))

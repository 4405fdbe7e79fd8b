"""A model's graph as a row of units and what lies between them: an edge, or a block of branches that part and join again.

Rules of this file: a unit is a run of layers that stay together, numbered in the model's order; layers that share weights are in one,
and so is what cannot be taken apart into branches. Nothing here knows seconds or devices.
Source: DeepPool section 4.2, Figure 7, with blocks inside of blocks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hocket.profiling.profile import ModelProfile
from hocket.strategies.burst.costs import NOTHING, Edge

START, END = -1, -2  # before the first unit and behind the last: the batch, and the loss
Edges = dict[tuple[int, int], Edge]


@dataclass(frozen=True)
class BranchBlock:
    """Part of the graph between two units.

    Attributes:
        edge: what goes directly from one to the other; None where nothing does.
        branches: rows of units between the two; none where there is an edge alone.
    """

    edge: Edge | None
    branches: "tuple[UnitRow, ...]" = ()


@dataclass(frozen=True)
class UnitRow:
    """Units one after the other: blocks[0], units[0], blocks[1], ..., units[-1], blocks[-1].

    The first block begins behind the unit that the row comes from, the last one ends before the unit that it leads to.
    """

    units: tuple[int, ...]
    blocks: tuple[BranchBlock, ...]


@dataclass(frozen=True)
class BurstGraph:
    """Units and the row that they make; a chain where no block has branches."""

    units: tuple[tuple[int, ...], ...]
    row: UnitRow

    @property
    def is_chain(self) -> bool:
        """True if every unit has at most one predecessor and one successor."""
        return not any(block.branches for block in self.row.blocks)


def graph_of(profile: ModelProfile) -> BurstGraph:
    """The units of a profile and how they follow each other."""
    runs = _joined([(min(tie), max(tie)) for tie in profile.ties if tie], len(profile.layers))
    while True:
        units = tuple(tuple(range(first, last + 1)) for first, last in runs)
        taken = _Apart(_edges(profile, units), len(units))
        row = taken.row(START, END, range(len(units)))
        if not taken.stuck:
            return BurstGraph(units, row)
        # What cannot be taken apart becomes one unit, with all that the model does meanwhile; then it is tried again.
        together = [(units[min(part)][0], units[max(part)][-1]) for part in taken.stuck]
        runs = _joined([*together, *((unit[0], unit[-1]) for unit in units)], len(profile.layers))


def _joined(spans: Sequence[tuple[int, int]], layers: int) -> list[tuple[int, int]]:
    """Runs that cover all layers; spans that overlap are one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted([*spans, *((i, i) for i in range(layers))]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _edges(profile: ModelProfile, units: Sequence[Sequence[int]]) -> Edges:
    """Edges between units, each tensor once for a pair; units without predecessor follow the batch."""
    unit_of = {layer: u for u, unit in enumerate(units) for layer in unit}
    sizes = profile.tensor_bytes(profile.microbatch_sizes[-1]) / profile.microbatch_sizes[-1]
    edges: Edges = {}
    for tensor, size in zip(profile.tensors, sizes, strict=True):
        source = unit_of.get(tensor.source)
        for target in {unit_of[layer] for layer in tensor.targets} - {source}:
            if source is not None:
                one = Edge(float(size), float(size) * tensor.gradient)
                edges[source, target] = edges.get((source, target), NOTHING) + one
    reached, left = {target for _, target in edges}, {source for source, _ in edges}
    edges |= {(START, u): NOTHING for u in range(len(units)) if u not in reached}
    edges |= {(u, END): NOTHING for u in range(len(units)) if u not in left}
    return edges


class _Apart:
    """Takes a graph apart; `stuck` are sets of units that cannot be."""

    def __init__(self, edges: Edges, units: int) -> None:
        self._edges = edges
        self._behind: dict[int, list[int]] = defaultdict(list)
        for source, target in edges:
            self._behind[source].append(target)
        self.stuck: list[list[int]] = []

    def row(self, before: int, behind: int, inside: Sequence[int]) -> UnitRow:
        """Row of units between two others: every path between the two goes through all units of the row."""
        place = {before: -1, **{u: k for k, u in enumerate(inside)}, behind: len(inside)}
        # How many edges pass over each position.
        over = [0] * (len(inside) + 1)
        for source in (before, *inside):
            for target in self._behind[source]:
                if target in place and (source, target) != (before, behind):
                    over[place[source] + 1] += 1
                    over[place[target]] -= 1
        row, passing = list[int](), 0
        for k, u in enumerate(inside):
            passing += over[k]
            if not passing:
                row.append(u)
        if not row and inside:
            self.stuck.append(list(inside))
            return UnitRow((), (BranchBlock(NOTHING),))
        ends = [before, *row, behind]
        return UnitRow(tuple(row), tuple(self._block(*pair, inside, place) for pair in pairwise(ends)))

    def _block(self, before: int, behind: int, inside: Sequence[int], place: dict[int, int]) -> BranchBlock:
        between = inside[place[before] + 1 : place[behind]]
        edge = self._edges.get((before, behind))
        if not between:
            return BranchBlock(edge or NOTHING)
        return BranchBlock(edge, tuple(self.row(before, behind, part) for part in self._parts(between)))

    def _parts(self, between: Sequence[int]) -> list[list[int]]:
        """Sets of units that nothing joins, each in order."""
        head = {u: u for u in between}

        def find(u: int) -> int:
            while head[u] != u:
                head[u] = head[head[u]]
                u = head[u]
            return u

        for source in between:
            for target in self._behind[source]:
                if target in head:
                    head[find(source)] = find(target)
        parts: dict[int, list[int]] = defaultdict(list)
        for u in between:
            parts[find(u)].append(u)
        return list(parts.values())

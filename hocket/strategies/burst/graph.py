"""Series-parallel decomposition of a model's graph into units and blocks.

A unit is a run of layers that stay together. Units are numbered in the model's order. Layers that share weights are in
one unit, and so are layers that cannot be divided into branches. The graph is a row: a sequence of units, with a block
between neighbours. A block is an edge, or branches that fork and join again. Each branch is a row. Seconds and devices
are not known here.

Source: DeepPool, section 4.2, figure 7, with blocks inside blocks.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hocket.profiling.profile import ModelProfile
from hocket.strategies.burst.costs import NOTHING, Edge

START, END = -1, -2  # before the first unit and after the last: the batch, and the loss
Edges = dict[tuple[int, int], Edge]


@dataclass(frozen=True)
class BranchBlock:
    """Part of the graph between two consecutive units of a row.

    Attributes:
        edge: the direct edge from one unit to the other; None without one.
        branches: rows of units between the two units; empty if there is only an edge.
    """

    edge: Edge | None
    branches: "tuple[UnitRow, ...]" = ()


@dataclass(frozen=True)
class UnitRow:
    """Sequence of blocks and units: blocks[0], units[0], ..., units[-1], blocks[-1].

    The first block begins after the unit (or batch) where the row forks off. The last block ends before the unit (or
    loss) where the row joins again.
    """

    units: tuple[int, ...]
    blocks: tuple[BranchBlock, ...]


@dataclass(frozen=True)
class BurstGraph:
    """Units of a model and the row that they form.

    Attributes:
        units: the layers of each unit.
        row: the whole model, from the batch to the loss; a chain if no block has branches.
    """

    units: tuple[tuple[int, ...], ...]
    row: UnitRow

    @property
    def is_chain(self) -> bool:
        """True if no block has branches."""
        return not any(block.branches for block in self.row.blocks)


def graph_of(profile: ModelProfile) -> BurstGraph:
    """Divide a profile's layers into units, and their graph into a row with branches."""
    runs = _joined([(min(tie), max(tie)) for tie in profile.ties if tie], len(profile.layers))
    while True:
        units = tuple(tuple(range(first, last + 1)) for first, last in runs)
        taken = _Apart(_edges(profile, units), len(units))
        row = taken.row(START, END, range(len(units)))
        if not taken.stuck:
            return BurstGraph(units, row)
        # Units that cannot be divided into branches become one unit, with all layers between them. Then try again.
        together = [(units[min(part)][0], units[max(part)][-1]) for part in taken.stuck]
        runs = _joined([*together, *((unit[0], unit[-1]) for unit in units)], len(profile.layers))


def _joined(spans: Sequence[tuple[int, int]], layers: int) -> list[tuple[int, int]]:
    """Join overlapping spans of layers.

    Arguments:
        spans: first and last layer of each span.
        layers: number of layers; a layer without a span is a span by itself.

    Returns:
        First and last layer of each run; the runs cover all layers.
    """
    joined: list[tuple[int, int]] = []
    for first, last in sorted([*spans, *((i, i) for i in range(layers))]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _edges(profile: ModelProfile, units: Sequence[Sequence[int]]) -> Edges:
    """Edges between units, by (source, target).

    A tensor counts once for each pair of units. A unit without predecessors gets an edge from the batch (START). A
    unit without successors gets an edge to the loss (END).
    """
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
    """Series-parallel decomposition of a graph.

    Attributes:
        stuck: sets of units that cannot be divided into branches.
    """

    def __init__(self, edges: Edges, units: int) -> None:
        self._edges = edges
        self._behind: dict[int, list[int]] = defaultdict(list)
        for source, target in edges:
            self._behind[source].append(target)
        self.stuck: list[list[int]] = []

    def row(self, before: int, behind: int, inside: Sequence[int]) -> UnitRow:
        """Decompose the part of the graph between two units.

        The units of the row lie on every path between the two.

        Arguments:
            before: unit before the part, or START.
            behind: unit after the part, or END.
            inside: units of the part, ascending.
        """
        place = {before: -1, **{u: k for k, u in enumerate(inside)}, behind: len(inside)}
        # Change of the number of edges that pass over a position, at each position.
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
        """Connected components of the given units, each ascending."""
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

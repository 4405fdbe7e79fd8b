"""Placed units: where every unit of a row stands once the search says how its blocks are run.

Rules of this file: nothing is chosen here; a branch that runs beside the others has the last devices of the block's.
"""

from dataclasses import dataclass
from itertools import pairwise

from hocket.strategies.burst.costs import BurstCosts
from hocket.strategies.burst.graph import BranchBlock, UnitRow
from hocket.strategies.burst.position import BranchPosition
from hocket.strategies.burst.search import BurstSearch


@dataclass(frozen=True)
class Placed:
    """Placement of a unit.

    `count` is an index into the counts, `first` its first device; comm_s: communication seconds of its inputs.
    """

    unit: int
    first: int
    count: int
    comm_s: float
    amplification: float


def placed(search: BurstSearch, counts: tuple[int, ...]) -> list[Placed]:
    """Every unit's place when those of the row have these counts."""
    return _row(search, search.row, counts, search.whole, 0)


def _row(search: BurstSearch, row: UnitRow, counts: tuple[int, ...], where: BranchPosition, first: int) -> list[Placed]:
    """Units of a row, and an entry of its target for each transfer to it."""
    found: list[Placed] = []
    for k, pair in enumerate(pairwise(counts)):
        own = where.of_block(row, k)
        inside = _block(search, row.blocks[k], pair, own, first)
        if k < len(row.units):
            came = [one for one in inside if one.unit == own.target]
            inside = [one for one in inside if one.unit != own.target]
            inside.append(_arrived(search.costs, row.units[k], first, pair[1], came))
        found += inside
    return found


def _block(
    search: BurstSearch, block: BranchBlock, pair: tuple[int, int], where: BranchPosition, first: int
) -> list[Placed]:
    """The units of a block, and for each transfer to its target an entry of that, which says its seconds."""
    found: list[Placed] = []
    if block.edge is not None and where.target is not None:
        comm_s = search.costs.transfer_s(block.edge, where.aside)[pair]
        found.append(Placed(where.target, first, pair[1], float(comm_s), 0.0))
    if not block.branches:
        return found
    in_turn, beside = search.ways(block, where).at(pair)
    end = first + where.budget
    for c in sorted(range(len(block.branches)), key=lambda c: -beside.get(c, 0)):
        row, own = block.branches[c], where.of_branch(beside.get(c, in_turn), c in beside)
        end -= beside.get(c, 0)
        found += _row(search, row, search.inside(row, pair, own), own, end if c in beside else first)
    return found


def _arrived(costs: BurstCosts, unit: int, first: int, count: int, came: list[Placed]) -> Placed:
    """A unit with all that comes to it; the largest transfer decides its amplification."""
    most = max((one.comm_s for one in came), default=0.0)
    spent = (most + costs.own_s[unit, count]) * costs.counts[count]
    alone = costs.alone_s[unit]
    amplification = spent / alone if alone > 0 else 1.0
    return Placed(unit, first, count, sum(one.comm_s for one in came), float(amplification))

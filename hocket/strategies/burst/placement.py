"""Placement of units on devices, from the ways that the search has chosen.

A branch that runs beside the others has the last devices of its block.
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

    Attributes:
        first: first device.
        count: number of devices, as an index into the counts.
        comm_s: seconds of the transfers of its inputs.
        amplification: GPU-seconds over the seconds on one device.
    """

    unit: int
    first: int
    count: int
    comm_s: float
    amplification: float


def placed(search: BurstSearch, counts: tuple[int, ...]) -> list[Placed]:
    """Place every unit, for given counts of the row's units."""
    return _row(search, search.row, counts, search.whole, 0)


def _row(search: BurstSearch, row: UnitRow, counts: tuple[int, ...], where: BranchPosition, first: int) -> list[Placed]:
    """Place the units of a row.

    Each transfer to the row's target adds an entry of the target with the seconds of the transfer.
    """
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
    """Place the units of a block.

    Each transfer to the block's target adds an entry of the target with the seconds of the transfer.
    """
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
    """Placement of a unit with all transfers to it; its amplification has the largest."""
    most = max((one.comm_s for one in came), default=0.0)
    spent = (most + costs.own_s[unit, count]) * costs.counts[count]
    alone = costs.alone_s[unit]
    amplification = spent / alone if alone > 0 else 1.0
    return Placed(unit, first, count, sum(one.comm_s for one in came), float(amplification))

"""Placement of units on devices, from the numbers of devices of a search.

A unit has consecutive devices. Branches that run in parallel to the others have the last devices of their block.
"""

from dataclasses import dataclass
from itertools import pairwise

from hocket.strategies.burst.costs import BurstCosts
from hocket.strategies.burst.graph import BranchBlock, UnitRow
from hocket.strategies.burst.position import BranchPosition
from hocket.strategies.burst.search import BurstSearch


@dataclass(frozen=True)
class Placed:
    """Devices of one unit of layers, with the seconds of the transfers to it and its amplification.

    Attributes:
        unit: number of the unit.
        first: first device.
        count: number of devices, as an index into the possible counts.
        comm_s: seconds of the transfers of the unit's inputs.
        amplification: GPU-seconds of the unit divided by its seconds on one device.
    """

    unit: int
    first: int
    count: int
    comm_s: float
    amplification: float


def placed(search: BurstSearch, counts: tuple[int, ...]) -> list[Placed]:
    """Place every unit of a model.

    Arguments:
        counts: numbers of devices of the batch, of each unit of the model's row, and of the loss, as indices.
    """
    return _row(search, search.row, counts, search.whole, 0)


def _row(search: BurstSearch, row: UnitRow, counts: tuple[int, ...], where: BranchPosition, first: int) -> list[Placed]:
    """Place the units of a row.

    Arguments:
        counts: numbers of devices before the row, of each of its units, and of the unit it leads to, as indices.
        where: position of the row in the graph.
        first: first device of the row.

    Returns:
        The row's units. Each transfer to the unit that the row leads to is an additional entry for that unit, with the
        seconds of the transfer.
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

    Arguments:
        pair: numbers of devices before and after the block, as indices.
        where: position of the block in the graph.
        first: first device of the block.

    Returns:
        The units of its branches. Each transfer to the unit that the block leads to is an additional entry for that
        unit, with the seconds of the transfer.
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
    """Placement of a unit, with the sum of all transfers to it.

    Its amplification contains only the longest of these transfers.

    Arguments:
        count: number of devices, as an index into the possible counts.
        came: one entry for each transfer to the unit.
    """
    most = max((one.comm_s for one in came), default=0.0)
    spent = (most + costs.own_s[unit, count]) * costs.counts[count]
    alone = costs.alone_s[unit]
    amplification = spent / alone if alone > 0 else 1.0
    return Placed(unit, first, count, sum(one.comm_s for one in came), float(amplification))

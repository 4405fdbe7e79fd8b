"""A program without overlap of gradient sums and backwards, for comparison.

A gradient sum is an all-reduce or reduce-scatter of a gradient bucket. This module only adds edges to the lowered
program. Every gradient sum waits for the last backward of its update on each device of its group, over all stages on
the device. It also waits for the sum before it, in the order in which backwards compute gradients. A sum cannot wait
for backwards that come after the first instruction (a step, or a swap out) that uses the sum, or a later sum of its
lane. All other overlap remains.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from hocket.program.instruction import SWAP_LANES, Kind, ValueKind
from hocket.program.trace.overlap import SUMS
from hocket.simulation.engine.nodes import KINDS, PERIOD, ProgramPart
from hocket.simulation.engine.tables import NodeLayout

_BACKWARD = KINDS.index(Kind.BACKWARD)
_TAKES = {KINDS.index(kind) for kind in (Kind.STEP, Kind.SWAP_OUT)}  # kinds that use a sum
_SUMMED = (ValueKind.REDUCED, ValueKind.PART)


def sums_apart(layout: NodeLayout) -> NodeLayout | None:
    """Lowered program with its gradient sums after the backwards.

    Returns:
        None if there is no gradient sum to delay, and for programs with swap lanes, which order sums otherwise.
    """
    if any(lane in SWAP_LANES.values() for _, lane in layout.program.lanes):
        return None
    skeleton = layout.skeleton
    inside, between = list(skeleton.inside), list(skeleton.between)
    for part in skeleton.parts:
        for before, node in _edges(layout, part):
            if part.number == PERIOD:
                inside.append((before, node, 0, False))
            else:
                between.append(((part.number, before, 0), (part.number, node, 0), False))
    if len(inside) + len(between) == len(skeleton.inside) + len(skeleton.between):
        return None
    return replace(layout, skeleton=replace(skeleton, inside=tuple(sorted(inside)), between=tuple(between)))


def _edges(layout: NodeLayout, part: ProgramPart) -> set[tuple[int, int]]:
    """Additional edges in prologue, period or epilogue.

    Returns:
        Pairs of a node, and a gradient sum that waits for the node's end.
    """
    skeleton, batch = layout.skeleton, layout.program.rule.batch
    last: dict[tuple[int, int, int], int] = {}  # last backward, by device, microbatches of an update, and update
    taken: dict[tuple[int, int, int], int] = {}  # last backward before the first use of a sum, by device, stage, update
    for lane, node, end, kind, stage, index, _, _ in part.rows:  # rows of a lane are in its order
        device = skeleton.lanes[lane][0]
        if kind == _BACKWARD:
            last[device, batch[stage], index // batch[stage]] = end
        elif kind in _TAKES:
            one = skeleton.signatures[part.signature[node]].members[0]
            for value in one.reads:
                update = value.index - one.index + index
                if value.what in _SUMMED and (device, batch[stage], update) in last:
                    taken.setdefault((device, value.stage, update), last[device, batch[stage], update])
    waits: dict[int, list[tuple[int, int]]] = {}  # by lane of sums: last backward before each sum, and the sum
    places: dict[int, tuple[int, int, int]] = {}
    sums: dict[tuple[int, int, int], list[int]] = {}
    for lane, node, _, _, stage, index, _, _ in part.rows:
        one = skeleton.signatures[part.signature[node]].members[0]
        if one.kind in SUMS and one.reads[0].what is ValueKind.ACCUMULATOR:
            key = (skeleton.lanes[lane][0], batch[stage], index)
            sums.setdefault(key, []).append(node)
            places[node] = min(places.get(node, (index, 0, 0)), (index, -stage, one.reads[0].part))
            before = taken.get((skeleton.lanes[lane][0], stage, index), last.get(key))
            if before is not None:
                waits.setdefault(lane, []).append((before, node))
    found = {edge for own in waits.values() for edge in _in_order(part, own)}
    return found | _chain(part, places, sums.values())


def _in_order(part: ProgramPart, waits: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the edges of one lane of sums; a sum waits for no backward behind the first use of a later sum.

    The later sum waits for the sum, so they would wait for each other.

    Arguments:
        waits: last backward before each sum, and the sum, in the order of the lane.
    """
    least: dict[int, int] = {}  # by compute lane, the earliest of the later sums' backwards
    for before, node in reversed(waits):
        lane = part.lane[before]
        least[lane] = min(before, least.get(lane, before))
        yield least[lane], node


def _chain(
    part: ProgramPart, places: dict[int, tuple[int, int, int]], devices: Iterable[list[int]]
) -> set[tuple[int, int]]:
    """Edges that serialize the gradient sums of each device.

    The order is by update, then from the last stage to the first, then by bucket. There are no edges if a lane has
    another order, because the sums would wait for each other.

    Arguments:
        places: for each sum, by node: update, negative stage, and bucket.
        devices: for each device, the nodes of its sums.
    """
    lanes: dict[int, tuple[int, int, int]] = {}
    for node in sorted(places):  # nodes of a lane are in its order
        if places[node] < lanes.get(part.lane[node], places[node]):
            return set()
        lanes[part.lane[node]] = places[node]
    found = set()
    for nodes in devices:
        order = sorted(nodes, key=lambda node: (places[node], node))
        found |= {(a, b) for a, b in pairwise(order) if part.lane[a] != part.lane[b]}
    return found

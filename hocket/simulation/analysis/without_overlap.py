"""Apart: the same program without overlap, so that it can be told what overlap gains.

Rules of this file: edges alone are added. Every sum of gradients waits until the last backward of its update is over on each of
its devices, whatever stages they host, and until the one before it is, in the order in which backwards make them; of backwards that
stand behind the first instruction that takes the sum (a step, or what swaps it out), it cannot wait for any. What else runs
meanwhile does so still.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from hocket.program.instruction import SWAP_LANES, Kind, ValueKind
from hocket.program.trace.overlap import SUMS
from hocket.simulation.engine.nodes import KINDS, PERIOD, ProgramPart
from hocket.simulation.engine.tables import NodeLayout

_BACKWARD = KINDS.index(Kind.BACKWARD)
_TAKES = {KINDS.index(kind) for kind in (Kind.STEP, Kind.SWAP_OUT)}
_SUMMED = (ValueKind.REDUCED, ValueKind.PART)


def sums_apart(layout: NodeLayout) -> NodeLayout | None:
    """Lowered program with its gradient sums after the backwards.

    None without gradient sums, or if swap lanes have sums in an order of their own beside computation.
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
    """(node, sum that waits for it) in one part of the program."""
    skeleton, batch = layout.skeleton, layout.program.rule.batch
    last: dict[tuple[int, int, int], int] = {}  # node, by device, microbatches of an update, and update
    taken: dict[tuple[int, int, int], int] = {}  # likewise when its first sum was taken, by device, stage and update
    for lane, node, end, kind, stage, index, _, _ in part.rows:  # those of a lane are in its order
        device = skeleton.lanes[lane][0]
        if kind == _BACKWARD:
            last[device, batch[stage], index // batch[stage]] = end
        elif kind in _TAKES:
            one = skeleton.signatures[part.signature[node]].members[0]
            for value in one.reads:
                update = value.index - one.index + index
                if value.what in _SUMMED and (device, batch[stage], update) in last:
                    taken.setdefault((device, value.stage, update), last[device, batch[stage], update])
    found = set()
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
                found.add((before, node))
    return found | _chain(part, places, sums.values())


def _chain(
    part: ProgramPart, places: dict[int, tuple[int, int, int]], devices: Iterable[list[int]]
) -> set[tuple[int, int]]:
    """Edges that serialize the sums of each device: by update, from the last stage to the first, by bucket.

    None where a lane has another order: they would wait for each other.
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

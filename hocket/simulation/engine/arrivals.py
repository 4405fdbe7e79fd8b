"""Arrivals of ranks at the collectives of a run, as tables for kernel.py.

kernel.py uses the tables to compute the expected arrival of the last rank (meetings.py). This module has structure and
costs, and no clock.
"""

import numpy as np

from hocket.cost.model import CostModel
from hocket.cost.stragglers import slowest, tails
from hocket.program.instruction import COLLECTIVES, computes
from hocket.simulation.engine.lower import Skeleton
from hocket.simulation.engine.tables import NodeLayout, fraction, size_classes


def arrivals(layout: NodeLayout) -> tuple[np.ndarray, np.ndarray]:
    """Last node of each compute lane before each collective.

    Returns:
        `pointer`, with an entry for each node of the run, and `nodes`. The last nodes before collective n are
            nodes[pointer[n] : pointer[n + 1]].
    """
    skeleton, (prologue, period, _) = layout.skeleton, layout.sizes
    joint = np.array([signature.members[0].kind in COLLECTIVES for signature in skeleton.signatures], dtype=np.bool_)
    busy = np.array([computes(lane) for _, lane in skeleton.lanes], dtype=np.bool_)
    signature, lane, _, _ = layout.structure[0]
    inside = np.array([edge[:3] for edge in skeleton.inside], dtype=np.int64).reshape(-1, 3)
    inside = inside[joint[signature[prologue + inside[:, 1]]] & busy[lane[prologue + inside[:, 0]]]]
    source, target, behind = inside.T
    rounds = np.arange(layout.repeats)[:, None]
    first, second = (prologue + (rounds - behind) * period + source), (prologue + rounds * period + target)
    valid = rounds >= behind
    starts = (0, prologue, prologue + period)
    own = [
        (layout.number(a), layout.number(b), int(lane[starts[a[0]] + a[1]]))
        for a, b, _ in skeleton.between
        if joint[signature[starts[b[0]] + b[1]]] and busy[lane[starts[a[0]] + a[1]]]
    ]
    between = np.array(own, dtype=np.int64).reshape(-1, 3)
    lanes = np.broadcast_to(lane[prologue + source], first.shape) if len(source) else np.zeros_like(first)
    table = np.concatenate((np.stack([first[valid], second[valid], lanes[valid]], axis=1), between))
    # Nodes of a lane are numbered in order. If a collective waits for several nodes of a lane, the one with the
    # greatest number is the last.
    table = table[np.lexsort((table[:, 0], table[:, 2], table[:, 1]))]
    last = np.ones(len(table), dtype=np.bool_)
    last[:-1] = (table[1:, 1:] != table[:-1, 1:]).any(axis=1)
    table = table[last]
    pointer = np.concatenate(([0], np.cumsum(np.bincount(table[:, 1], minlength=layout.nodes))))
    return pointer, np.ascontiguousarray(table[:, 0])


def meeting_tables(layout: NodeLayout, costs: CostModel) -> tuple[np.ndarray, ...]:
    """Tables of collectives for kernel.py; empty arrays if compute times do not vary.

    Returns:
        - variance: variance of a node's seconds, by signature and size class, as in `cost_tables`.
        - copies: by signature of a collective, number of ranks that each simulated rank stands for; 0 for other nodes.
        - pointer, nodes: result of `arrivals`.
        - means, variances, late, tail: tables of cost/stragglers.py.
        - spread, lateness: one entry for each node, which kernel.py writes.
    """
    if not costs.varies:
        none, counts = np.zeros(0), np.zeros(0, dtype=np.int64)
        return none, counts, counts, counts, none, none, none, none, none, none
    skeleton = layout.skeleton
    copies = np.zeros(len(skeleton.signatures), dtype=np.int64)
    for s, signature in enumerate(skeleton.signatures):
        one = signature.members[0]
        if one.kind in COLLECTIVES:
            copies[s] = max(1, len(costs.members(one.group)) // len(one.group))
    pointer, nodes = arrivals(layout)
    most = int(np.diff(pointer).max(initial=1)) * int(copies.max(initial=1))
    numbers = (*slowest(max(1, most)), *tails())
    return (
        _variances(skeleton, costs),
        copies,
        pointer,
        nodes,
        *numbers,
        np.zeros(layout.nodes),
        np.zeros(layout.nodes),
    )


def _variances(skeleton: Skeleton, costs: CostModel) -> np.ndarray:
    """Variance of a node's seconds, in square seconds, by signature and size class."""
    merged, kinds, _ = size_classes(skeleton, costs)
    found = np.zeros((len(skeleton.signatures), len(kinds)))
    for s, signature in enumerate(skeleton.signatures):
        one = signature.members[0]
        if computes(one.lane):
            for k, size in enumerate(kinds):
                samples = size[merged.index(costs.merged_in(one))]
                found[s, k] = costs.variance(one, samples) * fraction(signature, costs, samples)
    return found.ravel()

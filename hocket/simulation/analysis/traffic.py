"""Traffic of one iteration: bytes between devices, and between devices and hosts.

Bytes follow from the program's structure and the cost model's sizes alone, never from times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from hocket.cost.transfer import ring_bytes, ring_hops
from hocket.hardware.cluster import Cluster
from hocket.program.instruction import COLLECTIVES, SWAPS, Kind
from hocket.simulation.engine.nodes import PERIOD
from hocket.simulation.result import SimulationResult

Pair = tuple[int, int]
"""Sending and receiving device."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that move in one iteration.

    Attributes:
        messages: bytes of sends between stages, by pair of devices.
        collectives: bytes that each rank of a ring sends to the next, by pair of devices. If one column is simulated
            for several equal columns, the rings contain the devices of all columns.
        swapped_bytes: bytes between devices and their hosts.
    """

    messages: dict[Pair, float]
    collectives: dict[Pair, float]
    swapped_bytes: float

    def between(self) -> dict[Pair, float]:
        """Bytes of messages and collectives together, by pair of devices in ascending order of the pairs."""
        pairs = sorted(self.messages.keys() | self.collectives.keys())
        return {pair: self.messages.get(pair, 0.0) + self.collectives.get(pair, 0.0) for pair in pairs}


def traffic_of(outcome: SimulationResult, members: int = 1, slices: bool = False) -> Traffic:
    """Compute the traffic of one iteration of a run.

    Arguments:
        members: number of ranks of the tensor-parallel group that a device of the run stands for. Each rank reduces
            its own shard of the gradients.
        slices: True if each rank sends a part of a message between stages (scatter/gather), False for the whole
            message.
    """
    costs, layout, copies = outcome.costs, outcome.layout, 1 if slices else members
    batch, stride = len(costs.samples), layout.skeleton.program.stride
    periodic = layout.repeats > 0
    rounds = batch // gcd(batch, stride) if periodic else 1
    trained = rounds * stride if periodic else max(1, outcome.program.microbatches(outcome.repeats))
    messages: dict[Pair, float] = {}
    collectives: dict[Pair, float] = {}
    swapped = 0.0
    for part in layout.skeleton.parts:
        if periodic and part.number != PERIOD:
            continue
        counts: dict[tuple[int, int], int] = {}
        for s, index, moves in zip(part.signature, part.index, part.moves, strict=True):
            merged = costs.merged_in(layout.skeleton.signatures[s].members[0])
            for r in range(rounds):
                key = (s, costs.samples_from(index + r * stride * moves, merged))
                counts[key] = counts.get(key, 0) + 1
        for (s, samples), count in counts.items():
            one = layout.skeleton.signatures[s].members[0]
            size = count * costs.carried_bytes(one, samples) * batch / trained
            if one.kind is Kind.SEND and not costs.on_one_host(one):
                pair = (one.device, one.peer)
                messages[pair] = messages.get(pair, 0.0) + size * copies
            elif one.kind in COLLECTIVES:
                ring = costs.members(one.group)
                for hop in ring_hops(ring):
                    collectives[hop] = collectives.get(hop, 0.0) + members * ring_bytes(one.kind, len(ring), size)
            elif one.kind in SWAPS:
                swapped += size
    return Traffic(messages, collectives, swapped)


def by_level(cluster: Cluster, between: Mapping[Pair, float]) -> dict[str, float]:
    """Bytes that cross each level of the cluster, by name of the level; a pair counts at its innermost common level.

    Arguments:
        between: bytes by pair of devices.
    """
    levels = {level.name: 0.0 for level in cluster.levels}
    for pair, size in between.items():
        levels[cluster.levels[cluster.level_between(*pair)].name] += size
    return levels


def by_name(between: Mapping[Pair, float]) -> dict[str, float]:
    """Convert bytes by pair of devices: each pair becomes a text "source>target", in order of the device numbers."""
    return {f"{source}>{target}": size for (source, target), size in sorted(between.items())}

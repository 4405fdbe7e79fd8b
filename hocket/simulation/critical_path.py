"""Seconds of the critical path, by device, link and host.

summary.py finds the path. Time of the iteration in which no instruction of the path runs is "waiting". The path of a
pipeline goes through the devices that delay the others, so the time to fill and drain the pipeline counts as seconds
of these devices.
"""

from dataclasses import dataclass
from typing import TypeVar

from hocket.program.instruction import COLLECTIVES, SWAPS, Instruction, Kind, computes
from hocket.simulation.engine.nodes import PERIOD
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import steady_state
from hocket.simulation.summary import critical_nodes

K = TypeVar("K")


@dataclass(frozen=True)
class PathSeconds:
    """Seconds of the critical path of one iteration; their sum is the iteration.

    Attributes:
        compute_s: seconds of computation, by device.
        link_s: seconds of sends and collectives, by name of the level that they cross.
        host_s: seconds of swaps, in any lane.
        waiting_s: remaining seconds.
    """

    compute_s: dict[int, float]
    link_s: dict[str, float]
    host_s: float
    waiting_s: float

    @property
    def iteration_s(self) -> float:
        """Seconds of the iteration."""
        return sum(self.compute_s.values()) + sum(self.link_s.values()) + self.host_s + self.waiting_s

    def further(self, second: "PathSeconds", rounds: float) -> "PathSeconds":
        """Extrapolate linearly to the path of a longer batch.

        Arguments:
            second: path of a batch that is longer by one step.
            rounds: number of such steps by which the result is longer than this path.
        """

        def at(one: float, other: float) -> float:
            return max(0.0, one + rounds * (other - one))

        def each(ours: dict[K, float], theirs: dict[K, float]) -> dict[K, float]:
            names = dict.fromkeys((*ours, *theirs))
            return {name: at(ours.get(name, 0.0), theirs.get(name, 0.0)) for name in names}

        return PathSeconds(
            each(self.compute_s, second.compute_s),
            each(self.link_s, second.link_s),
            at(self.host_s, second.host_s),
            at(self.waiting_s, second.waiting_s),
        )


def critical_seconds(outcome: SimulationResult) -> PathSeconds:
    """Seconds of the critical path of one iteration in a run's steady state."""
    steady = steady_state(outcome)
    compute: dict[int, float] = {}
    links: dict[str, float] = {}
    host_s, after = 0.0, float("inf")
    begin = None
    for node in critical_nodes(outcome, steady):
        start, end = float(outcome.start_s[node]), float(outcome.end_s[node])
        if begin is None:
            begin = end - steady.period_s
        seconds = max(0.0, min(end, after) - max(start, begin))
        after = min(after, start)
        one = _instruction(outcome, node)
        if one.kind in SWAPS:
            host_s += seconds
        elif computes(one.lane):
            compute[one.device] = compute.get(one.device, 0.0) + seconds
        elif one.kind is Kind.SEND or one.kind in COLLECTIVES:
            name = _level(outcome, one)
            links[name] = links.get(name, 0.0) + seconds
    scale = 1 / steady.batches
    told = sum(compute.values()) + sum(links.values()) + host_s
    return PathSeconds(
        {device: s * scale for device, s in sorted(compute.items())},
        {name: s * scale for name, s in sorted(links.items())},
        host_s * scale,
        max(0.0, steady.period_s - told) * scale,
    )


def _instruction(outcome: SimulationResult, number: int) -> Instruction:
    layout = outcome.layout
    prologue, period, _ = layout.sizes
    base = prologue + layout.repeats * period
    parts = layout.skeleton.parts
    if number < prologue:
        part, node = parts[0], number
    elif number < base:
        part, node = parts[PERIOD], (number - prologue) % period
    else:
        part, node = parts[2], number - base
    return layout.skeleton.signatures[part.signature[node]].members[0]


def _level(outcome: SimulationResult, one: Instruction) -> str:
    """Name of the outermost level that an instruction's messages cross."""
    cluster = outcome.costs.cluster
    group = (one.device, one.peer) if one.kind is Kind.SEND else one.group
    if one.kind in COLLECTIVES:  # a simulated column stands for others, and their devices are members, too
        group = (*group, *(other for cut in outcome.costs.cuts if one.device in cut.devices for other in cut.beside))
    return cluster.levels[cluster.level_of(group)].name

"""Summary of a simulated run, from its times and the program's structure.

Numbers of an iteration are those of the steady state (steady_state.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hocket.program.instruction import SWAPS, ValueKind, computes
from hocket.program.order import heir_of
from hocket.program.program import Program
from hocket.program.trace.overlap import Overlap
from hocket.simulation.analysis.traffic import by_level, by_name, traffic_of
from hocket.simulation.engine.nodes import EPILOGUE, PERIOD
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import Steady, steady_state
from hocket.simulation.swapping.traffic import Swapped, swapped_of


@dataclass(frozen=True)
class Summary:
    """Summary of a simulated run.

    "Per iteration" means per batch of the plan, in the steady state.

    Attributes:
        iteration_s: seconds of one iteration.
        samples_per_s: throughput: samples of a batch divided by the seconds of an iteration.
        bubble_fraction: idle time of devices, relative to their busy time (t_pb / t_id in Narayanan's dissertation,
            section 4.2.2).
        utilization: share of time in which a device computes, by device.
        peak_memory_bytes: peak over the whole run, by device.
        weight_versions: maximum number of live weight versions on one replica, by stage.
        stashes: maximum number of microbatches with saved activations on one replica, by stage.
        sent_bytes: bytes per iteration between devices, by name of the cluster's level that they cross. For
            tensor-parallel groups: bytes between groups, of all ranks together.
        sent_bytes_between: the same bytes, by "source>target" device.
        swapped_bytes: bytes per iteration between devices and their hosts.
        critical_path: names of the instructions that determine the length of a period, in order of time. Each waited
            last for the one before it.
        makespan_s: seconds of the whole run.
        instructions: number of simulated instructions.
        wall_s: seconds that the simulation took.
        group_bytes: bytes per iteration that ranks of tensor-parallel groups send to each other.
        swapped: swapped bytes by kind of value and by device, and host memory; None without swaps.
        overlap: gain from summing gradients while backwards run; None without such sums, or if not requested.
    """

    iteration_s: float
    samples_per_s: float
    bubble_fraction: float
    utilization: dict[int, float]
    peak_memory_bytes: dict[int, float]
    weight_versions: tuple[int, ...]
    stashes: tuple[int, ...]
    sent_bytes: dict[str, float]
    sent_bytes_between: dict[str, float]
    swapped_bytes: float
    critical_path: tuple[str, ...]
    makespan_s: float
    instructions: int
    wall_s: float
    group_bytes: float = 0.0
    swapped: Swapped | None = None
    overlap: Overlap | None = None


def summarize(outcome: SimulationResult, members: int = 1, slices: bool = False) -> Summary:
    """Summarize a run.

    Arguments:
        members: number of ranks of the tensor-parallel group that a device of the run stands for.
        slices: True if each rank sends a part of a message between stages (scatter/gather), False for the whole
            message.
    """
    steady = steady_state(outcome)
    sent = traffic_of(outcome, members, slices)
    between = sent.between()
    versions, stashes = most_alive(outcome.program, ValueKind.WEIGHTS), most_alive(outcome.program, ValueKind.STASH)
    period_s, iteration_s = steady.period_s, steady.iteration_s
    return Summary(
        iteration_s=iteration_s,
        samples_per_s=outcome.costs.batch_size / iteration_s if iteration_s > 0 else 0.0,
        bubble_fraction=steady.bubble_fraction,
        utilization={d: busy / period_s if period_s > 0 else 0.0 for d, busy in steady.busy_s.items()},
        peak_memory_bytes=outcome.peak_memory_bytes,
        weight_versions=versions,
        stashes=stashes,
        sent_bytes=by_level(outcome.costs.cluster, between),
        sent_bytes_between=by_name(between),
        swapped_bytes=sent.swapped_bytes,
        swapped=swapped_of(outcome),
        critical_path=_critical_path(outcome, steady),
        makespan_s=outcome.makespan_s,
        instructions=outcome.instructions,
        wall_s=outcome.wall_s,
    )


def most_alive(program: Program, what: ValueKind) -> tuple[int, ...]:
    """Maximum number of live values of a kind on one replica, by stage.

    Values are counted along the compute lanes. In a program that swaps, values on the device and on its host count
    together. Weights of such a program count as one version.
    """
    if program.swaps and what is ValueKind.WEIGHTS:
        return (1,) * len(program.stages)
    whats = (what, ValueKind.SHARD) if what is ValueKind.WEIGHTS else (what,)  # a new shard has the memory of the whole
    most = [0] * len(program.stages)
    for device in program.devices:
        alive = [0] * len(program.stages)
        for value in program.initial(device):
            if value.what in whats:
                alive[value.stage] += 1
                most[value.stage] = max(most[value.stage], alive[value.stage])
        lanes = [lane for lane in program.lanes if lane[0] == device and computes(lane[1])]
        for part in (program.prologue, program.period, program.epilogue):
            for instruction in (one for lane in lanes for one in part.get(lane, ()) if one.kind not in SWAPS):
                for value in instruction.writes:
                    if value.what in whats and heir_of(instruction, value) is None:
                        alive[value.stage] += 1
                        most[value.stage] = max(most[value.stage], alive[value.stage])
                inherited = {heir_of(instruction, value) for value in instruction.writes}
                for value in instruction.frees:
                    if value.what in whats and value not in inherited:
                        alive[value.stage] -= 1
    return tuple(most)


def critical_nodes(outcome: SimulationResult, steady: Steady) -> Iterator[int]:
    """Yield the nodes of the critical path of one period, from the last to the first.

    The first node that is yielded ends last in the last measured repetition. Each further node is the one for which
    the node before waited last (`SimulationResult.cause`).

    Arguments:
        steady: steady state of the run.
    """
    layout = outcome.layout
    prologue, period, _ = layout.sizes
    stop = prologue + (steady.last + 1) * period if steady.last >= 0 else layout.nodes
    begin = stop - period if steady.last >= 0 else 0
    if stop == 0:
        return
    node = begin + int(np.argmax(outcome.end_s[begin:stop]))
    until = outcome.end_s[node] - steady.period_s
    while node >= 0 and outcome.end_s[node] > until * (1 + 1e-12):
        yield node
        node = int(outcome.cause[node])


def _critical_path(outcome: SimulationResult, steady: Steady) -> tuple[str, ...]:
    """Names of the instructions on the critical path, in order of time."""
    names = _Names(outcome)
    path: list[str] = []
    for node in critical_nodes(outcome, steady):
        name = names.of(node)
        if not path or path[-1] != name:  # a backward in several nodes is one instruction
            path.append(name)
    return tuple(reversed(path))


class _Names:
    """Names of nodes as text: device and instruction."""

    def __init__(self, outcome: SimulationResult) -> None:
        self._outcome = outcome
        self._rows = []
        for part in outcome.layout.skeleton.parts:
            first: dict[int, int] = {}
            for row, (_, start, end, *_rest) in enumerate(part.rows):
                for node in range(start, end + 1):
                    first.setdefault(node, row)
            self._rows.append(first)

    def of(self, number: int) -> str:
        """Name of a node by its number in the run."""
        layout, skeleton = self._outcome.layout, self._outcome.layout.skeleton
        prologue, period, _ = layout.sizes
        base = prologue + layout.repeats * period
        if number < prologue:
            part, node, rounds = 0, number, 0
        elif number < base:
            rounds, node = divmod(number - prologue, period)
            part = PERIOD
        else:
            part, node, rounds = EPILOGUE, number - base, layout.repeats
        lane, _, _, _, _, index, label, batch = skeleton.parts[part].rows[self._rows[part][node]]
        moved = index + rounds * skeleton.program.stride // batch
        return f"device {skeleton.lanes[lane][0]}: {skeleton.labels[label].replace('{}', str(moved))}"

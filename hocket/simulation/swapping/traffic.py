"""Swap traffic of a run: bytes by kind and direction, and peaks of host memory.

All numbers follow from the simulated times and the values that swaps read and write.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hocket.program.instruction import SWAPS, Instruction, Kind, Value
from hocket.program.order import heir_of
from hocket.simulation.engine.nodes import PERIOD
from hocket.simulation.result import SimulationResult


@dataclass(frozen=True)
class Swapped:
    """Swapped bytes of one iteration, and peaks of host memory.

    Attributes:
        in_bytes: bytes swapped in to all devices together, by kind of value.
        out_bytes: bytes swapped out of all devices together, by kind of value.
        device_bytes: bytes swapped in and out, by device.
        host_peak_bytes: peak bytes of each device's values on its host, over the whole run.
    """

    in_bytes: dict[str, float] = field(default_factory=dict)
    out_bytes: dict[str, float] = field(default_factory=dict)
    device_bytes: dict[int, float] = field(default_factory=dict)
    host_peak_bytes: dict[int, float] = field(default_factory=dict)


def swapped_of(outcome: SimulationResult) -> Swapped | None:
    """Swap traffic of a run; None if the program does not swap."""
    if not outcome.program.swaps:
        return None
    costs, program = outcome.costs, outcome.program
    ways: dict[Kind, defaultdict[str, float]] = {kind: defaultdict(float) for kind in SWAPS}
    devices = dict.fromkeys(program.devices, 0.0)
    batches = program.stride / len(costs.samples)
    for row in program.period.values():
        for i in row:
            if i.kind in SWAPS:
                size = _bytes(outcome, i.writes[0])
                ways[i.kind][str(i.writes[0].what)] += size / batches
                devices[i.device] += size / batches
    return Swapped(
        dict(sorted(ways[Kind.SWAP_IN].items())),
        dict(sorted(ways[Kind.SWAP_OUT].items())),
        devices,
        _host_peaks(outcome),
    )


def swaps_of(outcome: SimulationResult) -> Iterator[tuple[int, float, float]]:
    """Yield every swap of the whole run: device, bytes, seconds."""
    for i, number in _ran(outcome):
        if i.kind in SWAPS:
            yield i.device, _bytes(outcome, i.writes[0]), float(outcome.end_s[number] - outcome.start_s[number])


def _ran(outcome: SimulationResult) -> Iterator[tuple[Instruction, int]]:
    """Yield every executed instruction, with the number of its node in the run.

    The instruction is that of the node's signature, so its microbatch may be another one.
    """
    layout, skeleton = outcome.layout, outcome.layout.skeleton
    prologue, period, _ = layout.sizes
    for part in skeleton.parts:
        for r in range(layout.repeats if part.number == PERIOD else 1):
            base = (0, prologue + r * period, prologue + layout.repeats * period)[part.number]
            for node, signature in enumerate(part.signature):
                for i in skeleton.signatures[signature].members:
                    yield i, base + node


def _bytes(outcome: SimulationResult, value: Value) -> float:
    costs = outcome.costs
    return costs.memory.value_bytes(value, costs.samples_from(value.index, costs.merged_of(value)))


def _host_peaks(outcome: SimulationResult) -> dict[int, float]:
    """Peak bytes in host memory, by device.

    A value on the host exists from the start of the instruction that writes it to the end of the instruction that
    frees it.
    """
    program = outcome.program
    level = {d: sum(_bytes(outcome, v) for v in program.initial(d)) for d in program.devices}
    changes: dict[int, list[tuple[float, float]]] = {d: [] for d in program.devices}
    for i, number in _ran(outcome):
        inherited = {heir_of(i, v) for v in i.writes}
        for v in i.writes:
            if v.on_host and heir_of(i, v) is None:
                changes[i.device].append((float(outcome.start_s[number]), _bytes(outcome, v)))
        for v in i.frees:
            if v.on_host and v not in inherited:
                changes[i.device].append((float(outcome.end_s[number]), -_bytes(outcome, v)))
    peaks = {}
    for device, found in changes.items():
        now = most = level[device]
        for _, change in sorted(found):
            now += change
            most = max(most, now)
        peaks[device] = most
    return peaks

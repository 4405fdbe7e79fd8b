"""Host memory and bytes in transit over the time of a simulated run.

A value on a host occupies memory from the start of the instruction that writes it, unless it takes over the memory of
a value that is freed there. A value is in transit from the start to the end of its transfer.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from hocket.cost.sizes import PlanSizes
from hocket.errors import InternalError
from hocket.program.instruction import SWAPS, Kind, ValueKind
from hocket.program.order import heir_of
from hocket.simulation.result import SimulationResult

Series = list[tuple[float, float]]
"""Pairs of a time in seconds, and the bytes from then on (or, for `_summed`, their change at this time)."""
_MOVES = SWAPS | {Kind.SEND, Kind.RECEIVE}


class HostCourse(NamedTuple):
    """Bytes of each device's values over time.

    Attributes:
        host: bytes in host memory, by device.
        moving: bytes in transit between devices and hosts, or between devices, by device.
    """

    host: dict[int, Series]
    moving: dict[int, Series]


def host_course(outcome: SimulationResult) -> HostCourse:
    """Compute host memory and bytes in transit of a simulated run with swaps."""
    program, trace = outcome.program, outcome.trace
    sizes = PlanSizes(outcome.costs, program)
    host: dict[int, Series] = {device: [] for device in program.devices}
    moving: dict[int, Series] = {device: [] for device in program.devices}
    for device in program.devices:
        there = sum(sizes.value(value, device) for value in program.initial(device) if value.on_host)
        host[device].append((0.0, there))
    whole = program.unrolled(outcome.repeats)
    for number, lane in enumerate(trace.lanes):
        own = np.flatnonzero(trace.lane == number)
        if len(own) != len(whole[lane]):
            raise InternalError(f"{len(own)} events of {len(whole[lane])} instructions in lane {lane}")
        for event, i in zip(own.tolist(), whole[lane], strict=True):
            device, start_s, end_s = lane[0], float(trace.start_s[event]), float(trace.end_s[event])
            heirs = {value: heir_of(i, value) for value in i.writes}
            made = sum(sizes.value(v, device) for v, before in heirs.items() if v.on_host and before is None)
            gone = sum(sizes.value(v, device) for v in i.frees if v.on_host and v not in heirs.values())
            host[device] += [(start_s, made), (end_s, -gone)]
            if i.kind in _MOVES:
                moved = sum(sizes.value(v, device) for v in i.reads or i.writes if v.what is not ValueKind.MARK)
                moving[device] += [(start_s, moved), (end_s, -moved)]
    return HostCourse({d: _summed(row) for d, row in host.items()}, {d: _summed(row) for d, row in moving.items()})


def _summed(changes: Series) -> Series:
    """Bytes over time, from their changes in any order."""
    by_time: defaultdict[float, float] = defaultdict(float)
    for second, amount in changes:
        by_time[second] += amount
    found, level = [], 0.0
    for second in sorted(by_time):
        level += by_time[second]
        found.append((second, max(0.0, level)))
    return found

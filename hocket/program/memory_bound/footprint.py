"""Upper bound of each device's memory over all interleavings of a program.

A value may be there during a stretch of its device's compute lane. The stretch begins at the first compute instruction
that is not ordered before the value's writer. It ends at the last one that is not ordered behind the instruction that
frees it. The time before each compute instruction, in which the lane may wait, counts as well. happens_before.py says
when an event surely happens.

- On a device with several waves, stretches are parts of the first wave's lane. Memory that an instruction of another
  lane (or a load in the load lane) uses while it runs is counted over all of the first lane that may run at the same
  time (lane_overlap.py).
- A receive uses its memory from the moment when it is posted (order.py, rule 6).

The simulator's figure belongs to one timing and may be lower. As far as the bytes are right, no timing has a higher
one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.instruction import COMPUTE, COUNTS_UPDATES, Instruction, Value, ValueKind
from hocket.program.memory_bound.happens_before import DeviceEvents, ordered
from hocket.program.memory_bound.lane_overlap import Run, beside, private
from hocket.program.order import heir_of, waves
from hocket.program.program import Program
from hocket.util.units import show_bytes

_MEND = "Recompute, use smaller microbatches or more stages, or admit fewer inputs."
_LARGEST = 4  # number of values named in a message


class Sizes(Protocol):
    """Bytes of values and instructions, as a cost model provides them."""

    def value(self, value: Value, device: int) -> float:
        """Bytes of a value on a device, or on its host for a copy on the host."""

    def held(self, instruction: Instruction) -> float:
        """Maximum bytes that a compute instruction adds to device memory while it runs.

        Pooled values that it writes do not count.
        """

    def pooled(self, value: Value) -> bool:
        """True if memory is pooled: kept for the next value of the same stage and part."""

    def besides(self, device: int) -> float:
        """Constant bytes of a device, in addition to its values."""


@dataclass(frozen=True)
class Plain:
    """Sizes that follow from one function of the values.

    Attributes:
        value_bytes: function value -> bytes.
    """

    value_bytes: Callable[[Value], float]

    def value(self, value: Value, device: int) -> float:
        """Bytes of a value, equal on all devices."""
        return self.value_bytes(value)

    def held(self, instruction: Instruction) -> float:
        """Bytes of the device values that an instruction writes into new memory."""
        new = (v for v in instruction.writes if not v.on_host and heir_of(instruction, v) is None)
        return sum(map(self.value_bytes, new))

    def pooled(self, value: Value) -> bool:
        """False: no memory is pooled."""
        return False

    def besides(self, device: int) -> float:
        """Constant bytes of a device: 0."""
        return 0.0


@dataclass(frozen=True)
class Footprint:
    """Maximum memory use of one device.

    Attributes:
        bytes: the maximum.
        place: the compute instruction before or during which the maximum can occur.
        largest: the largest values that may be there then, with their bytes.
    """

    bytes: float
    place: Place
    largest: tuple[tuple[Value, float], ...]


@dataclass
class _Stretch:
    """Moments `start` to `end` - 1, at which a value may be in memory.

    If `end` is below 0, the value stays to the end. Moment 2k is before compute instruction k of its device, moment 2k
    + 1 is while it runs.
    """

    value: Value
    size: float
    start: int
    end: int


def memory_problems(
    program: Program,
    value_bytes: Callable[[Value], float] | Sizes,
    capacity_bytes: Mapping[int, float],
    host: bool = False,
) -> list[Problem]:
    """Problems of devices that may need more memory than they have.

    Arguments:
        program: a legal program.
        capacity_bytes: memory of each device, or of its host for it. A missing device has no limit.
        host: True to check the host memory that holds the devices' copies.
    """
    found = []
    where = "the host of device" if host else "device"
    mend = "Use a host with more memory, or recompute." if host else _MEND
    for device, footprint in footprints(program, value_bytes, host).items():
        capacity = capacity_bytes.get(device)
        if capacity is not None and footprint.bytes > capacity:
            largest = ", ".join(f"{value} {show_bytes(size)}" for value, size in footprint.largest)
            found.append(
                problem_at(
                    footprint.place,
                    footprint.place.instruction(program),
                    "memory",
                    f"may run when {where} {device} holds up to {show_bytes(footprint.bytes)} (largest: {largest})",
                    f"at most {show_bytes(capacity)}",
                    mend,
                )
            )
    return found


def footprints(
    program: Program, value_bytes: Callable[[Value], float] | Sizes, host: bool = False
) -> dict[int, Footprint]:
    """Memory bound of every device that has compute instructions.

    Arguments:
        program: a legal program.
        host: True for the copies of each device on its host instead of its own memory.

    Raises:
        ProgramError: the program stands still. The message says why.
    """
    sizes = Plain(value_bytes) if callable(value_bytes) else value_bytes
    found = {}
    for events in ordered(program):
        footprint = _footprint(events, sizes, host)
        if footprint:
            found[events.device] = footprint
    return found


def _footprint(events: DeviceEvents, sizes: Sizes, host: bool) -> Footprint | None:
    """Memory bound of one device; None if it has no compute instructions."""
    program, device, happened = events.run.program, events.device, events.happened
    places: list[Place] = []
    held: list[float] = []

    def size(value: Value) -> float:
        return sizes.value(value, device) if value.on_host == host else 0.0

    there = {value: _Stretch(value, size(value), 0, -1) for value in program.initial(device)}
    stretches = list(there.values())
    numbers: dict[str, int] = {}
    runs: list[Run] = []
    if (waves(program.rule) or program.prefetch) and not host:
        runs = [
            (place.lane, i, 2 * int(events.behind[event]), 2 * int(events.ahead[event]) + 1)
            for event, place, i in happened
        ]
    apart = private(runs, sizes.pooled)
    for event, place, instruction in happened:
        if place.lane == COMPUTE:
            start = end = 2 * len(places) + 2
            places.append(place)
        else:
            start = 2 * events.start(event, place, numbers)
            end = 2 * int(events.ahead[event]) + 1
        heir = {value: heir_of(instruction, value) for value in instruction.writes}
        heirs = set(heir.values())
        for value in instruction.frees:
            there.pop(value).end = start if value in heirs else end
        for value in instruction.writes:
            # Pooled memory, and buffers of the host, are allocated when the instruction begins. `held` counts all other
            # memory until the instruction is over.
            early = place.lane == COMPUTE and (host or sizes.pooled(value)) and heir[value] is None
            there[value] = _Stretch(value, size(value), start - early, -1)
            if value not in apart:
                stretches.append(there[value])
        if place.lane == COMPUTE:
            held.append(0.0 if host else sizes.held(instruction))
    if not places:
        return None
    level = np.full(2 * len(places), 0.0 if host else float(sizes.besides(device)))
    level[1::2] += held
    if runs:
        level += beside(runs, apart, size, sizes.held, sizes.pooled, len(level))
    for pooled, own in _pools(stretches, sizes):
        change = [0.0] * (2 * len(places) + 3)
        for stretch in own:
            change[stretch.start] += stretch.size
            if stretch.end >= 0:
                change[stretch.end] -= stretch.size
        there_bytes = np.cumsum(change)[: 2 * len(places)]
        level += np.maximum.accumulate(there_bytes) if pooled else there_bytes
    worst = int(level.argmax())
    largest = sorted(
        ((s.value, s.size) for s in stretches if s.start <= worst and not 0 <= s.end <= worst),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return Footprint(float(level[worst]), places[worst // 2], tuple(largest[:_LARGEST]))


def _pools(stretches: list[_Stretch], sizes: Sizes) -> Iterator[tuple[bool, list[_Stretch]]]:
    """Group the stretches by memory pool.

    Yields:
        (False, all stretches without a pool), then (True, stretches) for each pool.
    """
    pools: dict[tuple[bool, int, int], list[_Stretch]] = {}
    rest: list[_Stretch] = []
    for stretch in stretches:
        value = stretch.value
        if sizes.pooled(value):
            pools.setdefault(
                (
                    value.what in COUNTS_UPDATES - {ValueKind.REDUCED, ValueKind.PART, ValueKind.LENT},
                    value.stage,
                    value.part,
                ),
                [],
            ).append(stretch)
        else:
            rest.append(stretch)
    yield False, rest
    for pool in pools.values():
        yield True, pool

"""How much memory a program can need on each device at most, whatever the timing: a bound over all interleavings.

For each value, the stretch of its device's compute lane during which it may be there: from the first compute instruction
that is not ordered before its writer, to the last that is not ordered behind the one who frees it. A receive takes its
memory when it is posted, so when the receive before it in its lane is over. The simulator's figure belongs to one timing
and may be lower; as far as the bytes are right, none can be higher.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hocket.program.instruction import COMPUTE, Instruction, Kind, Value
from hocket.program.order import heir_of
from hocket.program.problem import Place, Problem, problem_at
from hocket.program.program import Program
from hocket.program.untimed import Untimed
from hocket.units import show_bytes

_PARTS = (("prologue", 0), ("period", 0), ("period", 1), ("epilogue", 2))  # a third period is like the second
_BLOCK = 64  # devices whose clocks are kept at a time
_LARGEST = 4  # values named in a message


@dataclass(frozen=True)
class Footprint:
    """The most that can be there at once on one device.

    Attributes:
        bytes: how much; place: of the compute instruction during which it can be.
        largest: the largest of the values that may be there then, with their bytes.
    """

    bytes: float
    place: Place
    largest: tuple[tuple[Value, float], ...]


@dataclass
class _Stretch:
    """A value that may be there while compute instructions `start` to `end` - 1 of its device run."""

    value: Value
    size: float
    start: int
    end: int


def memory_problems(
    program: Program, value_bytes: Callable[[Value], float], capacity_bytes: Mapping[int, float]
) -> list[Problem]:
    """Devices that a legal program can ask for more memory than they have."""
    found = []
    for device, footprint in footprints(program, value_bytes).items():
        capacity = capacity_bytes.get(device)
        if capacity is not None and footprint.bytes > capacity:
            largest = ", ".join(f"{value} {show_bytes(size)}" for value, size in footprint.largest)
            found.append(
                problem_at(
                    footprint.place,
                    footprint.place.instruction(program),
                    "memory",
                    f"may run when device {device} holds up to {show_bytes(footprint.bytes)} (largest: {largest})",
                    f"at most {show_bytes(capacity)}",
                    "Recompute, use smaller microbatches or more stages, or admit fewer inputs.",
                )
            )
    return found


def footprints(program: Program, value_bytes: Callable[[Value], float]) -> dict[int, Footprint]:
    """The bound for every device of a legal program that has compute instructions."""
    run = Untimed.start(program)
    for part, repetition in _PARTS:
        run.run(part, repetition)
    found = {}
    for first in range(0, len(program.devices), _BLOCK):
        devices = program.devices[first : first + _BLOCK]
        behind, ahead = _clocks(run, devices)
        for column, device in enumerate(devices):
            footprint = _footprint(run, device, value_bytes, behind[:, column], ahead[:, column])
            if footprint:
                found[device] = footprint
    return found


def _clocks(run: Untimed, devices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Per event and device: how many compute instructions are surely over before it ends, and the first surely behind it.

    Two arrays of shape (events, devices).
    """
    column = {device: k for k, device in enumerate(devices)}
    counts = np.zeros(len(devices), dtype=np.int32)
    behind = np.zeros((len(run.events), len(devices)), dtype=np.int32)
    own: dict[int, tuple[int, int]] = {}
    for event, (places, before) in enumerate(zip(run.events, run.before, strict=True)):
        if before:
            np.maximum.reduce(behind[list(before)], axis=0, out=behind[event])
        for place in places:
            if place.lane == COMPUTE and place.device in column:
                k = column[place.device]
                own[event] = (k, int(counts[k]))
                counts[k] += 1
                behind[event, k] = counts[k]
    ahead = np.broadcast_to(counts, behind.shape).copy()
    for event in range(len(run.events) - 1, 0, -1):
        row = ahead[event]
        if event in own:
            k, position = own[event]
            row = row.copy()
            row[k] = position
        for earlier in set(run.before[event]):
            np.minimum(ahead[earlier], row, out=ahead[earlier])
    return behind, ahead


def _footprint(
    run: Untimed, device: int, value_bytes: Callable[[Value], float], behind: np.ndarray, ahead: np.ndarray
) -> Footprint | None:
    """The bound for one device, given its column of the two clocks."""
    places: list[Place] = []
    held: list[float] = []
    there = {value: _Stretch(value, value_bytes(value), 0, -1) for value in run.program.initial(device)}
    stretches = list(there.values())
    for event, place, instruction in _on(run, device):
        if place.lane == COMPUTE:
            start = end = len(places) + 1
            places.append(place)
        else:
            start = _posted(run, event, place, behind) if instruction.kind is Kind.RECEIVE else int(behind[event])
            end = int(ahead[event])
        heirs = {heir_of(instruction, value) for value in instruction.writes}
        for value in instruction.frees:
            there.pop(value).end = start if value in heirs else end
        for value in instruction.writes:
            there[value] = _Stretch(value, value_bytes(value), start, -1)
            stretches.append(there[value])
        if place.lane == COMPUTE:
            held.append(sum(value_bytes(v) for v in instruction.writes if heir_of(instruction, v) is None))
    if not places:
        return None
    change = np.zeros(len(places) + 2)
    for stretch in stretches:
        change[stretch.start] += stretch.size
        if stretch.end >= 0:
            change[stretch.end] -= stretch.size
    level = np.cumsum(change)[: len(places)] + np.array(held)
    worst = int(level.argmax())
    largest = sorted(
        ((s.value, s.size) for s in stretches if s.start <= worst and not 0 <= s.end <= worst),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return Footprint(float(level[worst]), places[worst], tuple(largest[:_LARGEST]))


def _on(run: Untimed, device: int) -> Iterator[tuple[int, Place, Instruction]]:
    """Every event on one device, with its instruction as it ran."""
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device == device:
                yield event, place, instruction


def _posted(run: Untimed, event: int, place: Place, behind: np.ndarray) -> int:
    """Compute instructions that are surely over when a receive is posted: when the one before it in its lane is over."""
    lane = (place.device, place.lane)
    for earlier in run.before[event]:
        if any((other.device, other.lane) == lane for other in run.events[earlier]):
            return int(behind[earlier])
    return 0

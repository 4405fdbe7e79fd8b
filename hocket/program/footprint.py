"""How much memory a program can need on each device at most, whatever the timing: a bound over all interleavings.

For each value, the stretch of its device's compute lane during which it may be there: from the first compute instruction
that is not ordered before its writer, to the last that is not ordered behind the one who frees it. The time before each
compute instruction, in which the lane may wait, counts as well. Of a device with several waves it is the first one's lane, and what an
instruction of another lane takes while it runs is counted over all of that lane beside which it may run (beside.py). A receive takes its
memory when it is posted (order.py, rule 6). The simulator's figure belongs to one timing
and may be lower; as far as the bytes are right, none can be higher.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hocket.errors import ProgramError
from hocket.program.beside import Run, beside, private
from hocket.program.instruction import COMPUTE, COUNTS_UPDATES, Instruction, Value, What
from hocket.program.order import heir_of, waves
from hocket.program.problem import Place, Problem, problem_at
from hocket.program.program import Lane, Program
from hocket.program.untimed import Untimed
from hocket.units import show_bytes

_Happened = tuple[int, Place, Instruction]  # an event, and what one device did in it
_BLOCK = 64  # devices whose clocks are kept at a time
_MEND = "Recompute, use smaller microbatches or more stages, or admit fewer inputs."
_FEW = 8  # devices, for which numbers are quicker than arrays
_LARGEST = 4  # values named in a message


class Sizes(Protocol):
    """Bytes, as a cost model knows them."""

    def value(self, value: Value, device: int) -> float:
        """Of a value on a device, or on its host."""

    def held(self, instruction: Instruction) -> float:
        """The most that a compute instruction adds while it runs, pooled values that it writes left out."""

    def pooled(self, value: Value) -> bool:
        """Whether the memory of such values is never given back, but kept for the next of the same stage and part."""

    def besides(self, device: int) -> float:
        """What is there all the time and is no value."""


@dataclass(frozen=True)
class Plain:
    """Sizes that follow from the values alone."""

    value_bytes: Callable[[Value], float]

    def value(self, value: Value, device: int) -> float:
        """The same on all devices."""
        return self.value_bytes(value)

    def held(self, instruction: Instruction) -> float:
        """What it writes."""
        new = (v for v in instruction.writes if not v.on_host and heir_of(instruction, v) is None)
        return sum(map(self.value_bytes, new))

    def pooled(self, value: Value) -> bool:
        """None is."""
        return False

    def besides(self, device: int) -> float:
        """Nothing."""
        return 0.0


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
    """A value that may be there from moment `start` to moment `end` - 1; for good where `end` is below 0.

    Moment 2k is before compute instruction k of its device, moment 2k + 1 while it runs.
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
    """Devices that a legal program can ask for more memory than they have.

    Arguments:
        host: it is asked of the memory on the host that holds their copies.
    """
    found = []
    where = "the host of device" if host else "device"
    mend = "Take a host with more memory, or recompute." if host else _MEND
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
    """The bound for every device of a legal program that has compute instructions.

    Arguments:
        host: of what lies on the host for it, instead of what is on the device.

    Raises:
        ProgramError: the program stands still, and why.
    """
    sizes = Plain(value_bytes) if callable(value_bytes) else value_bytes
    run, found = None, {}
    for first in range(0, len(program.devices), _BLOCK):
        run, happened, behind, ahead = _ordered(program, first, run)
        for column, (device, own) in enumerate(happened.items()):
            footprint = _footprint(run, device, own, sizes, behind[:, column], ahead[:, column], host)
            if footprint:
                found[device] = footprint
    return found


_Ordered = tuple[Untimed, dict[int, list[_Happened]], np.ndarray, np.ndarray]
_last: tuple[Program, _Ordered] | None = None


def _ordered(program: Program, first: int, run: Untimed | None) -> _Ordered:
    """A run of as many parts as there are unlike ones; what happens in it on a block of devices, and their two clocks.

    That of the last small program is kept: what it needs on devices and on hosts is asked one after the other.
    """
    global _last
    if _last is not None and _last[0] is program:
        return _last[1]
    devices = program.devices[first : first + _BLOCK]
    whole = len(devices) == len(program.devices)
    found = _few_periods(program) if whole else None
    if found is None:
        if run is None:
            run = Untimed.start(program)
            for part, repetition in unlike_parts(program, run.windows):
                _run(run, part, repetition)
        found = run, _by_device(run, devices), *clocks(run, devices)
    if whole:
        _last = program, found
    return found


def _few_periods(program: Program) -> _Ordered | None:
    """The same of one period, or of two where messages may be waited for ahead, where these stand for all; otherwise None.

    So it is in most programs that swap: between periods no value is on a device, and what reaches from one period into the next is over
    before anything of the next but one begins. Then what is there at a moment is there in the first of them or in the second.
    """
    if not program.swaps or program.prologue or program.epilogue:
        return None
    run = Untimed.start(program)
    _run(run, "period")
    if any(set(row) != set(program.final(device, 1)) for device, row in run.live.items()):
        return None
    first, periods = len(run.events), 1
    if run.windows:
        if any(run.windows.get(lane, 0) > len(row) for lane, row in program.period.items()):
            return None  # more than a period ahead
        _run(run, "period", 1)
        periods = 2
    behind, ahead = clocks(run, program.devices)
    happened = _by_device(run, program.devices)
    for column, (device, own) in enumerate(happened.items()):
        count, numbers = len(program.period.get((device, COMPUTE), ())), dict[str, int]()
        over, begins = (
            -1,
            count,
        )  # of this period's what reaches into the next; of the next period's what is there in this one
        for event, place, _ in own:
            if place.lane == COMPUTE:
                continue
            posts = (place.device, place.lane) in run.windows
            start = _posted(numbers, run, place, behind[:, column]) if posts else int(behind[event, column])
            if event < first:
                over = max(over, int(ahead[event, column]) - count)
                if periods == 1 and not start:
                    return None
            else:
                begins = min(begins, start)
        if over >= (begins if periods == 2 else 0):
            return None
    return run, happened, behind, ahead


def _run(run: Untimed, part: str, repetition: int = 0) -> None:
    """Run a part to its end: of what stands still nothing could be said.

    Raises:
        ProgramError: it does.
    """
    if not run.run(part, repetition):
        raise ProgramError(f"program {run.program.name}", f"stands still: {run.problems[-1]}", "a legal program")


def unlike_parts(program: Program, windows: Mapping[Lane, int]) -> Iterator[tuple[str, int]]:
    """As many periods as there are unlike ones: the first, the last, and those that a receive of them may be posted in."""
    ahead = [-(-windows[lane] // len(row)) for lane, row in program.period.items() if lane in windows]
    repeats = 2 + max(ahead, default=0) if program.period else 0
    return iter([("prologue", 0), *(("period", r) for r in range(repeats)), ("epilogue", repeats)])


def clocks(run: Untimed, devices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Per event and device: how many compute instructions are surely over before it ends, and the first surely behind it.

    Two arrays of shape (events, devices); where nothing is surely behind an event, the number of all of them.
    """
    column = {device: k for k, device in enumerate(devices)}
    counts = np.zeros(len(devices), dtype=np.int32)
    if len(devices) <= _FEW:
        both = np.array([_clocks_of_one(run, device) for device in devices], dtype=np.int32)
        return both[:, 0].T, both[:, 1].T
    behind = np.zeros((len(run.events), len(devices)), dtype=np.int32)
    own: dict[int, tuple[int, int]] = {}
    for event, (places, before) in enumerate(zip(run.events, run.before, strict=True)):
        for earlier in set(before):
            np.maximum(behind[event], behind[earlier], out=behind[event])
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


def _clocks_of_one(run: Untimed, device: int) -> tuple[list[int], list[int]]:
    """The two columns of one device."""
    behind: list[int] = []
    own, count = [], 0
    for places, before in zip(run.events, run.before, strict=True):
        over = max([behind[earlier] for earlier in before], default=0)
        computes = False
        for place in places:
            computes = computes or (place.device == device and place.lane == COMPUTE)
        if computes:
            own.append(len(behind))
            count += 1
            over = count
        behind.append(over)
    ahead = [count] * len(behind)
    for event in range(len(behind) - 1, 0, -1):
        if own and own[-1] == event:
            own.pop()
            ahead[event] = len(own)
        least = ahead[event]
        for earlier in run.before[event]:
            if ahead[earlier] > least:
                ahead[earlier] = least
    return behind, ahead


def _footprint(
    run: Untimed,
    device: int,
    happened: list[_Happened],
    sizes: Sizes,
    behind: np.ndarray,
    ahead: np.ndarray,
    host: bool = False,
) -> Footprint | None:
    """The bound for one device, given its column of the two clocks."""
    places: list[Place] = []
    held: list[float] = []

    def size(value: Value) -> float:
        return sizes.value(value, device) if value.on_host == host else 0.0

    there = {value: _Stretch(value, size(value), 0, -1) for value in run.program.initial(device)}
    stretches = list(there.values())
    numbers: dict[str, int] = {}
    runs: list[Run] = []
    if waves(run.program.rule) and not host:
        runs = [(place.lane, i, 2 * int(behind[event]), 2 * int(ahead[event]) + 1) for event, place, i in happened]
    apart = private(runs, sizes.pooled)
    for event, place, instruction in happened:
        if place.lane == COMPUTE:
            start = end = 2 * len(places) + 2
            places.append(place)
        else:
            posts = (place.device, place.lane) in run.windows
            start = 2 * (_posted(numbers, run, place, behind) if posts else int(behind[event]))
            end = 2 * int(ahead[event]) + 1
        heir = {value: heir_of(instruction, value) for value in instruction.writes}
        heirs = set(heir.values())
        for value in instruction.frees:
            there.pop(value).end = start if value in heirs else end
        for value in instruction.writes:
            # Pooled memory is taken when the instruction begins, all other is what `held` counts until it is over.
            # So are buffers of the host.
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
    """The stretches that share pooled memory, pool by pool, and all others."""
    pools: dict[tuple[bool, int, int], list[_Stretch]] = {}
    rest: list[_Stretch] = []
    for stretch in stretches:
        value = stretch.value
        if sizes.pooled(value):
            pools.setdefault(
                (value.what in COUNTS_UPDATES - {What.REDUCED, What.PART, What.LENT}, value.stage, value.part), []
            ).append(stretch)
        else:
            rest.append(stretch)
    yield False, rest
    for pool in pools.values():
        yield True, pool


def _by_device(run: Untimed, devices: tuple[int, ...]) -> dict[int, list[_Happened]]:
    """Every event on each device, with the instruction as it ran."""
    found: dict[int, list[_Happened]] = {device: [] for device in devices}
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device in found:
                found[place.device].append((event, place, instruction))
    return found


def _posted(numbers: dict[str, int], run: Untimed, place: Place, behind: np.ndarray) -> int:
    """Compute instructions that are surely over when the next receive of a lane is posted.

    Arguments:
        numbers: receives of each lane so far; counted on.
    """
    number = numbers[place.lane] = numbers.get(place.lane, -1) + 1
    posted = run.posted.get((place.device, place.lane))
    return int(behind[posted[number]]) if posted else 0

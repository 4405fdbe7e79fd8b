"""Happens-before relation between events and the compute instructions of a device.

It holds over all interleavings. A moment is a position among the compute instructions of a device.

Rules of this file: order only, no bytes. A program is run without seconds (untimed_run.py), with as many periods as
differ from each other. A program that swaps needs only one or two periods, if these represent all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hocket.errors import ProgramError
from hocket.program.check.problem import Place
from hocket.program.instruction import COMPUTE, Instruction
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.program import Lane, Program

Happened = tuple[int, Place, Instruction]
"""An event, with the place and the instruction of one device in it."""
_BLOCK = 64  # number of devices with clocks in memory at a time
_FEW = 8  # number of devices up to which Python numbers are quicker than arrays


@dataclass(frozen=True)
class DeviceEvents:
    """Events of one device in a run, and their order.

    Attributes:
        happened: the events, with the device's places and instructions.
        behind, ahead: the device's columns of the two clocks of all events (see `clocks`); shape (events,).
    """

    run: Untimed
    device: int
    happened: list[Happened]
    behind: np.ndarray
    ahead: np.ndarray

    def start(self, event: int, place: Place, numbers: dict[str, int]) -> int:
        """Compute instructions surely over when an event starts.

        For a receive with a window, the start is the moment when it is posted.

        Arguments:
            numbers: number of the last receive of each lane; updated in place.
        """
        lane = place.device, place.lane
        if lane not in self.run.windows:
            return int(self.behind[event])
        number = numbers[place.lane] = numbers.get(place.lane, -1) + 1
        posted = self.run.posted.get(lane)
        return int(self.behind[posted[number]]) if posted else 0


_last: tuple[Program, tuple[DeviceEvents, ...]] | None = None


def ordered(program: Program) -> Iterator[DeviceEvents]:
    """Yield the events of each device in a run of all periods that differ.

    The result for the last small program is kept, because its memory on devices and on hosts is bounded one after the
    other.

    Raises:
        ProgramError: the program stands still. The message says why.
    """
    global _last
    if not 0 < len(program.devices) <= _BLOCK:
        run = _unlike(program)
        for first in range(0, len(program.devices), _BLOCK):
            yield from _looked_at(run, program.devices[first : first + _BLOCK])
        return
    if _last is None or _last[0] is not program:
        _last = program, _few_periods(program) or _looked_at(_unlike(program), program.devices)
    yield from _last[1]


def _unlike(program: Program) -> Untimed:
    run = Untimed.start(program)
    for part, repetition in unlike_parts(program, run.windows):
        _run(run, part, repetition)
    return run


def _looked_at(run: Untimed, devices: tuple[int, ...]) -> tuple[DeviceEvents, ...]:
    behind, ahead = clocks(run, devices)
    return tuple(
        DeviceEvents(run, device, own, behind[:, column], ahead[:, column])
        for column, (device, own) in enumerate(_by_device(run, devices).items())
    )


def _few_periods(program: Program) -> tuple[DeviceEvents, ...] | None:
    """Happens-before relation from one or two periods.

    Two periods are needed if receives are posted ahead. Most programs that swap qualify: between periods no value is on
    a device, and everything that reaches from one period into the next is over before the next but one begins. Then
    every value that may be there at some moment is there in the first or in the second period.

    Returns:
        None if these periods do not represent all periods.
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
            return None  # receives are posted more than a period ahead
        _run(run, "period", 1)
        periods = 2
    found = _looked_at(run, program.devices)
    for own in found:
        count, numbers = len(program.period.get((own.device, COMPUTE), ())), dict[str, int]()
        # `over`: how far events of this period reach into the next. `begins`: where events of the next period begin.
        over, begins = -1, count
        for event, place, _ in own.happened:
            if place.lane == COMPUTE:
                continue
            start = own.start(event, place, numbers)
            if event < first:
                over = max(over, int(own.ahead[event]) - count)
                if periods == 1 and not start:
                    return None
            else:
                begins = min(begins, start)
        if over >= (begins if periods == 2 else 0):
            return None
    return found


def _run(run: Untimed, part: str, repetition: int = 0) -> None:
    """Run a part to its end. A bound on memory needs a run that does not stand still.

    Raises:
        ProgramError: the part stands still.
    """
    if not run.run(part, repetition):
        raise ProgramError(f"program {run.program.name}", f"stands still: {run.problems[-1]}", "a legal program")


def unlike_parts(program: Program, windows: Mapping[Lane, int]) -> Iterator[tuple[str, int]]:
    """Return an iterator over the parts that differ, with their repetitions.

    These are the prologue, the first and the last period, periods in which receives of the last may be posted, and the
    epilogue.
    """
    ahead = [-(-windows[lane] // len(row)) for lane, row in program.period.items() if lane in windows]
    repeats = 2 + max(ahead, default=0) if program.period else 0
    return iter([("prologue", 0), *(("period", r) for r in range(repeats)), ("epilogue", repeats)])


def clocks(run: Untimed, devices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Completed compute instructions before, and first pending one after, each event.

    For each event and device: the number of compute instructions surely over before the event ends, and the first
    instruction surely after it.

    Returns:
        Two arrays of shape (events, devices). If no instruction surely follows an event, the second array has the
            number of all compute instructions.
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
    """Columns of one device in the two arrays of `clocks`."""
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


def _by_device(run: Untimed, devices: tuple[int, ...]) -> dict[int, list[Happened]]:
    """Events of each device, with the instructions as they ran."""
    found: dict[int, list[Happened]] = {device: [] for device in devices}
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device in found:
                found[place.device].append((event, place, instruction))
    return found

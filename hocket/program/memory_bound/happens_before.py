"""Happens-before relation between events and the compute instructions of a device.

The relation holds over all interleavings. An event is an instruction, or several that meet in a rendezvous
(untimed_run.py). "Before" and "after" mean: surely so, in every interleaving. Waves are left aside: compute
instructions are those of the lane COMPUTE.

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
        happened: the device's events, with their places and instructions.
        behind, ahead: the device's columns of the two arrays of `clocks`; shape (events of the whole run,).
    """

    run: Untimed
    device: int
    happened: list[Happened]
    behind: np.ndarray
    ahead: np.ndarray

    def start(self, event: int, place: Place, numbers: dict[str, int]) -> int:
        """Number of compute instructions that are surely over when an event starts.

        A receive with a window starts when it is posted.

        Arguments:
            place: place of the device's instruction in the event.
            numbers: by name of the lane, the number of its last receive; updated in place. Call this once for each
                event, in order.
        """
        lane = place.device, place.lane
        if lane not in self.run.windows:
            return int(self.behind[event])
        number = numbers[place.lane] = numbers.get(place.lane, -1) + 1
        posted = self.run.posted.get(lane)
        return int(self.behind[posted[number]]) if posted else 0


_last: tuple[Program, tuple[DeviceEvents, ...]] | None = None


def ordered(program: Program) -> Iterator[DeviceEvents]:
    """Yield each device's events in a run that stands for runs of any length.

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
    """Happens-before relation of a program that swaps, from one or two periods.

    Two periods are needed if receives are posted ahead. Most programs that swap qualify: between periods no value is
    on a device, and everything that reaches from one period into the next is over before the next but one begins. Then
    every value that may be there at some moment is there in the first or in the second period.

    Returns:
        None if these periods do not represent all periods, or the program does not swap.
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
    """Parts of the shortest run that stands for runs of any length, in order.

    The run has the prologue, two periods plus as many as receives may be posted, or microbatches loaded, ahead, and the
    epilogue.

    Arguments:
        windows: window of each receive lane, in messages (receive_window.py).

    Returns:
        Pairs (part, index): ("prologue", 0), ("period", 0), ("period", 1), ..., ("epilogue", number of periods). The
            index is the number of periods by which the part's microbatches are shifted.
    """
    ahead = [-(-windows[lane] // len(row)) for lane, row in program.period.items() if lane in windows]
    repeats = 2 + max(*ahead, program.load_span, 0) if program.period else 0
    return iter([("prologue", 0), *(("period", r) for r in range(repeats)), ("epilogue", repeats)])


def clocks(run: Untimed, devices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Position of each event among the compute instructions of each device.

    Returns:
        Two arrays of shape (events, devices). The first has the number of compute instructions that are surely over
            when the event ends. The second has the number of the first compute instruction that begins surely after
            the event, or the number of all compute instructions if there is none. Its entries for compute instructions
            of the same device are not used.
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
    """Events of each device, with their places and the instructions as they ran."""
    found: dict[int, list[Happened]] = {device: [] for device in devices}
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device in found:
                found[place.device].append((event, place, instruction))
    return found

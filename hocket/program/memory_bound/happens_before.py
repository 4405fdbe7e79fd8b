"""Moments: between which compute instructions of a device each event of a program surely falls, over all interleavings.

Rules of this file: order only, no bytes. A program is run without seconds (untimed_run.py), in as many periods as there are unlike ones;
that of a program that swaps is one, or two, where these stand for all.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from hocket.errors import ProgramError
from hocket.program.check.problem import Place
from hocket.program.instruction import COMPUTE, Instruction
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.program import Lane, Program

Happened = tuple[int, Place, Instruction]
"""An event, and what one device did in it."""
Ordered = tuple[Untimed, dict[int, list[Happened]], np.ndarray, np.ndarray]
"""A run; by device what happens in it, and for each of these a column of the two clocks (see `clocks`)."""
_BLOCK = 64  # devices whose clocks are kept at a time
_FEW = 8  # devices, for which numbers are quicker than arrays
_last: tuple[Program, Ordered] | None = None


def ordered(program: Program) -> Iterator[Ordered]:
    """A run of as many parts as there are unlike ones, block by block of devices.

    That of the last small program is kept: what it needs on devices and on hosts is asked one after the other.

    Raises:
        ProgramError: the program stands still, and why.
    """
    global _last
    if not 0 < len(program.devices) <= _BLOCK:
        run = _unlike(program)
        for first in range(0, len(program.devices), _BLOCK):
            yield _looked_at(run, program.devices[first : first + _BLOCK])
        return
    if _last is None or _last[0] is not program:
        _last = program, _few_periods(program) or _looked_at(_unlike(program), program.devices)
    yield _last[1]


def _unlike(program: Program) -> Untimed:
    run = Untimed.start(program)
    for part, repetition in unlike_parts(program, run.windows):
        _run(run, part, repetition)
    return run


def _looked_at(run: Untimed, devices: tuple[int, ...]) -> Ordered:
    return run, _by_device(run, devices), *clocks(run, devices)


def _few_periods(program: Program) -> Ordered | None:
    """Happens-before relation from one or two periods; None if they do not represent all periods.

    Two periods are needed if receives are posted ahead.

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
    _, happened, behind, ahead = found = _looked_at(run, program.devices)
    for column, (device, own) in enumerate(happened.items()):
        count, numbers = len(program.period.get((device, COMPUTE), ())), dict[str, int]()
        # Of this period's what reaches into the next; of the next period's what is there in this one.
        over, begins = -1, count
        for event, place, _ in own:
            if place.lane == COMPUTE:
                continue
            posts = (place.device, place.lane) in run.windows
            start = posted(numbers, run, place, behind[:, column]) if posts else int(behind[event, column])
            if event < first:
                over = max(over, int(ahead[event, column]) - count)
                if periods == 1 and not start:
                    return None
            else:
                begins = min(begins, start)
        if over >= (begins if periods == 2 else 0):
            return None
    return found


def _run(run: Untimed, part: str, repetition: int = 0) -> None:
    """Run a part to its end: of what stands still nothing could be said.

    Raises:
        ProgramError: it does.
    """
    if not run.run(part, repetition):
        raise ProgramError(f"program {run.program.name}", f"stands still: {run.problems[-1]}", "a legal program")


def unlike_parts(program: Program, windows: Mapping[Lane, int]) -> Iterator[tuple[str, int]]:
    """Yield the periods that differ: the first, the last, and those in which a receive of them may be posted."""
    ahead = [-(-windows[lane] // len(row)) for lane, row in program.period.items() if lane in windows]
    repeats = 2 + max(ahead, default=0) if program.period else 0
    return iter([("prologue", 0), *(("period", r) for r in range(repeats)), ("epilogue", repeats)])


def clocks(run: Untimed, devices: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Completed compute instructions before, and first pending one after, each event.

    For each event and device: the number of compute instructions surely over before the event ends, and the first
    instruction surely after it.

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


def _by_device(run: Untimed, devices: tuple[int, ...]) -> dict[int, list[Happened]]:
    """Every event on each device, with the instruction as it ran."""
    found: dict[int, list[Happened]] = {device: [] for device in devices}
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device in found:
                found[place.device].append((event, place, instruction))
    return found


def posted(numbers: dict[str, int], run: Untimed, place: Place, behind: np.ndarray) -> int:
    """Compute instructions that are surely over when the next receive of a lane is posted.

    Arguments:
        numbers: receives of each lane so far; counted on.
    """
    number = numbers[place.lane] = numbers.get(place.lane, -1) + 1
    posted = run.posted.get((place.device, place.lane))
    return int(behind[posted[number]]) if posted else 0

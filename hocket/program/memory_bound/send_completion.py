"""When a send is surely over, whatever the timing, told in its own device's compute instructions.

A receiver's answer travels back through the program: an instruction that reads what was made of a message cannot begin
before the message was there. So an engine that cannot ask whether a send is over still knows from where its compute lane is.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.memory_bound.happens_before import unlike_parts
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.program import Program


class Spot(NamedTuple):
    """An instruction of a lane: its part ("prologue", "period" or "epilogue") and its position in the part."""

    lane: str
    part: str
    position: int


class End(NamedTuple):
    """Earliest time at which a send is surely complete.

    The time is the begin of a compute instruction, given by its number from the start of the run, if the run has
    enough periods.
    """

    instruction: int
    periods: int


class Ends:
    """Completion times of all sends of one device, along a run of the program."""

    def __init__(self, program: Program, device: int) -> None:
        """Find them, which takes some three times as long as one proof of the program."""
        sends = any(i.kind is Kind.SEND and i.device == device for _, i in program.instructions())
        self._lags = surely_over(program, device) if sends else {}
        self._prologue, self._period = (
            len(lanes.get((device, COMPUTE), ())) for lanes in (program.prologue, program.period)
        )

    def of(self, lane: str, part: str, repetition: int, position: int) -> End | None:
        """Completion time of one send; None if no instruction proves it."""
        lag = self._lags.get(Spot(lane, part, position))
        if lag is None:
            return None
        if part == "prologue":
            # In the prologue nobody knows yet whether a period comes.
            return End(lag, int(lag >= self._prologue))
        return End(self._prologue + repetition * self._period + lag, repetition + 2)


def surely_over(program: Program, device: int) -> dict[Spot, int]:
    """Latest instruction until which each send of a device in a legal program may last.

    Returns:
        For each send the first compute instruction that begins only when it is over, counted from the first one of the same
        repetition of its part, and on into the period that follows: where none follows, it holds inside the prologue only.
        Sends that nothing in the program is sure to come behind are left out, those of the epilogue among them.
    """
    run = Untimed.start(program)
    for part, repetition in unlike_parts(program, run.windows):
        run.run(part, repetition)
    seen: Counter[Spot] = Counter()
    begins: dict[tuple[str, int], int] = {}
    sends: list[tuple[Spot, int, int]] = []
    own: dict[int, int] = {}
    for event, places in enumerate(run.events):
        for place, instruction in zip(places, run.ran[event], strict=True):
            if place.device == device:
                spot = Spot(place.lane, place.part, place.position)
                if place.lane == COMPUTE:
                    begins.setdefault((place.part, seen[spot]), len(own))
                    own[event] = len(own)
                elif instruction.kind is Kind.SEND:
                    sends.append((spot, seen[spot], event))
                seen[spot] += 1
    ahead = _first_behind(run, own)
    return {
        spot: ahead[event] - begins[spot.part, repetition]
        for spot, repetition, event in sends
        if repetition == 0 and spot.part != "epilogue" and (spot.part, 0) in begins and ahead[event] < len(own)
    }


def _first_behind(run: Untimed, own: Mapping[int, int]) -> list[int]:
    """For each event, the first compute instruction of a device that surely follows it.

    The number of compute instructions if there is none.

    Arguments:
        own: the numbers of that device's compute instructions by event.
    """
    ahead = [len(own)] * len(run.events)
    for event in range(len(run.events) - 1, 0, -1):
        first = own.get(event, ahead[event])
        for earlier in run.before[event]:
            if first < ahead[earlier]:
                ahead[earlier] = first
    return ahead

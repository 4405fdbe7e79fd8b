"""Completion of sends, for any timing, by compute instructions of the sender.

A receiver's answer travels back through the program. An instruction that reads values made from a message cannot begin
before the message was there. So an engine that cannot ask whether a send is over can still conclude it from the
position of its compute lane.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hocket.program.instruction import COMPUTE, Kind
from hocket.program.memory_bound.happens_before import unlike_parts
from hocket.program.memory_bound.untimed_run import Untimed
from hocket.program.program import Program


class Spot(NamedTuple):
    """Position of an instruction in a lane.

    The part is "prologue", "period" or "epilogue"; the position counts within the part.
    """

    lane: str
    part: str
    position: int


class End(NamedTuple):
    """First compute instruction that starts surely after a send is complete.

    Attributes:
        instruction: number of this compute instruction, from the start of the run.
        periods: least number of periods of a run for which this holds.
    """

    instruction: int
    periods: int


class Ends:
    """Completion of all sends of one device, along a run of the program."""

    def __init__(self, program: Program, device: int) -> None:
        """Find when sends are complete; this takes about three times as long as one proof."""
        sends = any(i.kind is Kind.SEND and i.device == device for _, i in program.instructions())
        self._lags = surely_over(program, device) if sends else {}
        self._prologue, self._period = (
            len(lanes.get((device, COMPUTE), ())) for lanes in (program.prologue, program.period)
        )

    def of(self, lane: str, part: str, repetition: int, position: int) -> End | None:
        """Compute instruction by which a send is complete; None if none proves it.

        Arguments:
            lane, part, position: place of the send on the device.
            repetition: repetition of the period, from 0.
        """
        lag = self._lags.get(Spot(lane, part, position))
        if lag is None:
            return None
        if part == "prologue":
            # In the prologue it is not known yet whether a period follows.
            return End(lag, int(lag >= self._prologue))
        return End(self._prologue + repetition * self._period + lag, repetition + 2)


def surely_over(program: Program, device: int) -> dict[Spot, int]:
    """For each send of a device, the first compute instruction surely after it.

    The program must be legal.

    Returns:
        By send, the number of the first compute instruction that begins only after the send is complete. Number 0 is
            the first compute instruction of the same repetition of the send's part; the count goes on into the period
            that follows. If no period follows, the result holds inside the prologue only. Sends without such an
            instruction are left out, and so are sends of the epilogue.
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
    """First compute instruction of a device that surely follows each event.

    Arguments:
        own: by event, the number of the device's compute instruction in it.

    Returns:
        By event, the number of that instruction; the number of all compute instructions if none follows.
    """
    ahead = [len(own)] * len(run.events)
    for event in range(len(run.events) - 1, 0, -1):
        first = own.get(event, ahead[event])
        for earlier in run.before[event]:
            if first < ahead[earlier]:
                ahead[earlier] = first
    return ahead

"""Causes of a standstill: missing values, values freed too early, and cycles.

A standstill is a run of a program in which no lane can go on.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from hocket.errors import InternalError
from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.check.rendezvous import meetings
from hocket.program.instruction import Instruction, Kind, Value, send_lane
from hocket.program.memory_bound.receive_window import CONSUMERS, consumed
from hocket.program.program import Lane, Lanes, Program

MAX_SHOWN = 12  # instructions of one cycle in a message


@dataclass(frozen=True)
class Standstill:
    """A part of a program that stopped before its end.

    Attributes:
        part: "prologue", "period" or "epilogue".
        lanes: instructions of the part as they ran. A later repetition of the period has later microbatches.
        stuck: for each lane that has not ended, the position of its first instruction that has not run.
        live: values on each device.
        freed: for each (device, value) that is gone, the places and instructions that freed it.
        unposted: lanes with a next receive that is not posted.
    """

    program: Program
    part: str
    lanes: Lanes
    stuck: Mapping[Lane, int]
    live: Mapping[int, Mapping[Value, object]]
    freed: Mapping[tuple[int, Value], tuple[tuple[Place, Instruction], ...]]
    unposted: Collection[Lane]


def waiting_problems(end: Standstill) -> list[Problem]:
    """Return the causes of a standstill.

    Raises:
        InternalError: no cause was found.
    """
    part, lanes, stuck, meet = end.part, end.lanes, end.stuck, meetings(end.lanes)
    writers = {
        (lane[0], value): (lane, p)
        for lane, start in stuck.items()
        for p in range(start, len(lanes[lane]))
        for value in lanes[lane][p].writes
    }
    found: list[Problem] = []
    waits: dict[Lane, tuple[Lane, str]] = {}
    for lane, position in stuck.items():
        instruction = lanes[lane][position]
        place = Place(part, *lane, position)
        absent = next((value for value in instruction.reads if value not in end.live[lane[0]]), None)
        if lane in end.unposted and (taker := _taker(end, lane)) is not None:
            waits[lane] = (taker, "until it has consumed an earlier message")
        elif lane in end.unposted:
            found.append(
                problem_at(
                    place,
                    instruction,
                    "deadlock",
                    f"is posted only after an earlier message of its lane is consumed, and no later instruction of the "
                    f"{part} consumes one",
                    "as many consumed as received messages",
                    "Move the reader of the message into the part in which the message is received.",
                )
            )
        elif absent is None:
            others = [(lane[0], lane[1])] if instruction.kind is Kind.RECEIVE else []
            others = [(instruction.peer, send_lane(lane[0]))] if others else list(meet.get(lane, ()))
            other = next((o for o in others if o in stuck and o != lane), None)
            if other is not None:
                waits[lane] = (other, f"to meet {lanes[other][position].name}")
        elif (lane[0], absent) in writers:
            writer, at = writers[lane[0], absent]
            behind = " later in the same lane" if writer == lane else ""
            waits[lane] = (writer, f"for {absent}, which is written by {lanes[writer][at].name}{behind}")
        elif (lane[0], absent) in end.freed:
            culprit, by = next(pair for pair in end.freed[lane[0], absent] if pair[0].device == lane[0])
            found.append(
                problem_at(
                    place,
                    instruction,
                    "freed",
                    f"reads {absent}, which {by.name} in lane {culprit.lane} ({culprit.part}, "
                    f"instruction {culprit.position}) has freed",
                    "a value that still exists",
                    f"Run {instruction.name} earlier, or free {absent} later.",
                )
            )
        else:
            found.append(
                problem_at(
                    place,
                    instruction,
                    "unwritten",
                    f"reads {absent}, which no instruction in the {part} or before it writes on device {lane[0]}",
                    "a value that exists",
                    f"Move {instruction.name} after the writer of the value, or move the writer before this part.",
                )
            )
    found = found or list(_circles(end, waits))
    if not found:
        names = [f"{lanes[lane][at].name} on device {lane[0]}, lane {lane[1]}" for lane, at in stuck.items()]
        raise InternalError(
            f"program {end.program.name} stands still in its {part} for an unknown reason; the next instructions are "
            f"{'; '.join(names[:MAX_SHOWN])}"
        )
    return found


def _taker(end: Standstill, receive: Lane) -> Lane | None:
    """Lane in which an instruction still has to consume a message of a receive lane.

    The lane is a compute lane or a lane of swaps on the same device.

    Returns:
        None if no remaining instruction consumes a message of the receive lane.
    """
    for lane, start in end.stuck.items():
        if lane[0] == receive[0] and any(
            way == receive
            for i in end.lanes[lane][start:]
            if i.kind in CONSUMERS
            for way, _ in consumed(end.program, i)
        ):
            return lane
    return None


def _circles(end: Standstill, waits: Mapping[Lane, tuple[Lane, str]]) -> Iterator[Problem]:
    """Yield a problem for each cycle of lanes that wait for each other.

    Arguments:
        waits: for each lane, the lane that it waits for, and the reason as text.
    """
    lanes, stuck = end.lanes, end.stuck
    done: set[Lane] = set()
    for start in sorted(stuck):
        path: list[Lane] = []
        lane: Lane | None = start
        while lane is not None and lane not in done:
            done.add(lane)
            path.append(lane)
            lane = waits[lane][0] if lane in waits else None
        if lane is None or lane not in path:
            continue
        circle = path[path.index(lane) :]
        first = min(circle, key=lambda one: (one[1] != "compute", one))
        circle = circle[circle.index(first) :] + circle[: circle.index(first)]
        told = [
            f"{lanes[one][stuck[one]].name} on device {one[0]}, lane {one[1]} waits {waits[one][1]}"
            for one in circle[:MAX_SHOWN]
        ]
        if len(circle) > MAX_SHOWN:
            told.append(f"and {len(circle) - MAX_SHOWN} more")
        yield problem_at(
            Place(end.part, *first, stuck[first]),
            lanes[first][stuck[first]],
            "deadlock",
            f"never starts: {'; '.join(told)}" + ("; so each waits for the other" if len(circle) > 1 else ""),
            "an order without a cycle",
            "Change the order in one of these lanes.",
        )

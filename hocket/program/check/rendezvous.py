"""Rendezvous: sends that meet receives, and collectives that meet in a group.

The k-th send of a lane meets the k-th receive of the peer's lane. The k-th collective of a lane meets the k-th one of
every rank of the group.

Rules of this file: instructions that meet are in the same part, so that each part can run to its end by itself.
"""

from collections.abc import Iterator, Mapping

from hocket.program.check.problem import Place, Problem, problem_at
from hocket.program.check.structure import tie_of
from hocket.program.instruction import GATHER, REDUCE, Instruction, Kind, ValueKind, receive_lane
from hocket.program.program import Lane, Lanes, Program

# For each lane with sends or collectives: the other lanes that take part in each of its instructions.
Meetings = Mapping[Lane, tuple[Lane, ...]]


def meetings(lanes: Lanes) -> Meetings:
    """For each lane with sends or collectives, the lanes that take part in these transfers.

    A lane of sends meets the peer's receive lane. A lane of collectives meets the same lane on the group's other
    devices.

    Arguments:
        lanes: one part of a program. Each send must have its receive, and each collective its counterpart on every
            device of the group.
    """
    found: dict[Lane, tuple[Lane, ...]] = {}
    for (device, lane), instructions in lanes.items():
        if instructions[0].kind is Kind.SEND:
            found[device, lane] = ((instructions[0].peer, receive_lane(device)),)
    for lane, members in _collectives(lanes).items():
        for device in members:
            found[device, lane] = tuple((other, lane) for other in members if other != device)
    return found


def meeting_problems(program: Program, part: str) -> list[Problem]:
    """Problems of transfers and collectives that do not meet.

    A send and its receive, or the collectives of the ranks of a group, differ or are missing.

    Arguments:
        part: "prologue", "period" or "epilogue".
    """
    lanes: Lanes = getattr(program, part)
    return [*_transfers(lanes, part), *_groups(program, lanes, part)]


def _transfers(lanes: Lanes, part: str) -> Iterator[Problem]:
    for (device, lane), instructions in lanes.items():
        kind, peer = instructions[0].kind, instructions[0].peer
        if kind is not Kind.SEND and kind is not Kind.RECEIVE:
            continue
        mirror = "receive<" if kind is Kind.SEND else "send>"
        others = lanes.get((peer, f"{mirror}{device}"), ())
        for position, mine in enumerate(instructions):
            place = Place(part, device, lane, position)
            if position >= len(others):
                yield problem_at(
                    place,
                    mine,
                    "meeting",
                    f"is number {position + 1} of its lane in the {part}, but lane {mirror}{device} of device {peer} "
                    f"has only {len(others)}",
                    "each send to meet its receive in the same part",
                    "Move the send and its receive into the same part.",
                )
                break
            if kind is Kind.SEND and mine.reads != others[position].writes:
                yield problem_at(
                    place,
                    mine,
                    "meeting",
                    f"would meet {others[position].name} on device {peer}, lane {mirror}{device} "
                    f"({part}, instruction {position})",
                    "receives in the order of the sends",
                    "Put both lanes into the same order.",
                )
                break


def _collectives(lanes: Lanes) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for device, lane in lanes:
        if lane.startswith((REDUCE, GATHER)):
            found.setdefault(lane, []).append(device)
    return found


def _shared(program: Program, i: Instruction) -> tuple[object, ...]:
    """Key that all ranks of a collective must have in common.

    In a norm, each rank names a stage of its own, so the stage is not part of the key.
    """
    made = i.writes[0]
    weights = (made.what,) if made.what is ValueKind.NORM else tie_of(program, i.stage, made.part)
    return i.kind, i.index, i.group, weights


def _groups(program: Program, lanes: Lanes, part: str) -> Iterator[Problem]:
    for lane, members in _collectives(lanes).items():
        rows = [lanes[device, lane] for device in members]
        for position in range(max(len(row) for row in rows)):
            there = [(d, row[position]) for d, row in zip(members, rows, strict=True) if position < len(row)]
            device, first = there[0]
            place = Place(part, device, lane, position)
            absent = sorted(set(first.group) - {d for d, _ in there})
            if absent:
                yield problem_at(
                    place,
                    first,
                    "meeting",
                    f"has no counterpart on device {absent[0]}, lane {lane} ({part}, instruction {position})",
                    f"one on every device of group {list(first.group)}, at the same position of the lane",
                    "Give all devices of the group the same collectives in the same lane and order.",
                )
                break
            odd = [(d, i) for d, i in there if _shared(program, i) != _shared(program, first)]
            if odd:
                other_device, other = odd[0]
                yield problem_at(
                    Place(part, other_device, lane, position),
                    other,
                    "meeting",
                    f"would meet {first.name} of device {device}, group {list(first.group)}",
                    "the same update, bucket and group on all devices of the group",
                    "Put the lane into the same order on all devices of the group.",
                )
                break

"""Random single edits of a program, like typing errors or compiler bugs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from hocket.program.instruction import COMPUTE, Instruction, Kind, Value, ValueKind, receive_lane, send_lane
from hocket.program.program import Lane, Program, freeze

PARTS = ("prologue", "period", "epilogue")
Lists = dict[str, dict[Lane, list[Instruction]]]


@dataclass(frozen=True)
class Mutant:
    """An edited program.

    Attributes:
        edit: name of the edit.
        touched: the edited instructions, before and after.
        beside: instructions next to them, or at their new place.
    """

    program: Program
    edit: str
    touched: tuple[Instruction, ...]
    beside: tuple[Instruction, ...]

    def __str__(self) -> str:
        return f"{self.edit} of {', '.join(i.name for i in self.touched)} on device {self.touched[0].device}"

    def names(self) -> set[str]:
        """Words, one of which a message about this edit must contain."""
        own = {i.name for i in (*self.touched, *self.beside)}
        return own | {str(v) for i in self.touched for v in (*i.reads, *i.writes)}


@dataclass
class Spot:
    """One instruction, chosen at random, and the lists that contain it."""

    program: Program
    lists: Lists
    part: str
    lane: Lane
    position: int
    rng: Random

    @property
    def row(self) -> list[Instruction]:
        return self.lists[self.part][self.lane]

    @property
    def instruction(self) -> Instruction:
        return self.row[self.position]

    def other_index(self, index: int) -> int:
        """Another index near this one."""
        return self.rng.choice([i for i in (index - 2, index - 1, index + 1, index + 2) if i >= 0])

    def into(self, part: str, lane: Lane, instruction: Instruction) -> list[Instruction]:
        """Put an instruction at a random place of a lane; return its neighbours."""
        row = self.lists[part].setdefault(lane, [])
        at = self.rng.randint(0, len(row))
        row.insert(at, instruction)
        return row[max(0, at - 1) : at + 2]


# An edit changes the lists and returns the instructions that it touched and those beside them; None: it does not apply.
Edit = Callable[[Spot], tuple[list[Instruction], list[Instruction]] | None]


def _changed(spot: Spot, new: Instruction | None) -> tuple[list[Instruction], list[Instruction]] | None:
    if new is None or new == spot.instruction:
        return None
    old, spot.row[spot.position] = spot.instruction, new
    return [old, new], spot.row[max(0, spot.position - 1) : spot.position + 2]


def drop(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    beside = spot.row[max(0, spot.position - 1) : spot.position + 2]
    return [spot.row.pop(spot.position)], beside


def duplicate(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return [spot.instruction], spot.into(spot.part, spot.lane, spot.instruction)


def swap_neighbours(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _swap(spot, spot.position + 1)


def swap_distant(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _swap(spot, spot.rng.randrange(len(spot.row)))


def _swap(spot: Spot, other: int) -> tuple[list[Instruction], list[Instruction]] | None:
    row, one = spot.row, spot.position
    if other >= len(row) or row[other] == row[one]:
        return None
    row[one], row[other] = row[other], row[one]
    return [row[one], row[other]], [i for at in (one, other) for i in row[max(0, at - 1) : at + 2]]


def wrong_peer(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    if i.peer < 0:
        return None
    return _changed(spot, replace(i, peer=spot.rng.choice([*spot.program.devices, max(spot.program.devices) + 1])))


def wrong_peer_and_lane(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    if i.peer < 0 or len(spot.program.devices) < 3:
        return None
    peer = spot.rng.choice([d for d in spot.program.devices if d not in (i.peer, i.device)])
    lane = (send_lane if i.kind is Kind.SEND else receive_lane)(peer)
    new = replace(i, peer=peer, lane=lane)
    spot.row.pop(spot.position)
    return [i, new], spot.into(spot.part, (i.device, lane), new)


def _replace_value(spot: Spot, old: Value, new: Value) -> Instruction:
    i = spot.instruction
    rows = (tuple(new if v == old else v for v in row) for row in (i.reads, i.writes, i.frees))
    return replace(i, **dict(zip(("reads", "writes", "frees"), rows, strict=True)))


def wrong_version(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    found = [
        v
        for v in (*spot.instruction.reads, *spot.instruction.writes)
        if v.what in (ValueKind.WEIGHTS, ValueKind.OPTIMIZER)
    ]
    if not found:
        return None
    value = spot.rng.choice(found)
    return _changed(spot, _replace_value(spot, value, value._replace(index=spot.other_index(value.index))))


def wrong_index_of_a_value(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    value = spot.rng.choice([*spot.instruction.reads, *spot.instruction.writes])
    return _changed(spot, _replace_value(spot, value, value._replace(index=spot.other_index(value.index))))


def wrong_microbatch(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _changed(spot, replace(spot.instruction, index=spot.other_index(spot.instruction.index)))


def wrong_microbatch_throughout(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    index = spot.other_index(i.index)
    rows = [
        tuple(v._replace(index=index) if v.index == i.index else v for v in row) for row in (i.reads, i.writes, i.frees)
    ]
    return _changed(spot, replace(i, index=index, reads=rows[0], writes=rows[1], frees=rows[2]))


def wrong_stage(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _changed(spot, replace(spot.instruction, stage=spot.rng.randint(0, len(spot.program.stages))))


def wrong_stage_throughout(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    stage = spot.rng.randrange(len(spot.program.stages))
    rows = [
        tuple(v._replace(stage=stage) if v.stage == i.stage else v for v in row) for row in (i.reads, i.writes, i.frees)
    ]
    return _changed(spot, replace(i, stage=stage, reads=rows[0], writes=rows[1], frees=rows[2]))


def missing_free(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    return _changed(spot, replace(i, frees=_without_one(i.frees, spot.rng))) if i.frees else None


def extra_free(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    more = [v for v in i.reads if v not in i.frees]
    return _changed(spot, replace(i, frees=(*i.frees, spot.rng.choice(more)))) if more else None


def foreign_free(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i, value = spot.instruction, _any_value(spot)
    return _changed(spot, replace(i, frees=(*i.frees, value)))


def missing_read(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    return _changed(spot, replace(i, reads=_without_one(i.reads, spot.rng))) if i.reads else None


def missing_read_and_free(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    if not i.frees:
        return None
    gone = spot.rng.choice(i.frees)
    rows = [tuple(v for v in row if v != gone) for row in (i.reads, i.frees)]
    return _changed(spot, replace(i, reads=rows[0], frees=rows[1]))


def missing_write(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    return _changed(spot, replace(i, writes=_without_one(i.writes, spot.rng))) if i.writes else None


def extra_read(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    return _changed(spot, replace(i, reads=(*i.reads, _any_value(spot))))


def other_lane(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    device = spot.lane[0]
    return _move(spot, spot.part, [lane for lane in spot.program.lanes if lane[0] == device and lane != spot.lane])


def other_device(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _move(spot, spot.part, [lane for lane in spot.program.lanes if lane[0] != spot.lane[0]])


def other_device_in_the_same_lane(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    lanes = [lane for lane in spot.program.lanes if lane[0] != spot.lane[0] and lane[1] == spot.lane[1]]
    return _move(spot, spot.part, lanes)


def other_part(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _move(spot, spot.rng.choice([part for part in PARTS if part != spot.part]), [spot.lane])


def _move(spot: Spot, part: str, lanes: list[Lane]) -> tuple[list[Instruction], list[Instruction]] | None:
    if not lanes:
        return None
    i, lane = spot.instruction, spot.rng.choice(lanes)
    beside = spot.row[max(0, spot.position - 1) : spot.position + 2]
    spot.row.pop(spot.position)
    new = replace(i, device=lane[0], lane=lane[1])
    return [i, new], beside + spot.into(part, lane, new)


def wrong_group(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    if not i.group:
        return None
    fewer, more = _without_one(i.group, spot.rng), tuple(sorted({*i.group, spot.rng.choice(spot.program.devices)}))
    return _changed(spot, replace(i, group=spot.rng.choice([fewer, more])))


def wrong_bucket(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    found = [
        v
        for v in (*spot.instruction.reads, *spot.instruction.writes)
        if v.what in (ValueKind.ACCUMULATOR, ValueKind.REDUCED)
    ]
    if not found:
        return None
    value = spot.rng.choice(found)
    return _changed(spot, _replace_value(spot, value, value._replace(part=value.part + spot.rng.choice((-1, 1)))))


def wrong_kind(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    return _changed(spot, replace(spot.instruction, kind=spot.rng.choice(list(Kind))))


def again(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    i = spot.instruction
    return _changed(spot, replace(i, again=not i.again)) if i.kind is Kind.FORWARD else None


def added_drop(spot: Spot) -> tuple[list[Instruction], list[Instruction]] | None:
    value, device = _any_value(spot), spot.lane[0]
    new = Instruction(Kind.DROP, value.stage, value.index, device, COMPUTE, (value,), (), (value,))
    return [new], spot.into(spot.part, (device, COMPUTE), new)


def _without_one(row: tuple, rng: Random) -> tuple:
    gone = rng.randrange(len(row))
    return row[:gone] + row[gone + 1 :]


def _any_value(spot: Spot) -> Value:
    """A value of some instruction on the same device."""
    lane = spot.rng.choice([lane for lane in spot.lists[spot.part] if lane[0] == spot.lane[0]])
    values = [v for i in spot.lists[spot.part][lane] for v in (*i.reads, *i.writes)]
    return spot.rng.choice(values or list(spot.program.initial(spot.lane[0])))


EDITS: tuple[Edit, ...] = (
    drop, duplicate, swap_neighbours, swap_distant, wrong_peer, wrong_peer_and_lane, wrong_version,
    wrong_index_of_a_value, wrong_microbatch, wrong_microbatch_throughout, wrong_stage, wrong_stage_throughout,
    missing_free, extra_free, foreign_free, missing_read, missing_read_and_free, missing_write, extra_read, other_lane,
    other_device, other_device_in_the_same_lane, other_part, wrong_group, wrong_bucket, wrong_kind, again, added_drop,
)  # fmt: skip


def mutant(program: Program, rng: Random, edits: tuple[Edit, ...] = EDITS) -> Mutant:
    """Make a program with one random edit that changes it."""
    while True:
        lists: Lists = {part: {lane: list(row) for lane, row in getattr(program, part).items()} for part in PARTS}
        spots = [(part, lane) for part in PARTS for lane in lists[part]]
        part, lane = rng.choice(spots)
        edit = rng.choice(edits)
        spot = Spot(program, lists, part, lane, rng.randrange(len(lists[part][lane])), rng)
        found = edit(spot)
        if found is not None:
            touched, beside = found
            edited = replace(program, **{name: freeze(rows) for name, rows in lists.items()})
            if any(getattr(edited, name) != getattr(program, name) for name in PARTS):
                return Mutant(edited, edit.__name__, tuple(touched), tuple(beside))

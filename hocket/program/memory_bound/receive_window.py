"""Receive windows: how far receives of a lane may run ahead of compute.

Gathers for single rounds have windows as well (order.py, rule 6). A message here is a received value, or weights
gathered for one round.

A message is consumed when the first compute instruction that reads it has finished. Weights gathered for one round are
consumed when the last instruction that reads them has finished.

A lane's window is the maximum number of messages that are posted and not yet consumed. It is the least number with
which compute always finds what it reads next, plus one, so that a message can be on its way while compute uses the one
before it. It is at least the number of messages that one instruction reads. It follows from the program alone: compute
consumes most messages in the order in which they arrive, some a few places later.

A window never causes a deadlock. The message that compute reads next has been posted, and so has everything before it
in its lane. So compute waits only for what it would wait for without windows.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hocket.program.instruction import (
    COMPUTE,
    GATHER,
    SWAP_LANES,
    Instruction,
    Kind,
    Value,
    ValueKind,
    group_lane,
    receive_lane,
)
from hocket.program.program import Lane, Program

UNLIMITED = 1 << 30
"""Window of a lane in which compute consumes more or fewer messages than arrive.

No legal program has such a lane.
"""

_Key = tuple[ValueKind, int, int, int]
_BORDER = frozenset({ValueKind.ACTIVATION, ValueKind.GRADIENT})
CONSUMERS = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.SWAP_IN})
"""Kinds of instructions that may consume messages (see `consumed`)."""
_CONSUMING = frozenset({COMPUTE, SWAP_LANES[Kind.SWAP_IN]})


def consumed(program: Program, instruction: Instruction) -> Iterator[tuple[Lane, Value]]:
    """Yield the messages that an instruction consumes, each with its receive lane.

    The first reader consumes a message: a compute instruction, or a swap-in for messages to the host. Gathered weights
    are consumed by their last reader.
    """
    here, shape = instruction.device, program.stages[instruction.stage]
    if shape.gathers and (
        instruction.kind is Kind.BACKWARD or (instruction.kind is Kind.FORWARD and not instruction.again)
    ):
        lane = (here, group_lane(GATHER, tuple(sorted(shape.devices))))
        yield from ((lane, value) for value in instruction.reads if value.what is ValueKind.GATHERED)
    copy = 0
    if instruction.kind is Kind.FORWARD and not instruction.again:
        what = ValueKind.ACTIVATION
    elif instruction.kind is Kind.BACKWARD:
        what = ValueKind.GRADIENT
    elif instruction.kind is Kind.SWAP_IN and (made := instruction.writes[0]).copy == 2 and made.what in _BORDER:
        what, copy = made.what, 1  # later copies are made from values that were here already
    else:
        return
    for value in instruction.reads:
        if value.what is what and value.copy == copy:
            sender = value.stage if what is ValueKind.ACTIVATION else value.part
            source = program.stages[sender].device(value.index)
            if source != here:
                yield (here, receive_lane(source)), value


@dataclass
class _Order:
    """Position of each message in one lane of receives or gathers, by value.

    Attributes:
        prologue, epilogue: position within the part.
        period: (position within the part, index of the value), by the value's fields with the index modulo the stride.
    """

    prologue: dict[Value, int] = field(default_factory=dict)
    period: dict[_Key, tuple[int, int]] = field(default_factory=dict)
    epilogue: dict[Value, int] = field(default_factory=dict)

    def number(self, value: Value, part: str, stride: int) -> int | None:
        """Position of a message that is consumed in a part; None if it has none.

        The position is counted along the lane, as if the epilogue followed the prologue directly.
        """
        first, each = len(self.prologue), len(self.period)
        if part == "prologue":
            return self.prologue.get(value)
        if part == "epilogue" and value in self.epilogue:
            return first + self.epilogue[value]
        if stride and (found := self.period.get((value.what, value.stage, value.part, value.index % stride))):
            place, index = found
            return first + (value.index - index) // stride * each + place
        return self.prologue.get(value)


def _ahead_of_compute(one: Instruction) -> bool:
    return one.kind is Kind.RECEIVE or (one.kind is Kind.ALL_GATHER and not one.counts_updates)


def windows(program: Program) -> dict[Lane, int]:
    """Window of every receive lane, and of every lane of gathers for single rounds.

    A window is a number of messages (see the head of this file).
    """
    orders: dict[Lane, _Order] = {}
    stride = program.stride
    for part in ("prologue", "period", "epilogue"):
        for lane, instructions in getattr(program, part).items():
            if not instructions or not _ahead_of_compute(instructions[0]):
                continue
            order = orders.setdefault(lane, _Order())
            for place, instruction in enumerate(instructions):
                for value in instruction.writes:
                    if part == "prologue":
                        order.prologue[value] = place
                    elif part == "epilogue":
                        order.epilogue[value] = place
                    elif stride:
                        key = (value.what, value.stage, value.part, value.index % stride)
                        order.period[key] = (place, value.index)
    found, together = dict.fromkeys(orders, 1), dict.fromkeys(orders, 1)
    counts: dict[Lane, list[int]] = {lane: [0, 0, 0] for lane in orders}
    for number, part in enumerate(("prologue", "period", "epilogue")):
        for (_, name), instructions in getattr(program, part).items():
            if name not in _CONSUMING:
                continue
            for instruction in instructions:
                over: Counter[Lane] = Counter()  # messages of each lane that this instruction consumed so far
                for lane, value in consumed(program, instruction):
                    if lane not in orders:
                        continue
                    number_of = orders[lane].number(value, part, stride)
                    before = sum(counts[lane]) - (counts[lane][1] if part == "epilogue" else 0)
                    counts[lane][number] += 1
                    ahead = UNLIMITED if number_of is None else number_of - before + 1
                    found[lane] = max(found[lane], ahead)
                    together[lane] = max(together[lane], ahead + over[lane])
                    over[lane] += 1
    for lane, order in orders.items():
        prologue, period, epilogue = counts[lane]
        came = len(order.prologue), len(order.period), len(order.epilogue)
        if period != came[1] or prologue + epilogue != came[0] + came[2]:
            found[lane] = UNLIMITED
        # The prologue can end without a period, so every message that arrives in it must be posted in it.
        found[lane] = min(UNLIMITED, max(found[lane] + 1, together[lane], came[0] - prologue))
    return found

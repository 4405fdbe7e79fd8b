"""Nodes of a lowered program, and the rows of a trace that they stand for.

A node is a compute instruction, a send with its receive (rendezvous), or a collective with all its ranks. If another
lane reads gradient buckets of a backward before the backward ends, the backward is a chain of nodes. Each node of the
chain ends when one such bucket is complete (program/order.py, rule 2). Nodes of one signature and number of samples
have the same cost. The parts of a program are its prologue, its steady-state period and its epilogue.

This module has structure only, without seconds and bytes.
"""

from dataclasses import dataclass, field, replace
from operator import itemgetter

from hocket.errors import ProgramError
from hocket.program.instruction import (
    COLLECTIVES,
    COUNTS_UPDATES,
    SWAPS,
    Instruction,
    Kind,
    Value,
    ValueKind,
    receive_lane,
    send_lane,
)
from hocket.program.memory_bound.receive_window import consumed
from hocket.program.order import early_writes
from hocket.program.program import Lane, Lanes, Program

KINDS = tuple(Kind)
_NAMED = frozenset({Kind.SEND, Kind.RECEIVE, Kind.DROP})  # kinds of instructions that have their value in the name
_NAMED_AS_WRITTEN = SWAPS | COLLECTIVES
_KIND_NUMBER = {kind: number for number, kind in enumerate(KINDS)}
_MARK = 8_888_888_888  # placeholder of the index while a label is made
_KIND_OF_VALUE = itemgetter(0, 1, 3, 4)  # what, stage, part and copy of a value: all but its index
PROLOGUE, PERIOD, EPILOGUE = range(3)


@dataclass(frozen=True)
class Signature:
    """Common properties of nodes that have equal cost for equal numbers of samples.

    Attributes:
        members: one instruction for each participating device, sender before receiver.
        first_bucket: gradient bucket after which a part of a backward begins; -1 for the start of the instruction.
        last_bucket: gradient bucket after which a part of a backward ends; -1 for the end of the instruction.
    """

    members: tuple[Instruction, ...]
    first_bucket: int = -1
    last_bucket: int = -1


@dataclass
class ProgramPart:
    """Nodes of prologue, period or epilogue, and the rows of a trace for them.

    Attributes:
        number: PROLOGUE, PERIOD or EPILOGUE.
        content: instructions by lane.
        signature: number of every node's signature.
        lane: number of every node's lane.
        index: microbatch of every node's instruction; 0 if the instruction's index counts updates.
        moves: for every node, True if its index counts microbatches, and so grows with each repetition of the period.
        rows: lane, first node, last node, kind, stage, index, label and batch of every instruction. After r
            repetitions of the period the index is larger by r * stride // batch.
        ends: first and last node of every lane. A transfer is in the sender's lane, a collective in the lane of its
            first rank.
        writers: by device and value, the writer as (node, lane, repetitions). In the period, the value has its name of
            the first repetition (`Nodes.folded`), and the node writes the value that follows so many repetitions
            later.
        reads: for each node and lane, the values that it reads there.
        consumers: by lane of receives or gathers, the compute nodes that consume its messages, in order
            (program/memory_bound/receive_window.py).
        receives: by lane of receives or gathers, its nodes in order.
    """

    number: int
    content: Lanes
    signature: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    moves: list[bool] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, int, int, int]] = field(default_factory=list)
    ends: dict[Lane, tuple[int, int]] = field(default_factory=dict)
    writers: dict[tuple[int, object], tuple[int, Lane, int]] = field(default_factory=dict)
    reads: list[tuple[int, Lane, tuple[Value, ...]]] = field(default_factory=list)
    consumers: dict[Lane, list[int]] = field(default_factory=dict)
    receives: dict[Lane, list[int]] = field(default_factory=dict)


def cost_key(i: Instruction) -> tuple[object, ...]:
    """Key that is equal for instructions with equal bytes and seconds.

    Device and microbatch are not part of it.
    """
    return (
        i.kind,
        i.stage,
        i.again,
        tuple(map(_KIND_OF_VALUE, i.writes)),
        tuple(map(_KIND_OF_VALUE, i.frees)),
        tuple(map(_KIND_OF_VALUE, i.reads)) if i.kind is Kind.SEND else (),
    )


def _key(i: Instruction) -> tuple[object, ...]:
    """Key that is equal for instructions with equal devices and cost.

    The microbatch is not part of it.
    """
    return (i.device, i.peer, i.group, *cost_key(i))


class IrregularError(Exception):
    """The period of a program cannot be lowered once for all its repetitions."""


class Nodes:
    """Nodes of a program that is lowered, without the edges between them.

    Attributes:
        number: number of each lane.
        parts: nodes of prologue, period and epilogue.
        made: the signatures.
        labels: number of each name of an instruction; the name has {} for the index.
        chained: (part, node, next node) for successive nodes in a lane of one part.

    Raises:
        ProgramError: a lane has several peers, groups or kinds of transfers; or, in a program without a period, a send
            has no receive or a collective lacks a rank.
        IrregularError: the program's period cannot be lowered once for all repetitions. For example, a send and its
            receive are in different parts of the program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.number = {lane: k for k, lane in enumerate(program.lanes)}
        self.parts = (
            ProgramPart(0, program.prologue),
            ProgramPart(1, program.period),
            ProgramPart(2, program.epilogue),
        )
        self.made: list[Signature] = []
        self.labels: dict[str, int] = {}
        self.chained: list[tuple[int, int, int]] = []
        self._signatures: dict[object, int] = {}
        self._label_of: dict[object, int] = {}
        self._updates = tuple(program.stride // batch for batch in program.rule.batch)
        self._watched = self._find_watched()
        for part in self.parts:
            self._nodes(part)

    def folded(self, value: Value) -> tuple[object, int]:
        """Name that a value has in the first repetition of the period.

        Returns:
            The name, and the number of repetitions after which it becomes the name of `value`.

        Raises:
            IrregularError: the value has the same name in all repetitions.
        """
        what, stage, index, part, copy = value
        stride = self._updates[stage] if what in COUNTS_UPDATES else self.program.stride
        if stride == 0:
            raise IrregularError(f"{value} stays the same in all repetitions")
        rounds, first = divmod(index, stride)
        return (what, stage, first, part, copy), rounds

    def _find_watched(self) -> frozenset[tuple[int, int, int, int]]:
        """Find the gradient accumulators that collectives and sends read.

        Returns:
            Device, stage, bucket and microbatch (modulo the stride) of each.
        """
        stride = self.program.stride if self.program.period else 0
        found = set()
        for _, instruction in self.program.instructions():
            if instruction.kind in COLLECTIVES or instruction.kind is Kind.SEND:
                for value in instruction.reads:
                    if value.what is ValueKind.ACCUMULATOR:
                        index = value.index % stride if stride else value.index
                        found.add((instruction.device, value.stage, value.part, index))
        return frozenset(found)

    def _nodes(self, part: ProgramPart) -> None:
        content = part.content
        for lane in self.program.lanes:
            instructions = content.get(lane, ())
            if not instructions:
                continue
            kind = instructions[0].kind
            if any((i.kind is Kind.RECEIVE) != (kind is Kind.RECEIVE) for i in instructions):
                raise ProgramError(
                    f"device {lane[0]}, lane {lane[1]}", "receives with other instructions", "only receives, or none"
                )
            if kind is Kind.SEND:
                self._transfers(part, lane)
            elif kind in COLLECTIVES:
                self._collectives(part, lane)
            elif kind is not Kind.RECEIVE:
                self._alone(part, lane, instructions)
        sent = {(i[0].peer, receive_lane(lane[0])) for lane, i in content.items() if i[0].kind is Kind.SEND}
        for lane, instructions in content.items():
            if instructions[0].kind is Kind.RECEIVE and lane not in sent:
                raise self._lonely(instructions[0], "no matching send")

    def _lonely(self, instruction: Instruction, found: str) -> ProgramError | IrregularError:
        place = f"device {instruction.device}, lane {instruction.lane}, {instruction.name}"
        if self.program.period:
            return IrregularError(f"{place}: {found} in the same part")
        return ProgramError(place, found, "a send for each receive, and every member of a collective")

    def _alone(self, part: ProgramPart, lane: Lane, instructions: tuple[Instruction, ...]) -> None:
        previous = -1
        for instruction in instructions:
            cuts = self._cuts(instruction)
            nodes: list[int] = []
            for first, last in zip((-1, *cuts), (*cuts, -1), strict=True):
                nodes.append(self._node(part, lane, (instruction,), first, last))
                if previous >= 0:
                    self.chained.append((part.number, previous, nodes[-1]))
                previous = nodes[-1]
            for way, _ in consumed(self.program, instruction):
                part.consumers.setdefault(way, []).append(previous)
            early = early_writes(instruction) if cuts else ()
            for value in instruction.writes:
                node = nodes[cuts.index(value.part)] if value in early and value.part in cuts else previous
                self._wrote(part, instruction.device, value, node, lane)
            part.reads.append((nodes[0], lane, instruction.reads))
            self._row(part, lane, instruction, nodes[0], previous)
            part.ends[lane] = (part.ends[lane][0] if lane in part.ends else nodes[0], previous)

    def _cuts(self, instruction: Instruction) -> tuple[int, ...]:
        """Gradient buckets after which a backward is cut into separate nodes.

        The result is empty for all other instructions.
        """
        if instruction.kind is not Kind.BACKWARD or not self._watched:
            return ()
        stride = self.program.stride if self.program.period else 0
        index = instruction.index % stride if stride else instruction.index
        early = [value.part for value in early_writes(instruction)]
        return tuple(b for b in early if (instruction.device, instruction.stage, b, index) in self._watched)

    def _transfers(self, part: ProgramPart, lane: Lane) -> None:
        sends = part.content[lane]
        there = (sends[0].peer, receive_lane(lane[0]))
        receives = part.content.get(there, ())
        if lane[1] != send_lane(there[0]) or any(i.kind is not Kind.SEND or i.peer != there[0] for i in sends):
            raise ProgramError(f"device {lane[0]}, lane {lane[1]}", "several peers or kinds", "sends to one peer")
        if len(sends) != len(receives):
            longer = sends if len(sends) > len(receives) else receives
            raise self._lonely(longer[min(len(sends), len(receives))], "no matching send or receive")
        previous = -1
        for send, receive in zip(sends, receives, strict=True):
            node = self._node(part, lane, (send, receive))
            if previous >= 0:
                self.chained.append((part.number, previous, node))
            previous = node
            part.receives.setdefault(there, []).append(node)
            part.reads.append((node, lane, send.reads))
            for value in receive.writes:
                self._wrote(part, receive.device, value, node, there)
            self._row(part, lane, send, node, node)
            self._row(part, there, receive, node, node)
            part.ends[lane] = (part.ends[lane][0] if lane in part.ends else node, node)

    def _collectives(self, part: ProgramPart, lane: Lane) -> None:
        lanes = part.content
        group = lanes[lane][0].group
        if lane[0] not in group or any(i.group != group or i.kind not in COLLECTIVES for i in lanes[lane]):
            raise ProgramError(f"device {lane[0]}, lane {lane[1]}", "another group or kind", f"collectives of {group}")
        if lane[0] != min(group):
            if (min(group), lane[1]) not in lanes:
                raise self._lonely(lanes[lane][0], f"device {min(group)} does not take part")
            return
        sides = [(device, lane[1]) for device in group]
        for side in sides:
            if len(lanes.get(side, ())) != len(lanes[lane]):
                raise self._lonely(lanes[lane][0], f"device {side[0]} takes part a different number of times")
        previous = -1
        for members in zip(*(lanes[side] for side in sides), strict=True):
            node = self._node(part, lane, members)
            if previous >= 0:
                self.chained.append((part.number, previous, node))
            previous = node
            for side, member in zip(sides, members, strict=True):
                part.reads.append((node, side, member.reads))
                part.receives.setdefault(side, []).append(node)
                for value in member.writes:
                    self._wrote(part, side[0], value, node, side)
                self._row(part, side, member, node, node)
            part.ends[lane] = (part.ends[lane][0] if lane in part.ends else node, node)

    def _node(
        self, part: ProgramPart, lane: Lane, members: tuple[Instruction, ...], first: int = -1, last: int = -1
    ) -> int:
        one = members[0]
        key = (first, last, *map(_key, members))
        number = self._signatures.get(key)
        if number is None:
            number = self._signatures[key] = len(self.made)
            self.made.append(Signature(members, first, last))
        moves = not one.counts_updates
        part.signature.append(number)
        part.lane.append(self.number[lane])
        part.index.append(one.index if moves else 0)
        part.moves.append(moves)
        return len(part.signature) - 1

    def _wrote(self, part: ProgramPart, device: int, value: Value, node: int, lane: Lane) -> None:
        key, rounds = self.folded(value) if part.number == PERIOD else (value, 0)
        part.writers[(device, key)] = (node, lane, rounds)

    def _row(self, part: ProgramPart, lane: Lane, i: Instruction, first: int, last: int) -> None:
        batch = self.program.rule.batch[i.stage] if i.counts_updates else 1
        label = self._label(i)
        part.rows.append((self.number[lane], first, last, _KIND_NUMBER[i.kind], i.stage, i.index, label, batch))

    def _label(self, i: Instruction) -> int:
        named = i.writes if i.kind in _NAMED_AS_WRITTEN else (i.reads or i.writes) if i.kind in _NAMED else ()
        value = named[0] if named else None
        shown = (value.what, value.stage, value.part, value.copy, value.index - i.index) if value is not None else ()
        key = (i.kind, i.stage, i.again, shown)
        found = self._label_of.get(key)
        if found is None:
            mark = {v: v._replace(index=_MARK) if v.index == i.index else v for v in (*i.reads, *i.writes)}
            marked = replace(
                i, index=_MARK, reads=tuple(mark[v] for v in i.reads), writes=tuple(mark[v] for v in i.writes)
            )
            text = marked.name.replace(str(_MARK), "{}")
            if shown and shown[4] and self.program.period:
                raise IrregularError(f"{i.name} names a value of another index")
            found = self._label_of[key] = self.labels.setdefault(text, len(self.labels))
        return found

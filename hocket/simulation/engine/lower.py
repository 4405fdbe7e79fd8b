"""Lowering of a Program to a graph of nodes.

The graph has the steady-state period once, so that any number of repetitions is index arithmetic. An edge says that
one node waits for another: a node for the one before it in its lane, a reader of a value for the writer
(program/order.py, rule 1), or a receive for the node that makes room for it (rule 6 there). Across the repetitions of
the period, values are identified by their names alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from hocket.errors import ProgramError
from hocket.program.instruction import RECEIVE, Instruction, Value
from hocket.program.memory_bound.receive_window import UNLIMITED, windows
from hocket.program.program import Lane, Program
from hocket.simulation.engine.nodes import (
    EPILOGUE,
    PERIOD,
    PROLOGUE,
    IrregularError,
    Nodes,
    ProgramPart,
    Signature,
    cost_key,
)


@dataclass(frozen=True)
class Skeleton:
    """A lowered program: nodes, and edges between them.

    The second node of an edge waits for the end of the first. `posts` is True if the second node is a receive that is
    posted when the first node ends.

    Attributes:
        program: the program.
        lanes: lanes of the program; a lane's number is its index here.
        signatures: signatures of the nodes.
        parts: nodes of prologue, period and epilogue.
        inside: edges between nodes of the period, (from, to, r, posts), sorted by `from`. Node `to` is in the r-th
            repetition after that of `from`.
        between: all other edges, ((part, node, repetition), (part, node, repetition), posts). Repetitions of the
            period's nodes count from the first one if >= 0, back from the end if < 0.
        first_posts: receives that are posted before the program starts, (part, node, repetition).
        reach: minimum number of repetitions of the period for which these edges are correct.
        labels: names of instructions, with {} for the index.
    """

    program: Program
    lanes: tuple[Lane, ...]
    signatures: tuple[Signature, ...]
    parts: tuple[ProgramPart, ProgramPart, ProgramPart]
    inside: tuple[tuple[int, int, int, bool], ...]
    between: tuple[tuple[tuple[int, int, int], tuple[int, int, int], bool], ...]
    first_posts: tuple[tuple[int, int, int], ...]
    reach: int
    labels: tuple[str, ...]

    @cached_property
    def cost_keys(self) -> tuple[tuple[int, ...], ...]:
        """For each signature, a number for each member that is equal for instructions with equal bytes and seconds."""
        numbers: dict[object, int] = {}
        return tuple(
            tuple(numbers.setdefault(cost_key(member), len(numbers)) for member in signature.members)
            for signature in self.signatures
        )

    def counts(self, repeats: int) -> int:
        """Number of instructions of the whole program with `repeats` repetitions."""
        prologue, period, epilogue = (len(part.rows) for part in self.parts)
        return prologue + repeats * period + epilogue


def skeleton(program: Program, repeats: int | None = None) -> Skeleton:
    """Lower a program: turn its instructions into nodes, and add the edges between them.

    Arguments:
        repeats: number of repetitions of the period that the result is for; None for any number of at least
            `Skeleton.reach`. If a number is given that is smaller, or if the period cannot be lowered once for all
            repetitions, the result is the whole program unrolled, as a prologue without period.

    Raises:
        ProgramError: a send has no receive, a collective lacks a rank, or a value is read and never written; or,
            without `repeats`, the period cannot be lowered once for all repetitions.
    """
    try:
        found = _Edges(Nodes(program)).skeleton()
        if repeats is None or repeats >= found.reach:
            return found
    except IrregularError as problem:
        if repeats is None:
            raise ProgramError(str(problem), "a period that does not repeat regularly", "a regular period") from None
    whole = {lane: tuple(instructions) for lane, instructions in program.unrolled(repeats).items() if instructions}
    none: MappingProxyType[Lane, tuple[Instruction, ...]] = MappingProxyType({})
    flat = replace(program, prologue=MappingProxyType(whole), period=none, epilogue=none)
    try:
        return _Edges(Nodes(flat)).skeleton()
    except IrregularError as problem:
        raise ProgramError(str(problem)) from None


class _Edges:
    """Builder of the edges between the nodes of a program."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.program, self.parts = nodes, nodes.program, nodes.parts
        self.between: list[tuple[tuple[int, int, int], tuple[int, int, int], bool]] = []
        self.inside: list[tuple[int, int, int, bool]] = []
        self.posted: list[tuple[int, int, int]] = []
        self.reach = 0
        self.initial = {device: frozenset(self.program.initial(device)) for device in self.program.devices}

    def skeleton(self) -> Skeleton:
        """Add all edges, and return the lowered program."""
        for number, first, second in self.nodes.chained:
            if number == PERIOD:
                self.inside.append((first, second, 0, False))
            else:
                self.between.append(((number, first, 0), (number, second, 0), False))
        for part in self.parts:
            self._data(part)
        self._lane_borders()
        for lane, window in windows(self.program).items():
            if window >= UNLIMITED:
                raise ProgramError(
                    f"device {lane[0]}, lane {lane[1]}",
                    "messages that compute does not read",
                    "only messages that compute reads",
                )
            self._posts(lane, window)
        return Skeleton(
            program=self.program,
            lanes=self.program.lanes,
            signatures=tuple(self.nodes.made),
            parts=self.parts,
            inside=tuple(sorted(self.inside)),
            between=tuple(self.between),
            first_posts=tuple(self.posted),
            reach=self.reach,
            labels=tuple(self.nodes.labels),
        )

    def _data(self, part: ProgramPart) -> None:
        """Add the edges from writers of values to readers in other lanes.

        Arguments:
            part: part of the program with the readers.
        """
        for node, lane, values in part.reads:
            for value in values:
                if part.number == PERIOD:
                    self._read_in_period(node, lane, value)
                else:
                    self._read(part, node, lane, value)

    def _read_in_period(self, node: int, lane: Lane, value: Value) -> None:
        """Add the edges from the writers of a value to a node of the period that reads it.

        The edges are for all repetitions of the node.

        Arguments:
            lane: lane in which the node reads the value.
        """
        device = lane[0]
        name, rounds = self.nodes.folded(value)
        writer = self.parts[PERIOD].writers.get((device, name))
        if writer is None:
            raise self._unwritten(device, lane, value)
        later = writer[2] - rounds
        if later < 0:
            raise IrregularError(f"{value} is written in a later repetition than it is read in")
        if writer[1] is not lane and writer[1] != lane:
            self.inside.append((writer[0], node, later, False))
        if later == 0:
            return
        self.reach = max(self.reach, later)
        for r in range(later):  # the first repetitions read values from the prologue
            moved = self.program.moved(value, r)
            found = self.parts[PROLOGUE].writers.get((device, moved))
            if found is None and moved not in self.initial[device]:
                raise self._unwritten(device, lane, moved)
            if found is not None and found[1] != lane:
                self.between.append(((PROLOGUE, found[0], 0), (PERIOD, node, r), False))

    def _read(self, part: ProgramPart, node: int, lane: Lane, value: Value) -> None:
        """Add the edge from a value's writer to a node of prologue or epilogue.

        Arguments:
            part: prologue or epilogue.
            lane: lane in which the node reads the value.
        """
        device = lane[0]
        source, found = (part.number, 0), part.writers.get((device, value))
        if found is None and part.number == EPILOGUE:
            if self.program.period:
                name, rounds = self.nodes.folded(value)
                found = self.parts[PERIOD].writers.get((device, name))
                later = found[2] - rounds if found is not None else 0
                if later < 1:
                    raise self._unwritten(device, lane, value)
                self.reach = max(self.reach, later)
                source = (PERIOD, -later)
            else:
                source, found = (PROLOGUE, 0), self.parts[PROLOGUE].writers.get((device, value))
        if found is None:
            if value not in self.initial[device]:
                raise self._unwritten(device, lane, value)
        elif found[1] != lane:
            self.between.append(((source[0], found[0], source[1]), (part.number, node, 0), False))

    def _unwritten(self, device: int, lane: Lane, value: Value) -> ProgramError | IrregularError:
        if self.program.period:
            return IrregularError(f"device {device}, lane {lane[1]}: {value} is not written in an earlier part")
        return ProgramError(
            f"device {device}, lane {lane[1]}", f"a read of {value}, which is never written", "a writer"
        )

    def _lane_borders(self) -> None:
        """Add the edges that join prologue, period and epilogue of each lane.

        They go from a lane's last node in one part to its first node in the next part, and from its last node in the
        period to its first node in the next repetition.
        """
        for lane in self.program.lanes:
            previous: tuple[int, int, int] | None = None
            for part in self.parts:
                if lane not in part.ends:
                    continue
                first, last = part.ends[lane]
                if previous is not None:
                    self.between.append((previous, (part.number, first, 0), False))
                if part.number == PERIOD:
                    self.inside.append((last, first, 1, False))
                    self.reach = max(self.reach, 1)
                previous = (part.number, last, -1 if part.number == PERIOD else 0)

    def _posts(self, lane: Lane, window: int) -> None:
        """Add the edges from compute nodes to the receives (or gathers) of a lane.

        Messages are numbered in the order in which they arrive. The compute node that consumes message k makes room
        for receive k + `window`. At most `window` messages of the prologue are consumed in period and epilogue
        (program/memory_bound/receive_window.py). So no receive waits for a node of a later part.
        """
        receives = [part.receives.get(lane, []) for part in self.parts]
        consumers = [part.consumers.get(lane, []) for part in self.parts]
        each, posts = len(receives[PERIOD]), lane[1].startswith(RECEIVE)
        behind = len(receives[PROLOGUE]) - len(consumers[PROLOGUE]) - window  # at most 0
        for number, node in enumerate(receives[PROLOGUE]):
            self._post(consumers[PROLOGUE], number - window, (PROLOGUE, node, 0), posts)
        for place, node in enumerate(receives[PERIOD]):
            rounds, consumer = divmod(place + behind, each)
            self.inside.append((consumers[PERIOD][consumer], node, -rounds, posts))
            self.reach = max(self.reach, -rounds)
            for r in range(-rounds):  # nodes of the prologue make room for the first repetitions
                self._post(
                    consumers[PROLOGUE], len(receives[PROLOGUE]) + r * each + place - window, (PERIOD, node, r), posts
                )
        for place, node in enumerate(receives[EPILOGUE]):
            number = place + behind
            if number >= 0:
                self.between.append(((EPILOGUE, consumers[EPILOGUE][number], 0), (EPILOGUE, node, 0), posts))
            elif each:
                rounds, consumer = divmod(number, each)
                self.between.append(((PERIOD, consumers[PERIOD][consumer], rounds), (EPILOGUE, node, 0), posts))
                self.reach = max(self.reach, -rounds)
            else:
                self._post(consumers[PROLOGUE], len(receives[PROLOGUE]) + place - window, (EPILOGUE, node, 0), posts)

    def _post(self, consumers: list[int], number: int, receive: tuple[int, int, int], posts: bool) -> None:
        """Add the edge to a receive for which a node of the prologue makes room.

        Arguments:
            consumers: nodes of the prologue that consume messages of the lane.
            number: index of the node among them. If it is negative, the receive has room from the start.
            receive: part, node and repetition of the receive.
            posts: True if the lane has receives, False for gathers.
        """
        if number >= 0:
            self.between.append(((PROLOGUE, consumers[number], 0), receive, posts))
        elif posts:
            self.posted.append(receive)

"""Swaps of one device: its compute lane is replayed and missing values swapped in.

The lane is replayed in order, as if no instruction took time.

Rules of this file: values on the device, needs of the next operation, and evictions. A policy chooses the victims. All
else follows from order.py's rules and the names of copies. Without prefetching, swaps are in the compute lane, and
computation waits for them. With prefetching, they have separate lanes, and completion markers order the lanes.
"""

from collections.abc import Iterable, Iterator

from hocket.errors import RefusedError
from hocket.program.instruction import COMPUTE, SWAP_LANES, Instruction, Kind, Value, ValueKind
from hocket.program.memory_bound.footprint import Sizes
from hocket.program.order import heir_of
from hocket.program.passes.swapping.copies import BORDER, Copies, in_order
from hocket.program.passes.swapping.draft import Draft
from hocket.program.passes.swapping.memory import MemoryBudget
from hocket.program.passes.swapping.operations import NEVER, Habits, Operations
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import Program
from hocket.util.units import show_bytes

_STATE = frozenset({ValueKind.WEIGHTS, ValueKind.OPTIMIZER})


_LESS = "Use smaller stages or microbatches, or give the device more memory."


class TooFewBytes(RefusedError):
    """The device's memory limit has too few bytes for one operation.

    Attributes:
        device: number of the device.
        bytes: bytes that the limit lacks.
    """

    def __init__(self, device: int, missing_bytes: float, found: str) -> None:
        super().__init__(f"swap.device_bytes of device {device}", found, next_step=_LESS)
        self.device, self.bytes = device, missing_bytes


class SwappedDevice:
    """Compute lane of one device, with swaps. Values in this class have no copy number.

    An operation is a group of instructions of the compute lane (operations.py), given by its number.
    """

    def __init__(
        self,
        program: Program,
        device: int,
        swapping: Swapping,
        habits: Habits,
        sizes: Sizes | None,
        limit: float | None,
    ) -> None:
        """Begin with all weights and optimizer state on the host.

        Arguments:
            limit: bytes of the device, on which evictions are based; None: there is always room.
        """
        self._program, self._device, self._swapping, self._habits = program, device, swapping, habits
        self._writes_clean = swapping.writes_clean or swapping.policy == "lru"
        self._beside = swapping.prefetch > 0
        self._draft, self._copies = Draft(), Copies()
        self._room = MemoryBudget(sizes, device, limit)
        self._operations = Operations(program.period[device, COMPUTE], habits)
        self._ahead: set[Value] = set()  # values swapped in for a later operation
        self._made = {value for i in program.period[device, COMPUTE] for value in i.writes}  # on this device
        self._leaves: dict[
            Value, tuple[Value, ...]
        ] = {}  # for each value that another lane of the device frees: the values that this lane writes from it
        for (here, name), row in program.period.items():
            if here == device and name != COMPUTE:
                for i in row:
                    self._leaves.update(dict.fromkeys(i.frees, i.writes))
                    if i.kind is Kind.RECEIVE:
                        self._copies.last.update(dict.fromkeys(i.writes, 2 if habits.peer else 1))
                    else:
                        self._made.update(i.writes)
        for value in program.initial(device):
            self._copies.host[value] = self._copies.last[value] = 1

    def instructions(self) -> Iterator[Instruction]:
        """Replay the device; return its compute instructions and swaps.

        The instructions of each lane are in their order.

        Raises:
            TooFewBytes: an operation needs more than the limit.
        """
        for number in range(len(self._operations)):
            self._operate(number)
        for value in in_order(self._copies.there):
            self._evict(value)
        self._settle()
        return self._draft.finished()

    # Operations.

    def _operate(self, number: int) -> None:
        operation, copies = self._operations[number], self._copies
        needs = set(operation.needs)
        missing = [v for v in operation.needs if v not in copies.there]
        added = self._room.added(operation)
        extra = added + self._room.total(missing)
        if not self._make_room(number, extra, needs):
            raise self._too_little(number, extra)
        for value in missing:
            self._bring(value, number)
        for later in range(number + 1, min(number + 1 + self._swapping.prefetch, len(self._operations))):
            if not self._fetch_ahead(later, number, added):
                break
        for position, instruction in enumerate(operation.instructions):
            self._compute(instruction, number, waits=position == 0)
        if self._swapping.policy == "task":
            end = self._operations.end_of_task(number)
            gone = (v for v in copies.there if self._operations.next_use(v, number + 1) > end)
            for value in in_order(v for v in gone if v not in self._ahead and not self._shared(v)):
                self._evict(value)

    def _make_room(self, number: int, extra: float, kept: Iterable[Value], evicts: bool = True) -> bool:
        """Make room for additional bytes: wait for swap-outs, and evict values.

        Arguments:
            number: the current operation.
            extra: bytes needed.
            kept: values that must stay on the device.
            evicts: False to wait for swap-outs only.

        Returns:
            True if there is room now.
        """
        if self._room.fits(extra):
            return True
        for value in self._victims(number, kept) if evicts else ():
            self._evict(value)
            if self._room.fits(extra):
                return True
        return False

    def _victims(self, number: int, kept: Iterable[Value]) -> list[Value]:
        """Values that may be evicted, in order of eviction.

        Arguments:
            number: the current operation.
            kept: values that must stay on the device.
        """
        stay = {*kept, *self._ahead}
        free = [v for v in in_order(self._copies.there) if v not in stay and not self._shared(v)]
        if self._swapping.policy == "lru":
            return sorted(free, key=lambda v: self._copies.used[v])
        return sorted(free, key=lambda v: -self._operations.next_use(v, number))

    def _shared(self, value: Value) -> bool:
        """True for a sum over devices of tied gradients, which several stages share.

        Such a sum arrives only after the other stages' gradients, and computation here may not wait for it.
        """
        return value.what is ValueKind.REDUCED and value.part in dict(self._program.stages[value.stage].tied)

    def _too_little(self, number: int, extra: float) -> "TooFewBytes":
        room, operation = self._room, self._operations[number]
        largest = max(operation.needs, key=room.size, default=None)
        named = f" (largest: {largest}, {show_bytes(room.size(largest))})" if largest is not None else ""
        return TooFewBytes(
            self._device,
            room.over(extra),
            f"{show_bytes(self._swapping.budget_bytes(self._device) or 0.0)}, {show_bytes(room.over(extra))} too few: "
            f"{operation.instructions[-1].name} needs {show_bytes(room.total(operation.needs))} on the device{named} "
            f"and adds {show_bytes(room.added(operation))}",
        )

    def _fetch_ahead(self, later: int, number: int, added: float) -> bool:
        """Swap in the values that a later operation needs, while there is room.

        Arguments:
            later: the later operation.
            number: the current operation.
            added: bytes reserved for the current operation while it runs.

        Returns:
            False if there was too little room for all values.
        """
        between = {v for n in range(number, later + 1) for v in self._operations[n].needs}
        for value in self._operations[later].needs:
            if value in self._copies.there or value not in self._copies.host:
                continue
            extra = added + self._room.size(value)
            if not self._make_room(number, extra, between, evicts=self._swapping.policy != "task"):
                return False
            self._bring(value, number)
            self._ahead.add(value)
        return True

    # Effects of an operation on the values of the device.

    def _compute(self, i: Instruction, number: int, waits: bool) -> None:
        copies, room = self._copies, self._room
        self._ahead.difference_update(i.reads)
        at = self._draft.add(i, map(copies.here, i.reads), i.writes, map(copies.here, i.frees))
        if waits:
            self._draft.wait(at, room.cleared)
        inherited = {heir_of(i, v) for v in i.writes}
        for value in i.reads:
            copies.touch(value, number, at)
        for value in i.frees:
            del copies.there[value]
            if value not in inherited:
                room.give(room.size(value))
            self._forget(value)
        for value in i.writes:
            copies.come(value, number, at)
            if heir_of(i, value) is None:
                room.take(room.size(value))
            if value in self._leaves:  # another lane of the device uses it next
                self._leave(value, number)

    def _leave(self, value: Value, number: int) -> None:
        if value.what in BORDER and not self._habits.peer:
            self._evict(value, to_send=True)
            return
        del self._copies.there[value]
        self._room.give(self._room.size(value))
        for arriving in self._leaves[value]:
            self._arrive(arriving, number)

    def _arrive(self, value: Value, number: int) -> None:
        """Add a value that another lane writes to the device."""
        self._copies.come(value, number, -1)
        self._room.take(self._room.size(value))

    def _forget(self, value: Value) -> None:
        """Forget the host copy of a value that is used for the last time.

        The copy is freed by the value's last swap-in.
        """
        if value.what not in _STATE and value in self._copies.host:
            copy = value._replace(copy=self._copies.host.pop(value))
            self._draft[self._copies.brought[value]].frees.append(copy)

    # Swaps.

    def _bring(self, value: Value, number: int) -> None:
        """Bring a missing value to the device: from a peer by message, else from the host.

        Arguments:
            number: the current operation.
        """
        copies, draft = self._copies, self._draft
        if value not in copies.host:
            if value not in self._made and self._habits.peer:
                self._arrive(value, number)
                return
            copies.host[value] = 1  # received there
        source, made = value._replace(copy=copies.host[value]), copies.new(value, on_host=False)
        computed = draft.computed  # before this one
        at = draft.add(self._swap(Kind.SWAP_IN, source), [source], [made], [])
        if self._moves(value, number):
            draft[at].frees.append(source)
            del copies.host[value]
        if draft[at].instruction.lane != COMPUTE:
            draft.wait(at, computed, self._room.cleared)
        copies.bring(made, number, at)
        self._room.take(self._room.size(value))

    def _moves(self, value: Value, number: int) -> bool:
        """True if a swap-in leaves no copy on the host.

        So it is if evictions always write (`writes_clean`). Otherwise it is so for values that are not read from the
        host again, and with policy `task` for all values but weights and optimizer state.
        """
        if self._writes_clean:
            return True
        if value.what in _STATE:
            return False
        return self._swapping.policy == "task" or self._operations.next_use(value, number + 1) == NEVER

    def _evict(self, value: Value, to_send: bool = False) -> None:
        """Evict a value: write it to the host, or drop it if the host has the same copy.

        A dropped value is freed by its last reader.

        Arguments:
            to_send: True if the value is sent to a peer from the host, as its first copy there.
        """
        copies, draft, room = self._copies, self._draft, self._room
        here, toucher = copies.here(value), copies.touched[value]
        del copies.there[value]
        if value in copies.host and not self._writes_clean:
            draft[toucher].frees.append(here)
            room.give(room.size(value))
            return
        made = value._replace(copy=1) if to_send else copies.new(value, on_host=True)
        computed = draft.computed
        at = draft.add(self._swap(Kind.SWAP_OUT, here), [here], [made], [here])
        self._overwrite(value._replace(index=value.index - 1), at)
        read = toucher >= 0 and here not in draft[toucher].writes
        if self._beside and read and not draft.waits(at, toucher):
            draft.wait(at, computed)
        if not to_send:
            copies.host[value] = made.copy
        if self._beside:
            room.leaving(at, room.size(value))
        else:
            room.give(room.size(value))

    def _overwrite(self, old: Value, at: int) -> None:
        """Let a swap-out of weights or optimizer state overwrite the older host copy.

        Arguments:
            old: the previous version of the weights or the optimizer state.
            at: item of the swap-out in the draft.
        """
        copies, item = self._copies, self._draft[at]
        if old.what in _STATE and old in copies.host and old not in copies.there:
            copy = old._replace(copy=copies.host.pop(old))
            item.reads.append(copy)
            item.frees.append(copy)

    def _settle(self) -> None:
        """End the period only after the last swap-out."""
        last = self._room.last_leaving
        if last is not None:
            stage = self._draft[last].instruction.stage
            at = self._draft.add(Instruction(Kind.DROP, stage, 0, self._device, COMPUTE), [], [], [])
            self._draft.wait(at, last)

    def _swap(self, kind: Kind, source: Value) -> Instruction:
        own = self._beside and (kind is Kind.SWAP_OUT or self._draft.computed >= 0)
        return Instruction(kind, source.stage, source.index, self._device, SWAP_LANES[kind] if own else COMPUTE)

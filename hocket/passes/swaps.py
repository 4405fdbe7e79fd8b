"""Swaps: a program whose values do not fit into its devices becomes one that fits, with what is missing swapped in and room made for it.

Rules of this file: each device by itself, its compute lane in order, as if nothing took time: what is there, what the next operation
needs, who must go. A policy says who; order.py's rules and names of copies say the rest. Without prefetching swaps stand in the
compute lane, where computation waits for them. With it they have lanes of their own, and marks say whom they wait for.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hocket.errors import RefusedError
from hocket.features import Feature, check_together
from hocket.passes.swapping import StageSizes, Swapping
from hocket.program.footprint import Sizes, footprints
from hocket.program.instruction import COMPUTE, SWAP_LANES, Instruction, Kind, Value, What
from hocket.program.order import heir_of
from hocket.program.program import Program, freeze
from hocket.units import show_bytes

_STATE = frozenset({What.WEIGHTS, What.OPTIMIZER})
_BORDER = frozenset({What.ACTIVATION, What.GRADIENT})
_ROUNDS = 6  # limits that are tried until what can be there at once, whatever the timing, is within the budget
_NEVER = 1 << 60


class Habits(NamedTuple):
    """What of a strategy's order its tasks are: with grouping one runs all microbatches; an update may belong to its stage's last
    backward; what goes to peers goes there at once, or through the host; forward: stages of each forward task, () for one each."""

    grouping: bool = False
    just_in_time: bool = False
    peer: bool = True
    forward: tuple[int, ...] = ()


def with_swaps(program: Program, swapping: Swapping, habits: Habits, sizes: Sizes | None = None) -> Program:
    """The program with swaps; each period begins and ends with everything on the host.

    Arguments:
        sizes: by which it is decided and proved; None: those of `swapping`.

    Raises:
        RefusedError: an operation needs more than the budget; or the program is none of those that can swap.
    """
    check_swaps(program)
    if sizes is None:
        sizes = sizes_of(program, swapping)
    limits = dict.fromkeys(program.devices, swapping.device_bytes)
    for _ in range(_ROUNDS):
        found = _swapped(program, swapping, habits, sizes, limits)
        if sizes is None or swapping.device_bytes is None:
            break
        over = {
            device: one.bytes - swapping.device_bytes
            for device, one in footprints(found, sizes).items()
            if one.bytes > swapping.device_bytes
        }
        if not over:
            break
        for (
            device,
            excess,
        ) in over.items():  # messages wait, and what is swapped in and out beside computation is there longer
            limits[device] = (limits[device] or 0.0) - excess
    else:
        device, excess = max(over.items(), key=lambda pair: pair[1])
        raise RefusedError(
            f"swap.device_bytes of device {device}",
            f"{show_bytes(swapping.device_bytes or 0.0)}, and whatever is swapped {show_bytes(excess)} more may be there at once; "
            "take smaller stages or microbatches, or prefetch less",
        )
    if sizes is not None and swapping.host_bytes is not None:
        for device, host in footprints(found, sizes, host=True).items():
            if host.bytes > swapping.host_bytes:
                raise RefusedError(
                    f"swap.host_bytes of device {device}",
                    f"{show_bytes(swapping.host_bytes)}, and {show_bytes(host.bytes)} of its values lie there at once",
                )
    return found


def check_swaps(program: Program) -> None:
    """Refuse a program of which nothing can be swapped.

    Raises:
        RefusedError: it updates late or divides its state, with the reason.
    """
    late = [Feature.ASYNCHRONOUS] if program.rule.kind != "sync" else []
    divided = [Feature.SHARD_FULL if s.gathers else Feature.SHARD_OPTIMIZER for s in program.stages if s.sharded]
    check_together("swap", Feature.SWAP, *late, *divided)


def sizes_of(program: Program, swapping: Swapping) -> StageSizes | None:
    """The plan's own figures; None where it has none and needs none.

    Raises:
        RefusedError: the policy decides by bytes that the plan does not have.
    """
    if swapping.stages and len(swapping.stages) == len(program.stages):
        stages = program.stages
        return StageSizes(swapping.stages, tuple(s.targets for s in stages), tuple(s.devices for s in stages))
    if swapping.policy == "task" and swapping.device_bytes is None:
        return None
    raise RefusedError(
        "swap.stages",
        f"bytes of {len(swapping.stages)} stages of {len(program.stages)}; `hocket plan` writes them there",
    )


def _swapped(
    program: Program, swapping: Swapping, habits: Habits, sizes: Sizes | None, limits: Mapping[int, float | None]
) -> Program:
    lanes = {lane: list(row) for lane, row in program.period.items()}
    for device in program.devices:
        one = _Device(program, device, swapping, habits, sizes, limits[device])
        one.run()
        lanes[device, COMPUTE] = []
        for item in one.items:
            made = item.finished()
            lanes.setdefault((device, made.lane), []).append(made)
    if not habits.peer:
        lanes = {lane: [_through_host(i) for i in row] for lane, row in lanes.items()}
    return replace(program, name=f"{program.name} swaps {swapping.policy}", period=freeze(lanes), swaps=True)


def _through_host(i: Instruction) -> Instruction:
    """A transfer of what lies on the hosts of both ends."""
    if i.kind not in (Kind.SEND, Kind.RECEIVE):
        return i
    reads, writes, frees = (tuple(v._replace(copy=1) for v in row) for row in (i.reads, i.writes, i.frees))
    return replace(i, reads=reads, writes=writes, frees=frees)


@dataclass
class _Item:
    """An instruction that is not finished: what it reads, writes and frees may still grow."""

    instruction: Instruction
    reads: list[Value]
    writes: list[Value]
    frees: list[Value]

    def finished(self) -> Instruction:
        return replace(
            self.instruction, reads=tuple(self.reads), writes=tuple(self.writes), frees=tuple(dict.fromkeys(self.frees))
        )


class _Operation(NamedTuple):
    """What runs as one: a forward with its load, a backward with the forward that is made again, an update, a norm."""

    instructions: tuple[Instruction, ...]
    task: tuple[object, ...]
    needs: tuple[Value, ...]


@dataclass
class _Device:
    """One device's compute lane, played in order; names of values are plain ones here.

    Attributes:
        there, host: copies on the device and on its host. last: the highest copy so far.
        touched: the item that last read or wrote a value on the device. used: the operation that did.
        ahead: what was swapped in for an operation that is still to come.
        level: bytes that are there; going: (item, bytes) of swap-outs that are counted until somebody waits for them.
    """

    program: Program
    device: int
    swapping: Swapping
    habits: Habits
    sizes: Sizes | None
    limit: float | None
    items: list[_Item] = field(default_factory=list)
    there: dict[Value, int] = field(default_factory=dict)
    host: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    touched: dict[Value, int] = field(default_factory=dict)
    brought: dict[Value, int] = field(default_factory=dict)
    used: dict[Value, int] = field(default_factory=dict)
    ahead: dict[Value, int] = field(default_factory=dict)
    level: float = 0.0
    going: list[tuple[int, float]] = field(default_factory=list)
    marks: int = 0

    def run(self) -> None:
        """Play it."""
        program, device = self.program, self.device
        compute = program.period[device, COMPUTE]
        self.operations = _operations(compute, self.habits)
        self.ends = list(range(len(self.operations)))  # the last operation of each one's task
        for number in reversed(range(len(self.operations) - 1)):
            if self.operations[number].task == self.operations[number + 1].task:
                self.ends[number] = self.ends[number + 1]
        self.writes_clean = self.swapping.writes_clean or self.swapping.policy == "lru"
        self.beside = self.swapping.prefetch > 0
        self.next: dict[Value, list[int]] = defaultdict(list)  # operations that need a value, the last one first
        for number in reversed(range(len(self.operations))):
            for value in self.operations[number].needs:
                self.next[value].append(number)
        made = {value for i in compute for value in i.writes}
        self.leaves: dict[Value, tuple[Value, ...]] = {}
        for (here, name), row in program.period.items():
            if here == device and name != COMPUTE:
                for i in row:
                    made.update(i.writes if i.kind is not Kind.RECEIVE else ())
                    self.leaves.update(dict.fromkeys(i.frees, i.writes))
                    if i.kind is Kind.RECEIVE:
                        self.last.update(dict.fromkeys(i.writes, 2 if self.habits.peer else 1))
        self.made = made
        for value in program.initial(device):
            self.host[value] = self.last[value] = 1
        self.waited = dict.fromkeys((COMPUTE, *SWAP_LANES.values()), -1)  # the last item of another lane
        self.barrier = self.computed = -1  # the last swap-out that made room; the last item of the compute lane
        for number in range(len(self.operations)):
            self._operate(number)
        for value in self._in_order(self.there):
            self._evict(value, len(self.operations))
        self._settle()

    # Operations.

    def _operate(self, number: int) -> None:
        operation = self.operations[number]
        needs = set(operation.needs)
        missing = [v for v in operation.needs if v not in self.there]
        extra = self._extra(operation) + sum(map(self._size, missing))
        self._make_room(number, extra, needs)
        for value in missing:
            self._bring(value, number)
        for later in range(number + 1, min(number + 1 + self.swapping.prefetch, len(self.operations))):
            if not self._fetch_ahead(later, number, self._extra(operation)):
                break
        first = True
        for instruction in operation.instructions:
            self._compute(instruction, number, waits=first)
            first = False
        if self.swapping.policy == "task":
            end = self.ends[number]
            gone = [v for v in self.there if v not in self.ahead and self._next_use(v, number + 1) > end]
            gone = [v for v in gone if not self._shared(v)]
            for value in self._in_order(gone):
                self._evict(value, number)

    def _extra(self, operation: _Operation) -> float:
        """The most that an operation adds to what is there when it begins."""
        if self.sizes is None:
            return 0.0
        level = most = 0.0
        for i in operation.instructions:
            most = max(most, level + self.sizes.held(i))
            inherited = {heir_of(i, v) for v in i.writes}
            level += sum(self._size(v) for v in i.writes if heir_of(i, v) is None)
            level -= sum(self._size(v) for v in i.frees if v not in inherited)
        return most

    def _make_room(self, number: int, extra: float, needs: Iterable[Value]) -> None:
        """Let others go until an operation has room, waiting for those who go already first."""
        if self.limit is None or self.sizes is None:
            return
        kept = set(needs)
        while self._over(extra) > 0 and self.going:
            self._wait()
        if self._over(extra) > 0:
            for value in self._victims(number, kept):
                self._evict(value, number)
                while self._over(extra) > 0 and self.going:
                    self._wait()
                if self._over(extra) <= 0:
                    break
        over = self._over(extra)
        if over > 0:
            i = self.operations[number].instructions[-1]
            largest = max(kept, key=self._size, default=None)
            named = f" (largest: {largest}, {show_bytes(self._size(largest))})" if largest is not None else ""
            raise RefusedError(
                f"swap.device_bytes of device {self.device}",
                f"{show_bytes(self.swapping.device_bytes or 0.0)}, {show_bytes(over)} too few: {i.name} needs "
                f"{show_bytes(sum(map(self._size, kept)))} to be there{named} and adds {show_bytes(self._extra(self.operations[number]))}",
            )

    def _over(self, extra: float) -> float:
        if self.limit is None or self.sizes is None:
            return 0.0
        return self.sizes.besides(self.device) + self.level + extra - self.limit

    def _victims(self, number: int, kept: set[Value]) -> list[Value]:
        """Who may go, in the order in which they do."""
        free = [v for v in self._in_order(self.there) if v not in kept and v not in self.ahead and not self._shared(v)]
        if self.swapping.policy == "lru":
            return sorted(free, key=lambda v: self.used[v])
        return sorted(free, key=lambda v: -self._next_use(v, number))

    def _shared(self, value: Value) -> bool:
        """Whether it is a sum with gradients of other stages: it is there when they have theirs, for which computation here may not wait."""
        return value.what is What.REDUCED and value.part in dict(self.program.stages[value.stage].tied)

    def _next_use(self, value: Value, number: int) -> int:
        uses = self.next[value]
        while uses and uses[-1] < number:
            uses.pop()
        return uses[-1] if uses else _NEVER

    def _fetch_ahead(self, later: int, number: int, extra: float) -> bool:
        """Swap in what a later operation needs, if there is room beside the one that runs; whether there was."""
        between = {v for n in range(number, later + 1) for v in self.operations[n].needs}
        for value in self.operations[later].needs:
            if value in self.there or value not in self.host:
                continue
            if self.limit is not None:
                size = self._size(value)
                while self._over(extra + size) > 0 and self.going:
                    self._wait()
                for victim in self._victims(number, between):
                    if self._over(extra + size) <= 0 or self.swapping.policy == "task":
                        break
                    self._evict(victim, number)
                    while self._over(extra + size) > 0 and self.going:
                        self._wait()
                if self._over(extra + size) > 0:
                    return False
            self._bring(value, number)
            self.ahead[value] = later
        return True

    # What an operation does to what is there.

    def _compute(self, i: Instruction, number: int, waits: bool) -> None:
        for value in i.reads:
            self.ahead.pop(value, None)
        item = self._item(i, map(self._here, i.reads), i.writes, map(self._here, i.frees))
        at = len(self.items) - 1
        if waits and self.beside and self.barrier > self.waited[COMPUTE]:
            self._mark(self.barrier, item)
            self.waited[COMPUTE] = self.barrier
        self.computed = at
        inherited = {heir_of(i, v) for v in i.writes}
        for value in i.reads:
            self.touched[value], self.used[value] = at, number
        for value in i.frees:
            self._gone(value, counted=value in inherited)
            self._forget(value)
        for value in i.writes:
            heir = heir_of(i, value)
            self._come(value, number, at, 0.0 if heir is not None else self._size(value))
            if value in self.leaves:  # others of the device go on with it
                self._leave(value, number)

    def _leave(self, value: Value, number: int) -> None:
        if value.what in _BORDER and not self.habits.peer:
            self._evict(value, number, to_send=True)
            return
        self._gone(value)
        for arriving in self.leaves[value]:
            self._come(arriving, number, -1, self._size(arriving))

    def _forget(self, value: Value) -> None:
        """It has been used for the last time: what the host still has of it went with the last copy that was made of it."""
        if value.what not in _STATE and value in self.host:
            copy = value._replace(copy=self.host.pop(value))
            self.items[self.brought[value]].frees.append(copy)

    def _come(self, value: Value, number: int, at: int, size: float) -> None:
        self.there[value], self.touched[value], self.used[value] = 0, at, number
        self.last.setdefault(value, 0)
        self.level += size

    def _gone(self, value: Value, counted: bool = False) -> None:
        del self.there[value]
        if not counted:
            self.level -= self._size(value)

    # Swaps.

    def _bring(self, value: Value, number: int) -> None:
        """Let a value come that is not there: a message by itself, all others from the host."""
        if value not in self.host:
            if value in self.made or self.habits.peer is False:
                self.host[value] = 1  # received there
            else:
                self._come(value, number, -1, self._size(value))
                return
        source = value._replace(copy=self.host[value])
        made = value._replace(copy=self._number(value, 0))
        item = self._item(self._swap(Kind.SWAP_IN, source), [source], [made], [])
        at = len(self.items) - 1
        if self._moves(value, number):
            item.frees.append(source)
            del self.host[value]
        if self.beside and item.instruction.lane != COMPUTE:
            lane = item.instruction.lane
            for before in (self.computed, self.barrier):
                if before > self.waited[lane]:
                    self._mark(before, item)
            self.waited[lane] = max(self.waited[lane], self.computed, self.barrier)
        elif self.beside:
            self.computed = at
        self.there[value], self.touched[value], self.used[value], self.brought[value] = made.copy, at, number, at
        self.level += self._size(value)

    def _moves(self, value: Value, number: int) -> bool:
        """Whether nothing of a value stays on the host: it would be written again anyway, or is read there for the last time."""
        if self.writes_clean:
            return True
        if value.what in _STATE:
            return False
        if self.swapping.policy == "task":
            return True
        later = [n for n in self.next[value] if n > number]
        return len(later) == 0

    def _evict(self, value: Value, number: int, to_send: bool = False) -> None:
        """Let a value go: written to the host, or dropped by the one who used it last where the host has the same."""
        here = self._here(value)
        if value in self.host and not self.writes_clean:
            self.items[self.touched[value]].frees.append(here)
            self._gone(value)
            return
        made = value._replace(copy=1 if to_send else self._number(value, 1))
        item = self._item(self._swap(Kind.SWAP_OUT, here), [here], [made], [here])
        at = len(self.items) - 1
        before = value._replace(index=value.index - 1)
        if value.what in _STATE and before in self.host and before not in self.there:
            old = before._replace(copy=self.host.pop(before))
            item.reads.append(old)
            item.frees.append(old)
        toucher = self.touched[value]
        if self.beside:
            read = toucher >= 0 and here not in self.items[toucher].writes
            if read and toucher > self.waited[item.instruction.lane]:
                self._mark(self.computed, item)
                self.waited[item.instruction.lane] = self.computed
        if not to_send:
            self.host[value] = made.copy
        del self.there[value]
        if self.beside:
            self.going.append((at, self._size(value)))
        else:
            self.level -= self._size(value)

    def _wait(self) -> None:
        """Whoever comes next waits until the first of those who go is gone."""
        self.barrier, size = self.going.pop(0)
        self.level -= size

    def _settle(self) -> None:
        """The period ends when everything has gone."""
        if self.beside and self.going:
            last = self.going[-1][0]
            stage = self.items[last].instruction.stage
            item = self._item(Instruction(Kind.DROP, stage, 0, self.device, COMPUTE), [], [], [])
            self._mark(last, item)

    def _mark(self, before: int, item: _Item) -> None:
        """Let an item wait for an earlier one of another lane."""
        writer = self.items[before]
        mark = Value(What.MARK, writer.instruction.stage, 0, self.marks)
        self.marks += 1
        writer.writes.append(mark)
        item.reads.append(mark)
        item.frees.append(mark)

    def _swap(self, kind: Kind, source: Value) -> Instruction:
        lane = SWAP_LANES[kind] if self.beside and (kind is Kind.SWAP_OUT or self.computed >= 0) else COMPUTE
        return Instruction(kind, source.stage, source.index, self.device, lane)

    def _item(self, i: Instruction, reads: Iterable[Value], writes: Iterable[Value], frees: Iterable[Value]) -> _Item:
        self.items.append(_Item(i, list(reads), list(writes), list(frees)))
        return self.items[-1]

    def _number(self, value: Value, odd: int) -> int:
        """The next number of a copy on the host (1) or on the device (0)."""
        last = self.last[value]
        self.last[value] = last + 1 + (last + 1 + odd) % 2
        return self.last[value]

    def _here(self, value: Value) -> Value:
        copy = self.there[value]
        return value._replace(copy=copy) if copy else value

    def _size(self, value: Value) -> float:
        return self.sizes.value(value, self.device) if self.sizes is not None else 0.0

    def _in_order(self, values: Iterable[Value]) -> list[Value]:
        """As they came; but what goes from stage to stage first, whose memory a stash may share."""
        return sorted(values, key=lambda v: v.what not in _BORDER)


def _operations(compute: tuple[Instruction, ...], habits: Habits) -> list[_Operation]:
    """The compute lane as operations, with the task of each."""
    found: list[_Operation] = []
    begun: list[Instruction] = []
    packs = [pack for pack, size in enumerate(habits.forward) for _ in range(size)]  # the forward task of each stage
    for i in compute:
        begun.append(i)
        if i.kind is Kind.LOAD or i.again:
            continue
        before = found[-1] if found else None
        pack = packs[i.stage] if packs and i.kind is Kind.FORWARD else i.stage
        task: tuple[object, ...] = (i.kind, pack, -1 if habits.grouping else i.index)
        follows = before is not None and before.instructions[-1].kind is Kind.BACKWARD and before.task[1] == i.stage
        if i.kind is Kind.STEP and habits.just_in_time and follows and before is not None:
            task = before.task
        made = {v for one in begun for v in one.writes}
        needs = dict.fromkeys(v for one in begun for v in one.reads if v not in made)
        found.append(_Operation(tuple(begun), task, tuple(needs)))
        begun = []
    return found

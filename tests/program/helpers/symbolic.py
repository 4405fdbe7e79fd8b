"""Run of a program on symbols instead of tensors, in any legal order.

It shares no code with `check`. Instructions start and end, so that a value freed during a read is noticed. Lanes are
chosen at random. The resulting weights are compared with a plain loop that applies the rule.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from random import Random

from hocket.program.instruction import COLLECTIVES, SWAPS, Instruction, Kind, Value, ValueKind, computes, receive_lane
from hocket.program.memory_bound.receive_window import windows
from hocket.program.order import early_writes, heir_of, together
from hocket.program.program import Lane, Program


class Broken(Exception):
    """A program stands still, or does not end with exactly the newest weights."""


@dataclass
class Symbols:
    """Expressions as numbers. Equal expressions have equal numbers."""

    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    parts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    wholes: dict[int, tuple[int, int]] = field(default_factory=dict)
    bundles: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def of(self, *expression: object) -> int:
        return self.known.setdefault(expression, len(self.known))

    def sum(self, *sums: int | None, and_one: int | None = None) -> int:
        """Sum of sums and optionally one more term.

        Order does not matter, multiplicity does.
        """
        terms = [t for one in sums if one is not None for t in self.parts[one]]
        whole = tuple(sorted(terms + ([] if and_one is None else [and_one])))
        found = self.of("sum", whole)
        self.parts[found] = whole
        return found

    def several(self, symbols: list[int]) -> int:
        """Symbol of the joint value of several microbatches.

        A single microbatch keeps its symbol.
        """
        if len(symbols) == 1:
            return symbols[0]
        found = self.of("several", *symbols)
        self.bundles[found] = tuple(symbols)
        return found

    def of_one(self, symbol: int, place: int) -> int:
        """Part of one microbatch in a joint value of several."""
        bundle = self.bundles.get(symbol, (symbol,))
        return bundle[place] if 0 <= place < len(bundle) else self.of("nothing", symbol, place)

    def part(self, number: int, whole: int) -> int:
        """Part of one of several devices in a value that they divide."""
        found = self.of("part", number, whole)
        self.wholes[found] = (number, whole)
        return found

    def step(self, name: str, s: int, w: int, opt: int, sums: tuple[tuple[int, int], ...], norm: int) -> int:
        """Result of a step. For a shard, the same shard of the whole result."""
        mine = {self.wholes[symbol][0] for _, symbol in sums if symbol in self.wholes}
        if not mine:
            return self.of(name, s, w, opt, sums, norm)
        whole = [self.wholes[x][1] if x in self.wholes else x for x in (w, opt)]
        sums = tuple((b, self.wholes[symbol][1] if symbol in self.wholes else symbol) for b, symbol in sums)
        made = self.of(name, s, *whole, sums, norm)
        return self.part(mine.pop(), made) if len(mine) == 1 else self.of("torn", made)

    def gathered(self, parts: list[int]) -> int:
        """Whole value gathered from all its parts, in this order."""
        found = [self.wholes.get(part, (-1, part)) for part in parts]
        numbers, wholes = [number for number, _ in found], {whole for _, whole in found}
        same = len(wholes) == 1 and numbers == list(range(len(parts)))
        return wholes.pop() if same else self.of("torn", *parts)


def oracle(program: Program, microbatches: int, symbols: Symbols) -> dict[int, int]:
    """Newest weights of each stage after some microbatches.

    They are computed by a plain loop that applies the declared rule.
    """
    stages, rule = program.stages, program.rule
    if rule.kind == "averaged":
        return _figure_9(program, microbatches, symbols)
    weights = {(s, 0): symbols.of("w", s) for s in range(len(stages))}
    optimizer = {s: symbols.of("opt", s) for s in range(len(stages))}
    terms: dict[tuple[int, int], list[int]] = {}
    for m in range(microbatches):
        activations: dict[tuple[int, int], int] = {}
        kept: dict[int, tuple[tuple[tuple[str, int, int], int], ...]] = {}
        stashes: dict[int, int] = {}
        for s, shape in enumerate(stages):
            read = {(str(ValueKind.ACTIVATION), a, s): activations[a, s] for a in shape.sources}
            if shape.batch:
                read[str(ValueKind.INPUT), s, -1] = symbols.of("data", s, m)
            kept[s] = tuple(sorted(read.items()))
            w = weights[s, rule.version(s, m)]
            stashes[s] = symbols.of("stash", s, kept[s], w)
            for t in shape.targets:
                activations[s, t] = symbols.of("act", s, t, kept[s], w)
        gradients: dict[tuple[int, int], int] = {}
        for s, shape in reversed(list(enumerate(stages))):
            arriving = tuple((t, gradients[s, t]) for t in shape.targets if s in stages[t].gradients)
            w = weights[s, rule.backward_version(s, m)]
            what = (s, kept[s], stashes[s], w, arriving)
            for source in shape.gradients:
                gradients[source, s] = symbols.of("grad", source, *what)
            for b in range(shape.buckets):
                terms.setdefault((s, b), []).append(symbols.of("dw", b, *what))
        ended = [s for s in range(len(stages)) if (m + 1) % rule.batch[s] == 0]
        sums = {
            s: tuple((b, _with_ties(program, terms, s, b, symbols)) for b in range(stages[s].buckets)) for s in ended
        }
        norm = _norm(program, sums, symbols)
        for s in ended:
            u = m // rule.batch[s]
            made = (s, weights[s, u], optimizer[s], sums[s], norm)
            weights[s, u + 1], optimizer[s] = symbols.of("step w", *made), symbols.of("step opt", *made)
            for b in range(stages[s].buckets):
                terms.pop((s, b))
    return {s: weights[s, microbatches // rule.batch[s]] for s in range(len(stages))}


def _figure_9(program: Program, microbatches: int, symbols: Symbols) -> dict[int, int]:
    """Two waves, each of which runs every other half of a batch.

    A step uses a wave's own gradients and those of the half before.
    """
    buckets, half = range(program.stages[0].buckets), program.rule.batch[0] // 2
    weights, optimizer = ({s: symbols.of(name, s) for s in (0, 1)} for name in ("w", "opt"))
    before = dict.fromkeys(buckets, -1)
    for n in range(microbatches // half):
        s, own = n % 2, {b: symbols.sum() for b in buckets}
        for m in range(n * half, (n + 1) * half):
            kept = ((str(ValueKind.INPUT), s, -1), symbols.of("data", s, m))
            what = (s, (kept,), symbols.of("stash", s, (kept,), weights[s]), weights[s], ())
            own = {b: symbols.sum(own[b], and_one=symbols.of("dw", b, *what)) for b in buckets}
        made = (s, weights[s], optimizer[s], tuple((b, symbols.of("averaged", own[b], before[b])) for b in buckets), -1)
        weights[s], optimizer[s], before = symbols.of("step w", *made), symbols.of("step opt", *made), own
    return weights


def _norm(program: Program, sums: dict[int, tuple[tuple[int, int], ...]], symbols: Symbols) -> int:
    """Squares of all gradients, once for each device that holds them.

    -1 if no step needs the norm.
    """
    if not sums or not program.stages[0].needs_norm:
        return -1
    stages = program.stages
    each = ((s, b, symbol) for s in range(len(stages)) for b, symbol in sums[s] if together(stages, s, b)[0] == (s, b))
    held = [symbol for s, _, symbol in each for _ in stages[s].devices]
    return _squares(held, symbols)


def _squares(gradients: list[int], symbols: Symbols) -> int:
    found = symbols.sum()
    for symbol in gradients:
        found = symbols.sum(found, and_one=symbols.of("sq", symbol))
    return found


def _with_ties(program: Program, terms: dict[tuple[int, int], list[int]], s: int, b: int, symbols: Symbols) -> int:
    """Gradients of one bucket, and of the buckets that share its weights."""
    stages = program.stages
    tied = dict(stages[s].tied).get(b)
    members = [(s, b)] if tied is None else [(t, c) for t in tied for c, group in stages[t].tied if group == tied]
    whole = tuple(sorted(term for member in members for term in terms[member]))
    symbols.parts[symbols.of("sum", whole)] = whole
    return symbols.of("sum", whole)


@dataclass
class Run:
    """One interleaving of one unrolled program.

    Attributes:
        value_bytes: bytes of a value. If given, `peak_bytes` becomes the peak of each device.
    """

    program: Program
    repeats: int
    rng: Random
    symbols: Symbols
    value_bytes: Callable[[Value], float] | None = None
    peak_bytes: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lanes = self.program.unrolled(self.repeats)
        self.at = dict.fromkeys(self.lanes, 0)
        self.busy: dict[Lane, tuple[Lane, ...]] = {}  # the lanes of an instruction that runs, by its first lane
        self.stores: dict[int, dict[Value, int]] = {d: {} for d in self.program.devices}
        for s, stage in enumerate(self.program.stages):
            for device in stage.devices:
                w, opt, copy = self.symbols.of("w", s), self.symbols.of("opt", s), int(self.program.swaps)
                if stage.gathers:
                    part = self.symbols.part(sorted(stage.devices).index(device), w)
                    self.stores[device][Value(ValueKind.SHARD, s, 0)] = part
                else:
                    self.stores[device][Value(ValueKind.WEIGHTS, s, 0, copy=copy)] = w
                self.stores[device][Value(ValueKind.OPTIMIZER, s, 0, copy=copy)] = opt
        for device, store in self.stores.items():
            permits = (value for value in self.program.initial(device) if value.what is ValueKind.MARK)
            store.update(dict.fromkeys(permits, self.symbols.of("mark")))
        self.made: dict[Lane, list[tuple[int, Value, int]]] = {}
        self.windows = windows(self.program)
        self.came: dict[tuple[int, Value], Lane] = {}  # messages that compute has not used yet
        self.gone: dict[int, list[Value]] = {d: [] for d in self.program.devices}  # sent, with their memory still there

    def finish(self) -> None:
        """Run to the end and compare with the rule.

        Raises:
            Broken: it stands still, or computes something else.
        """
        steps = 2 * sum(map(len, self.lanes.values()))
        for _ in range(steps + 1):
            if not self._move():
                break
        left = [f"{lane}: {row[self.at[lane]].name}" for lane, row in self.lanes.items() if self.at[lane] < len(row)]
        if left:
            raise Broken(f"stands still: {left}")
        expected = oracle(self.program, self.program.microbatches(self.repeats), self.symbols)
        for device, store in self.stores.items():
            if set(store) != set(self.program.final(device, self.repeats)):
                raise Broken(f"device {device} ends with {sorted(map(str, store))}")
            for value, symbol in store.items():
                if value.what is ValueKind.SHARD:
                    symbol = self.symbols.wholes.get(symbol, (-1, -1))[1]
                if value.what not in (ValueKind.OPTIMIZER, ValueKind.MARK) and symbol != expected[value.stage]:
                    raise Broken(f"device {device} computes other weights {value} than the rule")

    def _move(self) -> bool:
        """Start or end one instruction, chosen at random."""
        idle = [lane for lane, row in self.lanes.items() if self.at[lane] < len(row)]
        busy = {lane for lanes in self.busy.values() for lane in lanes}
        choices = [lane for lane in idle if lane not in busy] + list(self.busy)
        while choices:
            k = int(self.rng.random() * len(choices))
            choices[k], lane = choices[-1], choices[k]
            choices.pop()
            if lane in self.busy:
                self._end(lane)
                return True
            members = self._members(lane)
            if members and not busy & set(members) and all(self._there(one) for one in members):
                self._start(lane, members)
                return True
        return False

    def _head(self, lane: Lane) -> Instruction | None:
        row = self.lanes.get(lane, [])
        return row[self.at[lane]] if lane in self.at and self.at[lane] < len(row) else None

    def _members(self, lane: Lane) -> tuple[Lane, ...]:
        """Lanes with first instructions that run as one; empty until all have arrived."""
        head = self._head(lane)
        assert head is not None
        if head.kind is Kind.RECEIVE:
            return ()
        if head.kind is Kind.SEND:
            other = (head.peer, receive_lane(lane[0]))
            meets = self._head(other)
            if meets is None:
                return ()
            if meets.kind is not Kind.RECEIVE or meets.writes != head.reads:
                raise Broken(f"{head.name} meets {meets.name}")
            return (lane, other)
        if head.kind in COLLECTIVES:
            members = tuple((device, lane[1]) for device in head.group)
            heads = [self._head(member) for member in members]
            if any(one is None or one.kind is not head.kind for one in heads) or lane not in members:
                return ()
            return (lane, *(member for member in members if member != lane))
        return (lane,)

    def _there(self, lane: Lane) -> bool:
        head = self._head(lane)
        assert head is not None
        room = lane not in self.windows or self._unused(lane) < self.windows[lane]
        return room and self.stores[lane[0]].keys() >= set(head.reads)

    def _unused(self, lane: Lane) -> int:
        return sum(one == lane for one in self.came.values())

    def _start(self, lane: Lane, members: tuple[Lane, ...]) -> None:
        self.busy[lane] = members
        if computes(lane[1]):
            self.gone[lane[0]].clear()
        made = self.made[lane] = []
        heads = [self.lanes[member][self.at[member]] for member in members]
        for head in heads:
            for value, symbol in self._results(head, heads).items():
                if head.kind is Kind.BACKWARD and value.what is ValueKind.ACCUMULATOR:
                    self._write(head.device, value, symbol)  # there before the backward is over
                else:
                    made.append((head.device, value, symbol))
        self._weigh()

    def _end(self, lane: Lane) -> None:
        members = self.busy.pop(lane)
        for member in members:
            head = self.lanes[member][self.at[member]]
            store = self.stores[member[0]]
            gone = [value for value in head.reads if value not in store]
            if gone:
                raise Broken(f"{gone[0]} was freed while {head.name} read it")
            for value in head.frees:
                if value not in store:
                    raise Broken(f"{head.name} frees {value}, which is not there")
                del store[value]
            if head.kind is Kind.SEND:
                self.gone[member[0]] += head.frees
            if computes(member[1]):
                self.gone[member[0]].clear()
            if computes(member[1]) or head.kind is Kind.SWAP_IN:
                for value in head.reads:
                    if value.what is not ValueKind.GATHERED or value in head.frees:
                        self.came.pop((member[0], value), None)
            elif member in self.windows:
                self.came.update({(member[0], value): member for value in head.writes})
        for device, value, symbol in self.made.pop(lane):
            self._write(device, value, symbol)
        for member in members:
            self.at[member] += 1
        self._weigh()

    def _write(self, device: int, value: Value, symbol: int) -> None:
        if value in self.stores[device]:
            raise Broken(f"{value} is written a second time")
        self.stores[device][value] = symbol

    def _results(self, i: Instruction, meeting: list[Instruction]) -> dict[Value, int]:
        """Values that an instruction writes, from the values that it really reads."""
        store, symbols, s = self.stores[i.device], self.symbols, i.stage
        bundle = range(i.index, i.index + self.program.stages[s].merged)
        inputs = {m: self._inputs(i, m) for m in bundle}
        read: dict[ValueKind, list[tuple[int, int]]] = {what: [] for what in ValueKind}
        for v in i.reads:
            read[v.what].append((v.part, store[v]))
        read_weights = [
            *read[ValueKind.WEIGHTS],
            *read[ValueKind.GATHERED],
            *(read[ValueKind.SHARD] if i.kind is Kind.STEP else []),
        ]
        w = read_weights[0][1] if read_weights else -1
        found: dict[Value, int] = {}
        for value in i.writes:
            if value.what is ValueKind.MARK:
                found[value] = symbols.of("mark")
                continue
            match i.kind:
                case _ if i.kind in SWAPS:
                    found[value] = store[i.reads[0]]
                case Kind.LOAD:
                    found[value] = symbols.several([symbols.of("data", s, m) for m in bundle])
                case Kind.FORWARD | Kind.BACKWARD if value.what is ValueKind.ENDED:
                    found[value] = symbols.of("end", i.kind, s, i.index)
                case Kind.FORWARD if value.what is ValueKind.STASH:
                    found[value] = symbols.several([symbols.of("stash", s, inputs[m], w) for m in bundle])
                case Kind.FORWARD:
                    own = self._microbatches(value)
                    found[value] = symbols.several([symbols.of("act", s, value.part, inputs[m], w) for m in own])
                case Kind.BACKWARD:
                    stash = next((v for v in i.reads if v.what is ValueKind.STASH), None)
                    stashes = {m: -1 if stash is None else self._of(i, stash, m) for m in bundle}
                    what = {m: (s, inputs[m], stashes[m], w, self._gradients(i, m)) for m in bundle}
                    if value.what is ValueKind.GRADIENT:
                        own = self._microbatches(value)
                        found[value] = symbols.several([symbols.of("grad", value.stage, *what[m]) for m in own])
                    else:
                        before = [symbol for part, symbol in read[ValueKind.ACCUMULATOR] if part == value.part]
                        for m in bundle:
                            before = [symbols.sum(*before, and_one=symbols.of("dw", value.part, *what[m]))]
                        found[value] = before[0]
                case Kind.RECEIVE:
                    send = next(one for one in meeting if one.kind is Kind.SEND)
                    found[value] = self.stores[send.device][send.reads[0]]
                case Kind.ALL_REDUCE:
                    found[value] = symbols.sum(*(self.stores[one.device][one.reads[0]] for one in meeting))
                case Kind.REDUCE_SCATTER:
                    whole = symbols.sum(*(self.stores[one.device][one.reads[0]] for one in meeting))
                    found[value] = symbols.part(i.group.index(i.device), whole)
                case Kind.ALL_GATHER:
                    by_device = {one.device: self.stores[one.device][one.reads[0]] for one in meeting}
                    found[value] = symbols.gathered([by_device[device] for device in i.group])
                case Kind.NORM:
                    stages = self.program.stages
                    each = ((t, b, one) for t in sorted({v.stage for v in i.reads}) for b, one in self._sums(i, t))
                    gradients = [one for t, b, one in each if together(stages, t, b)[0] == (t, b)]
                    # A part is counted by one, a whole by all who have it: each time all of them count all of it.
                    found[value] = _squares([symbols.wholes.get(one, (0, one))[1] for one in gradients], symbols)
                case Kind.STEP if value.what is ValueKind.LENT:
                    own = read[ValueKind.ACCUMULATOR] + read[ValueKind.REDUCED]
                    found[value] = next((symbol for part, symbol in own if part == value.part), -1)
                case Kind.STEP if self.program.rule.kind == "averaged":
                    theirs = dict(read[ValueKind.LENT])
                    own = sorted(read[ValueKind.ACCUMULATOR] + read[ValueKind.REDUCED])
                    sums = tuple((b, symbols.of("averaged", symbol, theirs.get(b, -1))) for b, symbol in own)
                    opt = read[ValueKind.OPTIMIZER][0][1] if read[ValueKind.OPTIMIZER] else -1
                    name = "step opt" if value.what is ValueKind.OPTIMIZER else "step w"
                    found[value] = symbols.of(name, s, w, opt, sums, -1)
                case Kind.STEP:
                    sums = self._sums(i, s)
                    opt = read[ValueKind.OPTIMIZER][0][1] if read[ValueKind.OPTIMIZER] else -1
                    norm = [*read[ValueKind.SQUARES], *read[ValueKind.NORM], (-1, -1)][0][1]
                    name = "step opt" if value.what is ValueKind.OPTIMIZER else "step w"
                    found[value] = symbols.step(name, s, w, opt, sums, norm)
        return found

    def _sums(self, i: Instruction, stage: int) -> tuple[tuple[int, int], ...]:
        """(bucket, gradients) of a stage among the values that an instruction reads.

        Gradients of stages that share the weights there are included.
        """
        store, symbols = self.stores[i.device], self.symbols
        sums = (ValueKind.ACCUMULATOR, ValueKind.REDUCED, ValueKind.PART)
        read = {(v.stage, v.part): store[v] for v in i.reads if v.what in sums}
        found = []
        for (s, b), symbol in sorted(read.items()):
            if s == stage:
                members = [read[one] for one in together(self.program.stages, s, b) if one in read]
                found.append((b, symbol if len(members) == 1 else symbols.sum(*members)))
        return tuple(found)

    def _microbatches(self, value: Value) -> range:
        """Microbatches that a value of bundled stages contains a part of."""
        merged = self.program.stages[value.stage].merged
        if value.what in (ValueKind.ACTIVATION, ValueKind.GRADIENT):
            merged = gcd(merged, self.program.stages[value.part].merged)
        return range(value.index, value.index + merged)

    def _of(self, i: Instruction, value: Value, microbatch: int) -> int:
        """Part of one microbatch in a value that an instruction reads."""
        return self.symbols.of_one(self.stores[i.device][value], microbatch - value.index)

    def _inputs(self, i: Instruction, microbatch: int) -> tuple[tuple[tuple[str, int, int], int], ...]:
        """Input values of a microbatch that an instruction reads."""
        read = (
            v
            for v in i.reads
            if v.what in (ValueKind.INPUT, ValueKind.ACTIVATION) and microbatch in self._microbatches(v)
        )
        return tuple(sorted(((str(v.what), v.stage, v.part), self._of(i, v, microbatch)) for v in read))

    def _gradients(self, i: Instruction, microbatch: int) -> tuple[tuple[int, int], ...]:
        """Gradients of a microbatch's outputs that an instruction reads."""
        read = (v for v in i.reads if v.what is ValueKind.GRADIENT and microbatch in self._microbatches(v))
        return tuple(sorted((v.part, self._of(i, v, microbatch)) for v in read))

    def _weigh(self) -> None:
        """Record the memory of each device.

        It consists of values, values that running instructions will write, and posted receives.
        """
        if self.value_bytes is None:
            return
        held = {
            device: sum(map(self.value_bytes, store)) + sum(map(self.value_bytes, self.gone[device]))
            for device, store in self.stores.items()
        }
        for members in self.busy.values():
            for member in members:
                head = self.lanes[member][self.at[member]]
                if member not in self.windows:
                    early = early_writes(head)
                    new = (v for v in head.writes if heir_of(head, v) is None and v not in early)
                    held[member[0]] += sum(map(self.value_bytes, new))
                if head.kind is Kind.BACKWARD:  # its sums are there early, in the place of those that it reads
                    inherited = [heir_of(head, v) for v in head.writes]
                    held[member[0]] -= sum(self.value_bytes(v) for v in inherited if v is not None)
        for lane, window in self.windows.items():
            posted = self.lanes[lane][self.at[lane] : self.at[lane] + window - self._unused(lane)]
            held[lane[0]] += sum(self.value_bytes(value) for head in posted for value in head.writes)
        for device, amount in held.items():
            self.peak_bytes[device] = max(self.peak_bytes.get(device, 0.0), amount)

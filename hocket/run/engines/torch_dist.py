"""The distributed engine: one process a device, over gloo or NCCL.

Rules of this file: the compute lane runs in the thread that calls `run`; it begins the transfers of the other lanes as it
goes and waits for what it reads, see _transfers.py. Further compute lanes, of waves, do the same in threads of their own (_waves.py),
and so do lanes of swaps (_shelf.py).
What an instruction means is device.py's.

    worker = Worker(captured, plan, program, number)  # a collective call: every rank of the default process group
    worker.run(repeats, position)                     # a segment: prologue, periods, epilogue
    worker.state(); worker.load(state)                # between segments: one version of every stage's weights

Every member of a tensor-parallel group runs its group's instructions, on its divided model (division.py).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import InputError, InternalError, RefusedError, WorkerLost
from hocket.plan.plan import Plan
from hocket.profile.capture import Captured
from hocket.program.instruction import (
    COMPUTE,
    GATHER,
    SWAP_LANES,
    SWAPS,
    Instruction,
    Kind,
    Value,
    What,
    computes,
    group_lane,
)
from hocket.program.over import Ends
from hocket.program.program import Program
from hocket.program.window import windows
from hocket.run.device import Device
from hocket.run.division import Division
from hocket.run.engines._groups import Groups, MemberError, TransferError
from hocket.run.engines._handover import Handover
from hocket.run.engines._lanes import lanes_of, walk
from hocket.run.engines._memory import Memory
from hocket.run.engines._messages import Layouts
from hocket.run.engines._shelf import Shelf
from hocket.run.engines._transfers import Record, Transfers
from hocket.run.engines._waves import Exchange, Lanes
from hocket.run.observe import Observer, Unobserved
from hocket.run.sharding import Gather
from hocket.run.swap_memory import MemoryManager

_BETWEEN_WAVES = frozenset({What.ENDED, What.LENT})  # what compute lanes of one device hand each other


class PeerLost(WorkerLost):
    """A transfer failed: the peer died, or did not answer in time.

    Attributes:
        peers: devices on the other side; step: counted from 0; instruction: the transfer.
    """

    def __init__(
        self, who: str, others: str, peers: tuple[int, ...], step: int, instruction: Instruction, reason: str
    ) -> None:
        self.peers, self.step, self.instruction = peers, step, instruction
        super().__init__(
            f"{who}: lost {others} at step {step + 1} in `{instruction.name}` on lane {instruction.lane}: {reason}"
        )


class Worker:
    """One device of a program.

    Attributes:
        position: samples of the data that are behind the last segment.
        records: what ran in the last segment, if asked for, in any order. A transfer begins when it is posted; a receive
            ends when compute finds that it is there, at the latest when it needs it: the send says more exactly when.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        program: Program,
        number: int,
        device: torch.device | str = "cpu",
        *,
        observer: Observer | None = None,
        record: bool = False,
        shared_memory: bool = True,
        division: Division | None = None,
        memory: MemoryManager | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join the others: a collective call, made by all ranks of the default process group.

        Arguments:
            number: which device of the program; that of rank r is program.devices[r // plan.tensor].
            device: where its tensors live; with NCCL a CUDA device.
            record: keep the times of every instruction.
            shared_memory: send messages between processors of one machine through its memory.
            division: of a tensor-parallel plan: by which `captured` was divided.
            memory: see Device.

        Raises:
            InputError: there are not as many workers as the plan has devices. MemoryExceeded: the weights do not fit.
        """
        workers = len(program.devices) * plan.tensor
        if dist.get_world_size() != workers:
            found = f"{dist.get_world_size()} workers"
            raise InputError("workers", found, f"{workers}, one for each device of the plan")
        if (division.split.width if division else 1) != plan.tensor:
            raise InternalError(f"a model that is not divided by {plan.tensor}, as the plan is")
        through_hosts = any(v.on_host for lane in _transfers_of(program) for i in lane for v in (*i.reads, *i.writes))
        if through_hosts and torch.device(device).type == "cuda":
            found = "transfers from host to host, which NCCL does not have"
            raise RefusedError("options.peer", found, "true", "Plan with peer: true.")
        self.program, self.plan, self.position = program, plan, 0
        self.number = number
        self._observer: Observer = observer or Unobserved()
        self._clock, self._record = clock, record
        self.records: list[Record] = []
        self._handover = Handover(torch.device(device))
        self.device = Device(captured, plan, program, self.number, device, self._on_loss, memory, self._stream_of)
        self._layouts = Layouts(captured, plan, {s: runner.part for s, runner in self.device.stages.items()})
        self._lanes = lanes_of(program, self.number)
        self._groups = Groups(program, self.number, self.device.device, shared_memory, plan.tensor)
        self._division = division
        self._sharing = {  # the lane of gathers of each stage of this device that has any
            s: group_lane(GATHER, tuple(sorted(shape.devices)))
            for s, shape in enumerate(program.stages)
            if shape.sharded and number in shape.devices
        }
        if division is not None:
            division.members.bind(self._groups)
            self.device.clipping.join(division.divided, plan.tensor, self._groups.total)
        self._losses: deque[tuple[int, Any, int]] = deque()
        self._memory = Memory(self.device, clock if record else None)
        if self.device.memory is not None:
            self.device.memory.resized = self._memory.made
        self._windows = {lane: window for (d, lane), window in windows(program).items() if d == number}
        self._ends = Ends(program, number)

    # -- a segment

    def run(self, repeats: int, position: int = 0) -> int:
        """Run prologue, `repeats` periods (fewer if the observer says so) and epilogue; returns the periods run.

        Arguments:
            position: samples of the data that are behind; where this segment begins.

        Raises:
            PeerLost: a transfer failed. Afterwards this worker can only end its process: other transfers have begun.
        """
        store = self.device.start(position)
        self._memory.look(0)  # before a receive is posted
        swaps = sorted(lane for lane in self._lanes if lane in SWAP_LANES.values())
        others = {lane: parts for lane, parts in self._lanes.items() if not computes(lane) and lane not in swaps}
        waves = sorted(lane for lane in self._lanes if computes(lane) and lane != COMPUTE)
        exchange = Shelf(len(swaps), store) if swaps else Exchange(len(waves))
        transfers = Transfers(
            self.number,
            self.program.stages,
            others,
            self._windows,
            self._ends,
            self._groups,
            self._layouts,
            self._handover,
            self._memory,
            self._lost,
            self._clock,
            self._record,
            exchange.look_again,
            self.device.carried,
            self.device.sent,
        )
        self.records = transfers.records
        periods = 0
        try:
            self._handover.wait_all()
            with self._divided_threads(1 + len(waves)) as threads, exchange.failing():
                stores = [_of_lane(self.program, store, lane) for lane in waves]
                lanes = Lanes(
                    exchange,
                    [
                        partial(self._wave, lane, own, transfers, exchange, threads)
                        for lane, own in zip(waves, stores, strict=True)
                    ]
                    + [partial(self._swap_lane, lane, transfers, exchange) for lane in swaps],
                    f"device {self.number}",
                )
                periods = self._compute(repeats, store, transfers, exchange)
                lanes.join()
            if isinstance(exchange, Shelf):
                store = dict(exchange.items())
            self._handover.wait_all()
            for own in stores:
                store.update(own)
            self._report()
            expected = set(self.program.final(self.number, periods))
            for value in expected.difference(store):  # weights that were gathered, and that no forward has read yet
                store[value] = transfers.take(value)
            transfers.end()
        finally:
            self._memory.end(periods)
        if set(store) != expected:
            odd = ", ".join(map(str, sorted(set(store) ^ expected)))
            raise InternalError(f"device {self.number}: after the epilogue these are left or missing: {odd}")
        self.device.end(store)
        self.position = self.device.stream.position(self.program.microbatches(periods))
        return periods

    @contextmanager
    def _divided_threads(self, lanes: int) -> Iterator[int]:
        """Of a processor's threads each compute lane has an equal part; says how many."""
        threads = torch.get_num_threads()
        own = max(1, threads // lanes)
        if own != threads:
            torch.set_num_threads(own)
        yield own
        if own != threads:
            torch.set_num_threads(threads)

    def _stream_of(self, lane: str) -> AbstractContextManager[Any]:
        """Where a compute lane's work goes: autograd adds gradients up in the stream that a parameter was first used in."""
        return nullcontext() if lane == COMPUTE else self._handover.lane(lane)

    def _wave(
        self, lane: str, store: dict[Value, Any], transfers: Transfers, exchange: Exchange, threads: int, number: int
    ) -> None:
        """A compute lane beside the first, in a thread of its own; see `_compute`."""
        if self._handover.needed:
            torch.cuda.set_device(self.device.device)
        torch.set_num_threads(threads)
        follower = self._memory.follower()
        with follower, self._handover.lane(lane):
            for instruction, routes in walk(self._lanes[lane], lambda _: exchange.goes_on(number)):
                follower.look()
                for value in instruction.reads:
                    if value not in store:
                        store[value] = self._taken(value, transfers, exchange)
                self._execute(instruction, routes, store, transfers, exchange)

    def _swap_lane(self, lane: str, transfers: Transfers, exchange: Exchange, number: int) -> None:
        """A lane of swaps, in a thread of its own."""
        assert isinstance(exchange, Shelf)
        if self._handover.needed:
            torch.cuda.set_device(self.device.device)
        torch.set_num_threads(1)  # a copy is as quick as the memory
        with self._handover.lane(lane):
            for instruction, routes in walk(self._lanes[lane], lambda _: exchange.goes_on(number)):
                store = self._borrowed(instruction, transfers, exchange, waits=True)
                self._execute(instruction, routes, store, transfers, exchange)
                transfers.consumed(instruction.reads)

    def _borrowed(
        self, instruction: Instruction, transfers: Transfers, shelf: Shelf, waits: bool = False
    ) -> dict[Value, Any]:
        """What an instruction reads where lanes share their values.

        Arguments:
            waits: for kernels as well.
        """
        store, events = shelf.borrow(
            instruction, transfers.arriving, lambda value: self.device.came(value, transfers.take(value))
        )
        for event in events if waits else ():
            event.synchronize()
        return store

    def _taken(self, value: Value, transfers: Transfers, exchange: Exchange) -> Any:
        """What another lane has written, when it is there."""
        if value.what in _BETWEEN_WAVES:
            return self._handover.taken(exchange.take(value))
        return self.device.came(value, transfers.take(value))

    def _execute(
        self,
        instruction: Instruction,
        routes: tuple[tuple[int, str], ...],
        store: dict[Value, Any],
        transfers: Transfers,
        exchange: Exchange,
        begun: int = 0,
    ) -> None:
        """Run an instruction of a compute lane and hand on what it writes for others.

        Arguments:
            begun: of the first lane, compute instructions so far, this one included.
        """
        device, start_s = self.device, self._clock()
        early: set[Value] = set()
        publish = None
        if routes and instruction.kind is Kind.BACKWARD:
            publish = self._publisher(instruction, routes, early, transfers)
        try:
            device.execute(instruction, store, publish)
        except TransferError as error:  # a sum over the members of the group
            raise self._lost(instruction, error) from error
        flowing = (store[v] for v in instruction.writes if v.what is What.GRADIENT and not v.on_host)
        self._memory.made(tensor for tensors in flowing for tensor in tensors)  # compiled code made them unseen
        if self._record:
            self._handover.synchronize()
            transfers.records.append(Record(instruction, start_s, self._clock()))
        if begun:
            transfers.let_go(begun)
        for position, lane in routes:
            value = instruction.writes[position]
            keeps = value.what is What.SHARD and self.program.stages[value.stage].gathers
            thing = store[value] if keeps else store.pop(value)
            if not keeps:
                device.gave(value)
            if computes(lane):
                exchange.give(value, self._handover.given(thing))
            elif value not in early:
                transfers.give(lane, value, self._handover.given(thing))
            del thing  # or it would outlive its sending
        if isinstance(exchange, Shelf):
            exchange.put(
                {value: store.pop(value) for value in instruction.writes if value in store},
                self._handover.event() if instruction.kind not in SWAPS else None,  # whose copies are over
            )

    def _compute(self, repeats: int, store: dict[Value, Any], transfers: Transfers, exchange: Exchange) -> int:
        device, observer = self.device, self._observer
        ahead = _Ahead(repeats, observer, transfers, exchange)
        for stage in self._sharing:
            for value, thing in store.items():
                if (value.what, value.stage) == (What.SHARD, stage):
                    transfers.give(self._sharing[stage], value, self._handover.given(thing))
        transfers.post_all()
        for done, (instruction, routes) in enumerate(walk(self._lanes[COMPUTE], ahead.go_on)):
            self._memory.look(ahead.run)
            if transfers.failure is not None:
                raise transfers.failure
            if exchange.failure is not None:
                raise exchange.failure
            there = exchange if isinstance(exchange, Shelf) else store
            waits = any(value not in there for value in instruction.reads)
            if waits:
                observer.waits(instruction)
            if isinstance(exchange, Shelf):
                store = self._borrowed(instruction, transfers, exchange)
            for value in instruction.reads if waits else ():
                if value not in store:
                    store[value] = self._taken(value, transfers, exchange)
            transfers.let_go(done + 1)
            observer.runs(instruction)
            self._execute(instruction, routes, store, transfers, exchange, done + 1)
            if self._losses and (self.device.device.type == "cpu" or instruction.kind is Kind.STEP):
                self._report()  # reading a loss makes a GPU's queue run empty: there it waits for the step
            if waits:
                transfers.consumed(instruction.reads)
            for value in instruction.frees:
                if value.what is What.GATHERED:
                    self._memory.made(flat for slot in device.stages[value.stage].weights.slots for flat in slot.flats)
                    transfers.dropped(self._sharing[value.stage])
        return ahead.run

    def _publisher(
        self, instruction: Instruction, routes: tuple[tuple[int, str], ...], early: set[Value], transfers: Transfers
    ) -> Callable[[Value, Any], None]:
        """Hands a finished gradient bucket to its all-reduce while the backward goes on (rule 2)."""
        lane_of = {instruction.writes[position]: lane for position, lane in routes}

        def publish(value: Value, bucket: Any) -> None:
            if value in lane_of:
                early.add(value)
                transfers.give(lane_of[value], value, self._handover.given(bucket))

        return publish

    def _on_loss(self, microbatch: int, loss: Tensor, samples: int) -> None:
        self._losses.append((microbatch, self._handover.given((loss,)), samples))

    def _report(self) -> None:
        while self._losses:
            microbatch, loss, samples = self._losses.popleft()
            self._observer.loss(microbatch, float(self._handover.taken(loss)[0]), samples)

    def _lost(self, instruction: Instruction, error: Exception) -> PeerLost:
        peers = (instruction.peer,) if instruction.peer >= 0 else instruction.group
        if isinstance(error, MemberError):
            peers = ()
        others = tuple(p for p in peers if p != self.number)
        noun = "device" if self._division is None else "group"
        who = f"{noun} {self.number}" + (f" member {self._division.member}" if self._division else "")
        lost = f"{noun} {', '.join(map(str, others))}" if others else "another member"
        return PeerLost(who, lost, others, self.step_of(instruction), instruction, str(error))

    def step_of(self, instruction: Instruction) -> int:
        """In which step (batch) of the whole training an instruction of this segment is, from 0."""
        updates = instruction.counts_updates
        # A gather is called by the version that its step has made.
        number = instruction.index - (updates and instruction.kind is Kind.ALL_GATHER)
        microbatch = number * (self.program.rule.batch[instruction.stage] if updates else 1)
        return self.device.stream.position(microbatch) // self.plan.batch_size

    # -- between segments

    def state(self, to_save: bool = False) -> dict[str, dict[str, Any]]:
        """This device's weights, buffers and optimizer state by global name, whole; see Device.state.

        For members of a tensor-parallel group, and for replicas that share a step, a collective call, after which each has
        all of it.

        Arguments:
            to_save: of a group only the first member has what is divided, on the CPU; the others have what is left.
        """
        division = self._division
        try:
            found = self.device.state(self._gathers)
        except TransferError as error:
            raise WorkerLost(f"device {self.number}: lost another replica: {error}") from error
        if division is None:
            return found
        try:
            return division.whole(
                found,
                lambda tensor: self._groups.gathered(tensor, division.split.width).cpu(),
                not to_save or division.member == 0,
            )
        except TransferError as error:
            raise WorkerLost(f"group {self.number} member {division.member}: lost another member: {error}") from error

    def described(self) -> dict[str, dict[str, Tensor]]:
        """Weights and buffers as `state` has them, but for their numbers: tensors on meta. Nobody else is asked."""
        found: dict[str, dict[str, Any]] = {
            "weights": self.device.described(),
            "buffers": {name: tensor.to("meta") for name, tensor in self.device.buffers().items()},
            "optimizer": {},
        }
        if self._division is None:
            return found
        width = self._division.split.width
        return self._division.whole(found, lambda tensor: [tensor] * width)

    @property
    def _gathers(self) -> dict[int, Gather]:
        """For each stage of this device whose replicas share a step what gathers their parts."""
        return {s: partial(self._groups.parts, lane) for s, lane in self._sharing.items()}

    def close(self) -> None:
        """Leave the groups: a collective call, after which nothing runs any more."""
        self._groups.close()

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from a state, of whole tensors; entries of other devices are ignored."""
        self.device.load(state if self._division is None else self._division.part(state))

    @property
    def sent_bytes(self) -> dict[int, int]:
        """Bytes of messages that this worker has sent so far, by the device (or group) that they went to."""
        return dict(self._groups.sent_bytes)

    @property
    def carried_bytes(self) -> dict[Kind, int]:
        """Bytes of what this worker has brought into collectives so far, by kind."""
        return dict(self._groups.carried_bytes)

    @property
    def peak_memory_bytes(self) -> int:
        """The most bytes of tensors that this device held at once, so far as it was looked at; see _memory.py."""
        return self._memory.peak_bytes

    @property
    def memory_course(self) -> list[tuple[float, float]]:
        """(seconds, bytes) of what this device held while it was looked at, if events are recorded; see _memory.py."""
        return sorted(self._memory.course)  # waves note what they do each in a thread of its own


def _transfers_of(program: Program) -> Iterator[tuple[Instruction, ...]]:
    """Rows of sends and receives of a period."""
    for (_, lane), row in program.period.items():
        if not computes(lane) and lane not in SWAP_LANES.values():
            yield row


def _of_lane(program: Program, store: dict[Value, Any], lane: str) -> dict[Value, Any]:
    """Take out of a store what is of the stages of one compute lane."""
    own = [value for value in store if program.stages[value.stage].lane == lane]
    return {value: store.pop(value) for value in own}


class _Ahead:
    """Asks the observer one period ahead, so that receives may run ahead of compute into the next period.

    Without this a receive could not be posted before the compute lane has come to the end of its period, and a transfer
    could not overlap it. The observer still gets every number once, ascending from 0 to the number of periods run.
    """

    def __init__(self, repeats: int, observer: Observer, transfers: Transfers, exchange: Exchange) -> None:
        self._limit, self._observer, self._transfers, self._exchange = repeats, observer, transfers, exchange
        self._asked = 0
        self.run = 0

    def go_on(self, periods: int) -> bool:
        """Whether the compute lane runs another period after this many."""
        self.run = periods
        while self._asked <= min(periods + 1, self._limit):
            goes_on = self._observer.goes_on(self._asked)
            if not goes_on and self._asked < self._limit:
                self._limit = self._asked
            self._transfers.answer(self._asked < self._limit)
            self._exchange.answer(self._asked < self._limit)
            self._asked += 1
        self._transfers.post_all()
        return periods < self._limit

"""The distributed engine: one process a device, over gloo or NCCL.

Rules of this file: the compute lane runs in the thread that calls `run`; it begins the transfers of the other lanes as it
goes and waits for what it reads, see _transfers.py. What an instruction means is device.py's.

    worker = Worker(captured, plan, program, number)  # a collective call: every rank of the default process group
    worker.run(repeats, position)                     # a segment: prologue, periods, epilogue
    worker.state(); worker.load(state)                # between segments: one version of every stage's weights

Every member of a tensor-parallel group runs its group's instructions, on its divided model (division.py).
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import InputError, InternalError, WorkerLost
from hocket.plan.plan import Plan
from hocket.profile.capture import Captured
from hocket.program.instruction import COMPUTE, GATHER, Instruction, Kind, Value, What, group_lane
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
from hocket.run.engines._transfers import Record, Transfers
from hocket.run.observe import Observer, Unobserved
from hocket.run.sharding import Gather


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join the others: a collective call, made by all ranks of the default process group.

        Arguments:
            number: which device of the program; that of rank r is program.devices[r // plan.tensor].
            device: where its tensors live; with NCCL a CUDA device.
            record: keep the times of every instruction.
            shared_memory: send messages between processors of one machine through its memory.
            division: of a tensor-parallel plan: by which `captured` was divided.

        Raises:
            InputError: there are not as many workers as the plan has devices.
        """
        workers = len(program.devices) * plan.tensor
        if dist.get_world_size() != workers:
            found = f"{dist.get_world_size()} workers"
            raise InputError("workers", found, f"{workers}, one for each device of the plan")
        if (division.split.width if division else 1) != plan.tensor:
            raise InternalError(f"a model that is not divided by {plan.tensor}, as the plan is")
        self.program, self.plan, self.position = program, plan, 0
        self.number = number
        self._observer: Observer = observer or Unobserved()
        self._clock, self._record = clock, record
        self.records: list[Record] = []
        self.device = Device(captured, plan, program, self.number, device, self._on_loss)
        self._layouts = Layouts(captured, plan, {s: runner.part for s, runner in self.device.stages.items()})
        self._lanes = lanes_of(program, self.number)
        self._handover = Handover(self.device.device)
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
        self._losses: list[tuple[int, Tensor, int]] = []
        self._memory = Memory(self.device)
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
        others = {lane: parts for lane, parts in self._lanes.items() if lane != COMPUTE}
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
        )
        self.records = transfers.records
        periods = 0
        try:
            periods = self._compute(repeats, store, transfers)
            expected = set(self.program.final(self.number, periods))
            for value in expected.difference(store):  # weights that were gathered, and that no forward has read yet
                store[value] = transfers.take(value)
            transfers.end()
        finally:
            self._memory.end(periods)
        if set(store) != expected:
            odd = ", ".join(map(str, sorted(set(store) ^ expected)))
            raise InternalError(f"device {self.number}: after the epilogue these are left or missing: {odd}")
        self.position = self.device.stream.position(self.program.microbatches(periods))
        return periods

    def _compute(self, repeats: int, store: dict[Value, Any], transfers: Transfers) -> int:
        device, observer, clock = self.device, self._observer, self._clock
        ahead = _Ahead(repeats, observer, transfers)
        for stage in self._sharing:
            for value, thing in store.items():
                if (value.what, value.stage) == (What.SHARD, stage):
                    transfers.give(self._sharing[stage], value, self._handover.given(thing))
        transfers.post_all()
        for done, (instruction, routes) in enumerate(walk(self._lanes[COMPUTE], ahead.go_on)):
            self._memory.look(ahead.run)
            if transfers.failure is not None:
                raise transfers.failure
            waits = False
            for value in instruction.reads:
                if value not in store:
                    if not waits:
                        observer.waits(instruction)
                    waits = True
                    store[value] = transfers.take(value)
            transfers.let_go(done + 1)
            observer.runs(instruction)
            start_s = clock()
            early: set[Value] = set()
            publish = None
            if routes and instruction.kind is Kind.BACKWARD:
                publish = self._publisher(instruction, routes, early, transfers)
            try:
                device.execute(instruction, store, publish)
            except TransferError as error:  # a sum over the members of the group
                raise self._lost(instruction, error) from error
            flowing = (store[value] for value in instruction.writes if value.what is What.GRADIENT)
            self._memory.made(tensor for tensors in flowing for tensor in tensors)  # compiled code made them unseen
            if self._losses:
                self._report(instruction)
            if self._record:
                self._handover.synchronize()
                transfers.records.append(Record(instruction, start_s, clock()))
            transfers.let_go(done + 1)
            for position, lane in routes:
                value = instruction.writes[position]
                keeps = value.what is What.SHARD and self.program.stages[value.stage].gathers
                thing = store[value] if keeps else store.pop(value)
                if value not in early:
                    transfers.give(lane, value, self._handover.given(thing))
                del thing  # or it would outlive its sending
            if waits:
                transfers.consumed()
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
        self._losses.append((microbatch, loss, samples))

    def _report(self, instruction: Instruction) -> None:
        # Reading a loss makes a GPU's queue run empty: there it waits for the step.
        if self.device.device.type == "cpu" or instruction.kind is Kind.STEP:
            for microbatch, loss, samples in self._losses:
                self._observer.loss(microbatch, float(loss), samples)
            self._losses.clear()

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


class _Ahead:
    """Asks the observer one period ahead, so that receives may run ahead of compute into the next period.

    Without this a receive could not be posted before the compute lane has come to the end of its period, and a transfer
    could not overlap it. The observer still gets every number once, ascending from 0 to the number of periods run.
    """

    def __init__(self, repeats: int, observer: Observer, transfers: Transfers) -> None:
        self._limit, self._observer, self._transfers = repeats, observer, transfers
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
            self._asked += 1
        self._transfers.post_all()
        return periods < self._limit

"""Distributed engine: one process per device, over gloo or NCCL.

This file has the state that a worker keeps between segments. Other files define the rest:

- segment.py runs a segment. The first compute lane runs in the thread that calls `run`. It begins the transfers of
  other lanes and waits for the values that it reads (transfers.py).
- Further compute lanes, for waves, swap lanes and the load lane have their own threads (compute_lanes.py,
  shared_values.py).
- device.py defines the meaning of instructions.

    worker = Worker(executable)                       # a collective call: every rank of the default process group
    worker.run(repeats, position)                     # a segment: prologue, periods, epilogue
    worker.state(); worker.load(state)                # between segments: one version of every stage's weights

Every rank of a tensor-parallel group runs the group's instructions, on its shard of the model (shard_model.py).
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import InputError, InternalError, RefusedError, WorkerLost
from hocket.program.instruction import COMPUTE, Kind
from hocket.runtime.engine.compute_lanes import Exchange
from hocket.runtime.engine.instruction import Execution
from hocket.runtime.engine.lanes import LaneTable
from hocket.runtime.engine.losses import Losses
from hocket.runtime.engine.recorder import EngineRecorder, InstructionRecord
from hocket.runtime.engine.segment import Segment
from hocket.runtime.engine.shared_values import SharedValues
from hocket.runtime.engine.stream_handover import StreamHandover
from hocket.runtime.engine.transport.messages import Layouts
from hocket.runtime.engine.transport.process_groups import Groups, TransferError
from hocket.runtime.engine.transport.transfers import Transfers
from hocket.runtime.loading.loaders import Loaders, loads_of, places_of
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.progress.observer import Observer, Unobserved
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.runtime.update.sharding import Gather
from hocket.util.time_slice import long_time_slice


class Worker:
    """Engine of one device of a program, in its own process.

    Attributes:
        number: device of the program; for rank r it is program.devices[r // layout.tensor].
        position: number of samples trained on up to the end of the last segment.
    """

    def __init__(
        self,
        executable: Executable,
        *,
        observer: Observer | None = None,
        clock: Callable[[], float] | None = None,
        shared_memory: bool = True,
        memory: MemoryManager | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Create the worker, with connections to all others.

        This is a collective call of all ranks of the default process group.

        Arguments:
            observer: receives reports, and decides whether a segment continues; by default it always continues.
            clock: current time in seconds, to record every instruction; None to record nothing.
            shared_memory: True to send messages between CPU workers of one machine through shared memory.
            memory, guard: see Device.

        Raises:
            InputError: the number of workers differs from the number of devices in the plan.
            RefusedError: the program sends from host memory to host memory, and the devices are GPUs.
            MemoryExceeded: the weights do not fit.
        """
        program, layout, division = executable.program, executable.layout, executable.division
        workers = len(program.devices) * layout.tensor
        if dist.get_world_size() != workers:
            found = f"{dist.get_world_size()} workers"
            raise InputError("workers", found, f"{workers}, one for each device of the plan")
        if (division.split.width if division else 1) != layout.tensor:
            own = division.split.width if division else 1
            raise InternalError(f"the model is divided over {own} ranks, and the plan over {layout.tensor}")
        moved = (i for _, i in program.instructions() if i.kind in (Kind.SEND, Kind.RECEIVE))
        through_hosts = any(v.on_host for i in moved for v in (*i.reads, *i.writes))
        if through_hosts and torch.device(executable.device).type == "cuda":
            found = "transfers from host to host, which NCCL does not have"
            raise RefusedError("options.peer", found, "true", "Plan with peer: true.")
        self.program, self.layout, self.position = program, layout, 0
        self.number = program.devices[dist.get_rank() // layout.tensor]
        self._observer: Observer = observer or Unobserved()
        self._handover = StreamHandover(torch.device(executable.device))
        guard = guard or Guard()
        self._losses = Losses(self._handover, self._observer, guard)
        self.device = Device(executable, self.number, self._losses.note, memory, self._stream_of, guard)
        parts = {s: runner.part for s, runner in self.device.stages.items()}
        self._lane_table = LaneTable(program, self.number)
        self._loaders: Loaders | None = None
        self._groups = Groups(executable, self.number, Layouts(executable.captured, layout, parts), shared_memory)
        self._division = division
        if division is not None:
            division.members.bind(self._groups)
            self.device.clipping.join(division.divided, layout.tensor, self._groups.total)
        self._recorder = EngineRecorder(self.device, self._handover, clock)

    def read_with(self, loaders: Loaders) -> None:
        """Let other processes read this device's samples, in the following segments."""
        if any(loads_of(self.program, self.number, 1)):
            self._loaders, device = loaders, self.device
            device.microbatches.read = lambda microbatch, merged: loaders.take(device.stream, microbatch, merged)

    def sharing(
        self, executable: Executable, observer: Observer, on_loss: Callable[[int, Tensor, int, float], None]
    ) -> "Worker":
        """Create a worker of another program, with the weights and connections of this one.

        The two never run at the same time. This is a collective call.

        Arguments:
            executable: the program, with the same stages on the same devices.
            observer: see the constructor.
            on_loss: called for each loss that this device computes; see `Device`.
        """
        twin = copy.copy(self)
        program = executable.program
        twin.program, twin.layout, twin.position, twin._observer = program, executable.layout, 0, observer
        twin._loaders = None  # they read samples of the training
        twin._losses = Losses(self._handover, observer, Guard())
        twin.device = self.device.sharing(executable, on_loss, self._stream_of)
        twin._lane_table = LaneTable(program, self.number)
        parts = {s: runner.part for s, runner in twin.device.stages.items()}
        layouts = Layouts(executable.captured, executable.layout, parts)
        twin._groups = self._groups.carrying(layouts, program) or Groups(executable, self.number, layouts)
        twin._recorder = EngineRecorder(twin.device, self._handover, None)
        return twin

    # -- a segment

    def run(self, repeats: int, position: int = 0) -> int:
        """Run prologue, up to `repeats` periods and epilogue; return the periods run.

        Arguments:
            repeats: maximum number of periods; the observer may end the segment earlier.
            position: number of samples trained on before this segment.

        Raises:
            PeerLost: a transfer failed. This worker must then end its process, because other transfers are pending.
        """
        store = self.device.start(position)
        if self._loaders is not None:
            self._loaders.begin(places_of(self.device.stream, loads_of(self.program, self.number, repeats)))
        self._recorder.begin()
        if self.device.memory is not None:
            self.device.memory.storages.resized = self._recorder.memory.made
        self._recorder.memory.look(0)  # before a receive is posted
        swaps, others = self._lane_table.swaps, len(self._lane_table.waves) + len(self._lane_table.loads)
        exchange = SharedValues(len(swaps), store) if swaps else Exchange(others)
        transfers = Transfers(
            self.device, self._lane_table, self._groups, self._handover, self._recorder, exchange.look_again
        )
        execution = Execution(self.device, transfers, exchange, self._handover, self._recorder)
        segment = Segment(execution, self._lane_table, self._observer, self._losses)
        try:
            with long_time_slice():  # transfer threads have been started before, so they keep the short time slice
                store = segment.run(repeats, store)
            expected = set(self.program.final(self.number, segment.periods))
            for value in expected.difference(store):  # gathered weights that no forward has read yet
                store[value] = transfers.take(value)
            transfers.end()
        finally:
            self._recorder.memory.end(segment.periods)
        if set(store) != expected:
            odd = ", ".join(map(str, sorted(set(store) ^ expected)))
            raise InternalError(
                f"device {self.number}: at the end of a segment these values are left or missing: {odd}"
            )
        self.device.end(store)
        self.position = self.device.stream.position(self.program.microbatches(segment.periods))
        return segment.periods

    def _stream_of(self, lane: str) -> AbstractContextManager[Any]:
        """Return the context that makes a compute lane's CUDA stream current.

        The first compute lane uses the default stream. Autograd accumulates gradients in the stream in which a
        parameter was first used.
        """
        return nullcontext() if lane == COMPUTE else self._handover.lane(lane)

    # -- between segments

    def state(self, to_save: bool = False) -> dict[str, dict[str, Any]]:
        """Return the unsharded state of this device's stages.

        It has weights, frozen parameters, buffers and optimizer state.
        The form is that of ModelState.state, with global names. For ranks of a tensor-parallel group, and for replicas
        with sharded steps, this is a collective call. By default every rank gets all tensors.

        Arguments:
            to_save: True if only the first rank of a tensor-parallel group gets the divided tensors, on the CPU. The
                other ranks get the other tensors only.
        """
        division = self._division
        try:
            found = self.device.model.state(self._gathers)
        except TransferError as error:
            raise WorkerLost(f"device {self.number}: lost another replica: {error}") from error
        if division is None:
            return found
        try:
            return division.whole(
                found,
                lambda tensor: self._groups.gathered(tensor.to(self.device.device), division.split.width).cpu(),
                not to_save or division.member == 0,
            )
        except TransferError as error:
            raise WorkerLost(f"group {self.number} member {division.member}: lost another member: {error}") from error

    def described(self) -> dict[str, dict[str, Tensor]]:
        """Return unsharded parameters and buffers as meta tensors, in the form of `state`.

        The optimizer state is left empty. It does not communicate.
        """
        found: dict[str, dict[str, Any]] = {
            "weights": self.device.model.described(),
            "frozen": {name: tensor.to("meta") for name, tensor in self.device.model.frozen().items()},
            "buffers": {name: tensor.to("meta") for name, tensor in self.device.model.buffers().items()},
            "optimizer": {},
        }
        if self._division is None:
            return found
        width = self._division.split.width
        return self._division.whole(found, lambda tensor: [tensor] * width)

    @property
    def _gathers(self) -> dict[int, Gather]:
        """All-gather over the replicas, for each stage of this device with sharded steps."""
        return {s: partial(self._groups.parts, lane) for s, lane in self._lane_table.gathers.items()}

    def close(self) -> None:
        """Leave the process groups; a collective call, and the last one."""
        self._groups.close()

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load unsharded parameters, buffers and optimizer state, in the form of `state`.

        Entries of other devices are ignored.
        """
        self.device.model.load(state if self._division is None else self._division.part(state))

    @property
    def sent_bytes(self) -> dict[int, int]:
        """Bytes of messages sent by this worker so far, by destination device.

        With tensor parallelism, a device of the program is a tensor-parallel group.
        """
        return dict(self._groups.sent_bytes)

    @property
    def carried_bytes(self) -> dict[Kind, int]:
        """Bytes of this worker's inputs to the program's collectives so far, by kind."""
        return dict(self._groups.carried_bytes)

    @property
    def records(self) -> list[InstructionRecord]:
        """Instructions of the last segment in any order; empty without a clock.

        A transfer begins when it is posted. A receive ends when the compute lane takes its value, so the end of the
        send is more exact.
        """
        return self._recorder.instructions

    @property
    def peak_memory_bytes(self) -> int:
        """Peak bytes of tensors on this device (progress/peak_memory.py)."""
        return self._recorder.memory.peak_bytes

    @property
    def memory_course(self) -> list[tuple[float, float]]:
        """Memory of this device while observed, as (seconds, bytes), in order of time.

        It is empty without a clock. See progress/peak_memory.py.
        """
        return sorted(self._recorder.memory.course)  # waves record from several threads

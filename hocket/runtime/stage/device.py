"""Device: executes the compute instructions of one device on its values.

An instruction lists the values that it reads, writes and frees. The engine decides which values are present and when
an instruction starts. microbatches.py, optimizer_step.py and swapper.py implement the kinds of instructions. The
engine's store of present values has an object for each value, by kind of value:

    in             tensors of the batch by name     act, grad   tuple of tensors, in the order of the boundary
    stash          Stash                            w, full     WeightSlot
    dw, sum, part  Bucket                           opt         StageWeights of the stage
    sq, norm       Squares                          lent        Bucket of the other wave
    end, mark      None: only its presence matters  shard       WeightSlot; with ZeRO-3 StageWeights of the stage

A copy of a value on the host is a HostCopy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from hocket.errors import ProgramError
from hocket.profiling.job.job import Job
from hocket.program.instruction import SWAPS, Instruction, Kind, Value, ValueKind
from hocket.program.order import heir_of
from hocket.program.passes.swapping.insert import sizes_of
from hocket.runtime.nan_guard.guard import Guard
from hocket.runtime.nan_guard.inspector import Inspector
from hocket.runtime.stage.borders import Borders
from hocket.runtime.stage.data_stream import Stream
from hocket.runtime.stage.executable import Executable, SharedStages
from hocket.runtime.stage.microbatches import DeviceMicrobatches, OnLoss, Publish
from hocket.runtime.stage.model_state import ModelState
from hocket.runtime.stage.stage_layout import StagePart, split
from hocket.runtime.stage.stage_runner import StageRunner
from hocket.runtime.swapping.memory_manager import MemoryManager
from hocket.runtime.swapping.states import HostCopy
from hocket.runtime.swapping.swapper import Store, Swapper
from hocket.runtime.update.clipping import Clipping
from hocket.runtime.update.loss.factors import LossFactors
from hocket.runtime.update.loss.scaler import LossScaler
from hocket.runtime.update.loss.weights import LossWeights
from hocket.runtime.update.optimizer_step import OptimizerSteps
from hocket.runtime.update.sharding import check_sharing
from hocket.util.compatibility import Feature


class Device:
    """Executor of load, forward, backward, norm, step, drop and swaps of one device.

    The engine passes the store of the device's values. See the module's docstring.
    """

    def __init__(
        self,
        executable: Executable,
        number: int,
        on_loss: OnLoss | None = None,
        memory: MemoryManager | None = None,
        lane: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext(),
        guard: Guard | None = None,
    ) -> None:
        """Create the device with its stages.

        Weights are copied from the captured model, except those of shared stages (`Executable.shared`).

        Arguments:
            number: number of this device in the program.
            on_loss: called with the microbatch, its loss (a detached scalar tensor), the number of samples, and the
                weight of the loss in the mean of the batch; None to report no losses.
            memory: keeps memory within budgets; by default created as the plan requires.
            lane: returns the context for the work of a compute lane, such as its CUDA stream.
            guard: decides which steps are skipped; by default no step is skipped.

        Raises:
            MemoryExceeded: the weights do not fit.
            RefusedError: the optimizer cannot be sharded over replicas.
        """
        captured, layout, program = executable.captured, executable.layout, executable.program
        self.number, self.device, self.executable = number, torch.device(executable.device), executable
        self.program, self.layout, self.captured = program, layout, captured
        self.stream, self.guard = Stream(captured.job, layout.batches), guard or Guard()
        self.clipping = Clipping(captured.clip_grad_norm, program.stages, captured.clip_stage_norm)
        self.scaler = LossScaler() if captured.loss_scaled else None
        parts = split(captured, layout, number)
        _check_shards(captured.job, parts)
        self.swapping = executable.shared.swapping or self._swapper(memory)
        self.memory = None if self.swapping is None else self.swapping.memory
        self._swap_sizes = sizes_of(program, layout.swap) if layout.swap is not None and layout.swap.stages else None
        self.stages: dict[int, StageRunner] = {}
        for part in parts:
            with lane(part.shape.lane):
                runner = self.stages[part.number] = self._runner(part)
            if self.swapping is not None:
                self.swapping.settle(part.number, runner, new=part.number not in executable.shared.stages)
        self.model = ModelState(program.rule, self.stages, self.swapping)
        factors = LossFactors(layout.batches, program.rule, captured.job.loss_weight, self.scaler)
        weights = LossWeights(program.rule, self.stream)
        borders = Borders(captured, layout.batches, program, parts)
        swaps = self.swapping is not None
        self.microbatches = DeviceMicrobatches(self.stages, borders, factors, weights, swaps, on_loss)
        self.updates = OptimizerSteps(program, self.stages, factors, self.clipping, weights, self.guard)
        self._handlers: dict[Kind, Callable[[Instruction, Store], None]] = {
            Kind.LOAD: self.microbatches.load,
            Kind.FORWARD: self.microbatches.forward,
            Kind.NORM: self.updates.norm,
            Kind.STEP: self.updates.step,
            Kind.DROP: lambda instruction, store: None,
        }
        if self.swapping is not None:
            self._handlers |= dict.fromkeys(SWAPS, self.swapping.swap)

    def sharing(
        self,
        executable: Executable,
        on_loss: OnLoss,
        lane: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext(),
    ) -> "Device":
        """Create a device of another program, with the weights, buffers and memory manager of this one.

        The two never run at the same time.

        Arguments:
            executable: the program, with the same stages.
            on_loss, lane: see the constructor.
        """
        shared = SharedStages(self.stages, self.swapping)
        return Device(replace(executable, shared=shared), self.number, on_loss, lane=lane)

    @contextmanager
    def at_hand(self, stage: int) -> Iterator[StageRunner]:
        """Keep one stage's weights and optimizer state on the device inside this context.

        They may be changed there.
        """
        runner = self.stages[stage]
        with nullcontext() if self.swapping is None else self.swapping.at_hand(stage, runner):
            yield runner

    def _swapper(self, memory: MemoryManager | None) -> Swapper | None:
        """Create the swapper, and the memory manager if none is given and the plan needs one."""
        if memory is None and (self.program.swaps or self.layout.swap is not None):
            memory = MemoryManager(self.number, self.device, *self.layout.budgets(self.number))
        return None if memory is None else Swapper(memory, self.program.swaps)

    def _runner(self, part: StagePart) -> StageRunner:
        """Create the runner of a stage, with its own weights or with those of a shared stage."""
        shared = self.executable.shared.stages.get(part.number)
        if shared is not None:
            return shared.sharing(self.captured, part, self._sizes(part))
        compile = self.layout.compilers[part.number]
        return StageRunner(self.captured, part, self._sizes(part), self.device, self.number, compile)

    def _sizes(self, part: StagePart) -> tuple[int, ...]:
        """Return the different numbers of samples that a stage runs at once."""
        merged = part.shape.merged
        return tuple({self.layout.batches.samples(m, merged) for m in range(0, self.layout.batches.count, merged)})

    def start(self, position: int = 0) -> dict[Value, Any]:
        """Begin a segment: a run of prologue, some periods and epilogue.

        Arguments:
            position: number of samples trained on before the segment.

        Returns:
            The store of values at the beginning of the segment: weights (or shards), optimizer state, and permits to
                load ahead.
        """
        stream = Stream(self.captured.job, self.layout.batches, position)
        self.stream = stream
        self.microbatches.weights.begin(stream)
        self.guard.begin(stream)
        if self.scaler is not None:
            self.scaler.begin()
        if self.microbatches.inspector is not None:
            self.microbatches.inspector.stream = stream
        self.model.meet()
        if self.guard.policy == "skip":
            for runner in self.stages.values():
                runner.keep_buffers()
        found: dict[Value, Any] = {}
        for value in self.program.initial(self.number):
            if value.what is ValueKind.MARK:
                found[value] = None
                continue
            weights = self.stages[value.stage].weights
            found[value] = (
                weights.newest if value.what is ValueKind.WEIGHTS else weights
            )  # a shard is represented by its StageWeights
            if self.swapping is not None:
                found[value] = self.swapping.begin(value, self.stages[value.stage])
        return found

    def inspect(self) -> Inspector:
        """Skip all further optimizer steps, and check every tensor that layers compute.

        Returns:
            The inspector, which collects non-finite tensors.
        """
        found = self.microbatches.inspector = Inspector()
        self.guard.hold()
        for stage, runner in self.stages.items():
            runner.use_eager()
            with self.at_hand(stage):
                found.weights(stage, runner.weights.newest.own)
        return found

    def end(self, store: Mapping[Value, Any]) -> None:
        """End a segment; the given values are the device's state from now on.

        Arguments:
            store: values at the end, which `model` and the next segment use.
        """
        if self.swapping is not None:
            self.swapping.end(store)

    def execute(self, instruction: Instruction, store: Store, publish: Publish | None = None) -> None:
        """Run one instruction; its inputs must be in the store.

        Values that the instruction writes are added to the store, and values that it frees are removed.

        Arguments:
            publish: called with each bucket that is summed over devices, as soon as the backward has completed it.
        """
        handler = self._handlers.get(instruction.kind)
        if instruction.kind is Kind.BACKWARD:
            handler = partial(self.microbatches.backward, publish=publish)
        if handler is None:
            expected = "no swaps, as the program says" if instruction.kind in SWAPS else "compute only"
            raise ProgramError(f"device {self.number}: {instruction.name}", "on the compute lane", expected)
        if self.memory is not None and self._swap_sizes is not None and instruction.kind not in SWAPS:
            self.memory.make_room(self._swap_sizes.held(instruction))
        handler(instruction, store)
        if instruction.kind not in SWAPS:
            store.update((value, None) for value in instruction.writes if value.what is ValueKind.MARK)
            self.made(instruction, store)
            self.free(instruction, store)

    def made(self, instruction: Instruction, store: Store) -> None:
        """Register the outputs of an instruction with the memory manager, if there is one."""
        if self.swapping is not None:
            self.swapping.written(instruction, store)

    def came(self, value: Value, thing: Any) -> Any:
        """Return the store's object for a received value.

        If the device swaps, the value is also registered with the memory manager, and copied if necessary.
        """
        return thing if self.swapping is None else self.swapping.came(value, thing)

    def carried(self, thing: Any) -> Any:
        """Return the tensors to send for a value's object, also for a copy on the host."""
        return self.memory.carried(thing) if self.memory is not None and isinstance(thing, HostCopy) else thing

    def sent(self, value: Value) -> None:
        """Note that the send of a value is complete; its memory is no longer needed."""
        if self.memory is not None:
            (self.memory.freed if value.on_host else self.memory.sent)(value)

    def gave(self, value: Value, sending: bool) -> None:
        """Note that a value has left the store, for a transfer.

        Arguments:
            sending: True for a send; `sent` is called when the send is complete.
        """
        if self.memory is not None and not value.on_host:  # a host copy stays until it is sent
            self.memory.left(value, sending)

    def free(self, instruction: Instruction, store: Store) -> None:
        """Remove from the store the values that an instruction frees.

        If an output of the instruction was written in place into a value's memory, the output keeps that memory
        (hocket/program/order.py, `heir_of`). Otherwise memory of weights and of flat gradient buckets is pooled for
        later values of the stage. If the device swaps, the memory manager frees the memory instead.

        Arguments:
            store: values of this device.
        """
        if self.swapping is not None:
            self.swapping.freed(instruction)
            for value in instruction.frees:
                del store[value]
            return
        inherited = {heir_of(instruction, written) for written in instruction.writes}
        for value in instruction.frees:
            found = store.pop(value)
            if value in inherited:
                continue
            if value.what is ValueKind.WEIGHTS:
                self.stages[value.stage].weights.release(found)
            elif value.what is ValueKind.GATHERED:
                self.stages[value.stage].weights.dropped(value, last=not self.program.rule.trains)
            elif value.what in (ValueKind.ACCUMULATOR, ValueKind.REDUCED, ValueKind.PART, ValueKind.LENT):
                self.stages[value.stage].weights.buckets.recycle(found, elsewhere=value.what is ValueKind.LENT)


def _check_shards(job: Job, parts: Sequence[StagePart]) -> None:
    """Refuse an optimizer that cannot be sharded over the replicas of a stage."""
    for replicas, shard in {(len(part.shape.devices), part.shape.shard) for part in parts if part.shape.sharded}:
        check_sharing(job, replicas, Feature.SHARD_FULL if shard == "full" else Feature.SHARD_OPTIMIZER)

"""Evaluator: runs the evaluation program of one worker between two segments of the training.

The program is that of the plan's stages, forwards only (program/passes/evaluation.py). It runs on the engine of the
training, with its weights, its buffers and its connections. Microbatches have one size, and the last one has the rest
of the samples. A period needs one microbatch for each replica. If the data has fewer left, the first samples run again
in the other microbatches, and their losses do not count.

If the training swaps, its weights are on the host between segments. The evaluation swaps them in and drops them, within
the same budgets; the optimizer state stays on the host.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from hocket.errors import InternalError, RefusedError
from hocket.profiling.capture.captured import CapturedTensor
from hocket.program.check.check import prove
from hocket.program.instruction import Instruction
from hocket.program.microbatches import Microbatches
from hocket.program.passes.borders import batch_tensors, crossing, stage_shapes
from hocket.program.passes.evaluation import evaluated_stages, evaluation_program
from hocket.program.passes.swapping.evaluation_settings import evaluation_settings
from hocket.program.passes.swapping.settings import Swapping
from hocket.program.program import StageShape
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.evaluation.evaluated_model import EvaluatedModel, capture_evaluation
from hocket.runtime.evaluation.evaluation_job import EvaluationJob
from hocket.runtime.progress.heartbeat import Heartbeat, WorkerState
from hocket.runtime.stage.device import Device
from hocket.runtime.stage.executable import Executable

_PADDING_BYTES = 64  # at most, for each tensor of a message


def evaluation_executable(trained: Executable, name: str, microbatch_size: int) -> Executable:
    """Capture the model of a training program in evaluation mode; compile and prove its evaluation program.

    Arguments:
        trained: the training program; its job has an evaluation (`Job.evaluate`).
        name: name of the plan's strategy.
        microbatch_size: samples of a microbatch, unless the evaluation has another size.

    Raises:
        CaptureError: the model or a metric cannot be captured.
        RefusedError: averages to evaluate are sharded, or a stage would compute nothing in evaluation mode, or the
            evaluation needs more memory than a plan that swaps allows.
        ProgramError: the program is not legal.
    """
    job, layout = trained.captured.job, trained.layout
    evaluation = job.evaluate
    if evaluation is None:
        raise InternalError("the job has no evaluation")
    if evaluation.ema and any(shape.sharded and not shape.gathers for shape in layout.shapes):
        found = "a plan with shard: optimizer, in which a device has a shard of the averages"
        raise RefusedError("Evaluation.ema", found, "shard: none or full", "Plan with --shard none or --shard full.")
    samples = len(evaluation.data)
    batches = Microbatches.of(samples, min(evaluation.batch_size or microbatch_size, samples))
    sizes = sorted(set(batches.sizes), reverse=True)
    model = capture_evaluation(trained.captured, layout.cuts, EvaluationJob.of(job, evaluation), sizes)
    stages = evaluated_stages(stage_shapes(model.captured, model.cuts))
    swap, least = None, 1
    if layout.swap is not None:
        swap = _settings(layout.swap, stages, model, sizes[0] / max(layout.batches.sizes))
        least = min(trained.program.stride, batches.count)
    program = evaluation_program(name, stages, least, swap, layout.habits)
    prove(program)
    layout = replace(layout, batches=batches, cuts=model.cuts, shapes=program.stages, swap=swap)
    return Executable(model.captured, layout, program, trained.device, trained.division)


def _settings(swap: Swapping, stages: Sequence[StageShape], model: EvaluatedModel, growth: float) -> Swapping:
    """Settings of swapping for an evaluation, with the bytes of its own inputs and activations."""
    tensors = model.captured.tensors
    inputs_bytes = {s: _bytes(tensors[i] for i in indices) for s, indices in batch_tensors(tensors, model.cuts).items()}
    activations_bytes = {pair: _bytes(tensors[i] for i in own) for pair, own in crossing(tensors, model.cuts).items()}
    return evaluation_settings(swap, stages, inputs_bytes, activations_bytes, max(1.0, growth))


def _bytes(tensors: Iterable[CapturedTensor]) -> float:
    return float(sum(tensor.size_bytes + _PADDING_BYTES for tensor in tensors))


class EvaluationObserver:
    """Observer of an evaluation: it writes the worker's progress page, and lets all periods run."""

    def __init__(self, progress: Heartbeat) -> None:
        self._progress = progress
        self.step = 0

    def waits(self, instruction: Instruction) -> None:
        """Record that the compute lane waits for the inputs of an instruction."""
        self._progress.at(instruction, self.step, instruction.index, WorkerState.WAITING)

    def runs(self, instruction: Instruction) -> None:
        """Record that an instruction starts."""
        self._progress.at(instruction, self.step, instruction.index, WorkerState.RUNNING)

    def goes_on(self, periods: int) -> bool:
        """Return True: an evaluation is not stopped in between."""
        return True

    def loss(self, microbatch: int, value: float, samples: int, weight: float) -> None:
        """Do nothing: the evaluator gets the losses from the device."""


class Evaluator:
    """Evaluations of one worker, with the weights of its training engine."""

    def __init__(self, engine: Worker, executable: Executable, progress: Heartbeat) -> None:
        """Create the evaluator; a collective call of all workers.

        Arguments:
            engine: engine of the training.
            executable: the evaluation program, from `evaluation_executable`.
            progress: the worker's progress page.
        """
        job = executable.captured.job
        if not isinstance(job, EvaluationJob):
            raise InternalError("the program is not that of an evaluation")
        self._trained, self._observer, self._count = (
            engine,
            EvaluationObserver(progress),
            executable.layout.batches.count,
        )
        self._losses: list[tuple[int, Tensor, float]] = []
        self._numbers, self._averages = 1 + len(job.evaluation.metrics), job.evaluation.ema
        with job.evaluating():
            self._engine = engine.sharing(executable, self._observer, self._note)
        # The training writes these buffers, each replica its own: running statistics.
        changed = engine.device.captured.graph.trace.changed_buffers
        self._written: dict[int, list[str]] = {}
        for s, runner in self._engine.device.stages.items():
            if len(runner.part.shape.devices) > 1:
                self._written[s] = sorted(changed & runner.buffers.keys())
                runner.copy_buffers(self._written[s])
                if self._engine.device.swapping is not None:  # an activation may be a view of a buffer
                    self._engine.device.swapping.settle(s, runner, new=False)

    @property
    def peak_memory_bytes(self) -> int:
        """Peak bytes of tensors on this device during evaluations."""
        return self._engine.peak_memory_bytes

    def run(self, step: int) -> tuple[float, list[float]]:
        """Evaluate the weights of the training engine; a collective call of all workers.

        Arguments:
            step: number of steps trained.

        Returns:
            Sum of the loss weights over the microbatches of which this worker has computed the loss, and for the loss
            and each metric the sum of value times weight.
        """
        self._observer.step = max(0, step - 1)
        self._trained.device.model.meet()
        self._agree()
        self._losses.clear()
        with averaged(self._trained.device) if self._averages else nullcontext():
            self._engine.run(-(-self._count // self._engine.program.stride))
        counted = [
            (tensor, weight) for number, tensor, weight in sorted(self._losses, key=lambda row: row[0]) if weight
        ]
        self._losses.clear()
        if not counted:
            return 0.0, [0.0] * self._numbers
        rows = torch.stack([tensor for tensor, _ in counted]).cpu()
        weights = torch.tensor([weight for _, weight in counted], dtype=torch.float64)
        return float(weights.sum()), (weights[:, None] * rows).sum(0).tolist()

    def _note(self, microbatch: int, loss: Tensor, samples: int, weight: float) -> None:
        if microbatch < self._count:  # later ones only fill the last period
            self._losses.append((microbatch, loss, weight))

    def _agree(self) -> None:
        """Give all replicas of a stage the buffers of its first replica, as a checkpoint has them."""
        devices, width = self._engine.program.devices, self._engine.layout.tensor
        member = dist.get_rank() % width
        for s, names in self._written.items():
            runner = self._engine.device.stages[s]
            first, *others = (devices.index(d) * width + member for d in sorted(runner.part.shape.devices))
            for name in names:
                own, trained = runner.buffers[name], self._trained.device.stages[s].buffers[name]
                if dist.get_rank() != first:
                    dist.recv(own, first)
                    continue
                own.copy_(trained)
                for other in others:
                    dist.send(own, other)


@contextmanager
def averaged(device: Device) -> Iterator[None]:
    """Let the weights of a device have the values of their averages inside this context.

    A weight of the same dtype changes places with its average, so no second copy of the weights is needed.
    """
    kept = dict[int, list[Tensor | None]]()
    at = device.device if device.swapping is None else torch.device("cpu")
    for stage in device.stages:
        with device.at_hand(stage) as runner:
            pairs = list(runner.weights.averages())
            kept[stage] = [weight.to(at, copy=True) if weight.dtype != one.dtype else None for weight, one in pairs]
            _exchange(pairs)
    try:
        yield
    finally:
        for stage in device.stages:
            with device.at_hand(stage) as runner:
                pairs = list(runner.weights.averages())
                _exchange(pairs)
                for (weight, _), old in zip(pairs, kept[stage], strict=True):
                    if old is not None:
                        with torch.no_grad():
                            weight.copy_(old)


@torch.no_grad()
def _exchange(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Let weights and averages of the same dtype change places; copy the other averages."""
    for weight, average in pairs:
        old = weight.clone() if weight.dtype == average.dtype else None
        weight.copy_(average)
        if old is not None:
            average.copy_(old)

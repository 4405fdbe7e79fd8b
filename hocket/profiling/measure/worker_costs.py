"""Rehearsal of one worker, alone, with the undivided model.

It does everything that a worker does for each microbatch, without communication.

Rules of this file: a load, a forward, a backward that accumulates into existing gradients, and an optimizer step
follow one another on fresh samples, so that each finds the caches as in training. A step that keeps the old weights
copies them first, as runtime/update/weight_versions.py does. The job's own model is not changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from math import inf

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hocket.errors import InputError
from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.checks.index_errors import naming_samples
from hocket.profiling.job.clip import scale_down, squares_of
from hocket.profiling.job.derived_model.precision import masters
from hocket.profiling.job.optimizer import optimizer_of
from hocket.profiling.measure.memory import seed_of

Clock = Callable[[], float]


class Marks:
    """Time marks: from the clock on a CPU, from stream events on a CUDA device."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.device, self.clock = device, clock
        self.marks: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Record the present moment: of the clock on a CPU, of the stream on a CUDA device."""
        if self.device.type != "cuda":
            self.marks.append(self.clock())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        self.marks.append(event)

    def seconds(self) -> list[float]:
        """Return the seconds between consecutive marks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        out = []
        for a, b in pairwise(self.marks):
            if isinstance(a, torch.cuda.Event) and isinstance(b, torch.cuda.Event):
                out.append(a.elapsed_time(b) / 1e3)
            elif isinstance(a, float) and isinstance(b, float):
                out.append(b - a)
        return out


class StepMode(Enum):
    """Mode of an optimizer step.

    IN_PLACE updates the weights. COPYING updates a copy and keeps the old weights. LEAST updates the smallest
    parameter alone, which shows the fixed cost of a step.
    """

    IN_PLACE = 0
    COPYING = 1
    LEAST = 2


@dataclass(frozen=True)
class WorkerSeconds:
    """Seconds of one microbatch and one step."""

    load: float
    forward: float
    backward: float
    step: float


class WorkerCosts:
    """The undivided model on one device, for microbatches of one size.

    Attributes:
        stage: one stage with all layers.
        masters: the parameters that the optimizer updates, by global name.
        optimizer: the job's optimizer.
    """

    def __init__(self, captured: Captured, size: int, device: torch.device) -> None:
        """Put the undivided model on the device, with leaves for its parameters.

        Arguments:
            captured: the job, captured for this microbatch size.
            size: samples of a microbatch.

        Raises:
            InputError: no parameter requires a gradient.
        """
        self.captured, self.size, self.device = captured, size, device
        self.stage = Stage(captured, range(len(captured.layers)), device=device)
        self._leaves = {name: p for name, p in self.stage.parameters().items() if p.requires_grad}
        if not self._leaves:
            raise InputError("Job.model", "no parameter that requires a gradient", "at least one")
        # With mixed precision, master weights are separate tensors, and a step ends with casts of them.
        apart = masters(captured.job, self._leaves, device)
        self._apart = apart is not None
        self.masters = {name: nn.Parameter(p.detach()) for name, p in self._leaves.items()}
        if apart is not None:
            self.masters = {name: nn.Parameter(p.clone()) for name, p in apart.items()}
        self._slots = ([p.data for p in self._leaves.values()], [p.detach().clone() for p in self._leaves.values()])
        self.optimizer = optimizer_of(captured.job, self.masters)
        self._least = min(self.masters.values(), key=torch.Tensor.numel)
        self._gradients: list[Tensor | None] = [None] * len(self._leaves)
        self._loaded = 0
        self._indices: list[int] = []
        # A norm over each stage costs as much as one over the model: both pass once over all gradients.
        # With a loss scale, the norm is computed and the gradients are divided in any case.
        self._clip = captured.job.clip_grad_norm or (inf if captured.loss_scaled else None)

    def once(self, clock: Clock, way: StepMode = StepMode.IN_PLACE) -> WorkerSeconds:
        """Run one microbatch and one step.

        Arguments:
            clock: clock in seconds, for CPUs.
        """
        start = clock()
        batch = self._load()
        load_s = clock() - start
        marks = Marks(self.device, clock)
        marks.mark()
        with naming_samples(self._indices, batch):
            root = get_gradient_edge(self.stage.run(batch, seed_of)[self.captured.loss_tensor])
        marks.mark()
        self._backward(root)
        del root
        marks.mark()
        self._step(way)
        marks.mark()
        with torch.no_grad():  # the next backward accumulates into gradients that do not grow without bound
            torch._foreach_zero_([gradient for gradient in self._gradients if gradient is not None])
        return WorkerSeconds(load_s, *marks.seconds())

    def _load(self) -> dict[str, Tensor]:
        """Load samples that were not used recently, as runtime/stage/device.py does."""
        job = self.captured.job
        position = self._loaded * self.size
        batch = job.batch_at(position, self.size)
        self._indices = job.indices_at(position, self.size)
        self._loaded += 1
        loaded = self.captured.inputs(batch, self.device)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return loaded

    def _backward(self, root: GradientEdge) -> None:
        """Run a backward that accumulates into the gradients of earlier ones.

        Between two backwards this object holds the gradients, and the parameters have none.
        """
        for leaf, gradient in zip(self._leaves.values(), self._gradients, strict=True):
            leaf.grad = gradient
        meta = root.node._input_metadata[root.output_nr]
        torch.autograd.backward([root], [torch.tensor(1.0, dtype=meta.dtype, device=self.device)])
        self._gradients = [leaf.grad for leaf in self._leaves.values()]
        for leaf in self._leaves.values():
            leaf.grad = None

    def _cast(self, slot: list[Tensor], way: StepMode) -> None:
        """Copy the master weights into the compute weights `slot`, cast to their dtype."""
        with torch.no_grad():
            pairs = [
                (tensor, master.data)
                for tensor, master in zip(slot, self.masters.values(), strict=True)
                if way is not StepMode.LEAST or master is self._least
            ]
            torch._foreach_copy_([tensor for tensor, _ in pairs], [master for _, master in pairs])

    def _step(self, way: StepMode) -> None:
        current, spare = self._slots
        slot = spare if way is StepMode.COPYING else current
        with torch.no_grad():
            if way is StepMode.COPYING and not self._apart:
                torch._foreach_copy_(spare, current)
            for master, gradient, tensor in zip(self.masters.values(), self._gradients, slot, strict=True):
                if not self._apart:
                    master.data = tensor
                master.grad = gradient if way is not StepMode.LEAST or master is self._least else None
        if self._clip is not None:
            gradients = [master.grad for master in self.masters.values() if master.grad is not None]
            scale_down(gradients, squares_of(gradients), self._clip)
        self.optimizer.step()
        if self._apart:
            self._cast(slot, way)
        for master in self.masters.values():
            master.grad = None

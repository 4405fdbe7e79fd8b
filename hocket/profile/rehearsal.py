"""Rehearsal: one worker with the undivided model and nobody to talk to, which does what a worker does for each microbatch.

Rules of this file: a load, a forward, a backward that adds to the gradients that are there, and an optimizer step follow one
another on fresh samples, so that every one of them finds the caches as in training; a step that keeps the old weights
copies them first, as run/weights.py does. The job's own model is not changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from hocket.errors import InputError
from hocket.profile.capture import Captured, Stage
from hocket.profile.job import order
from hocket.profile.memory import seed_of

Clock = Callable[[], float]


class Marks:
    """Marks in time: on a CPU from the clock, on a CUDA device by events in its stream."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self.device, self.clock = device, clock
        self.marks: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Mark now."""
        if self.device.type != "cuda":
            self.marks.append(self.clock())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        self.marks.append(event)

    def seconds(self) -> list[float]:
        """Seconds between each two marks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        out = []
        for a, b in pairwise(self.marks):
            if isinstance(a, torch.cuda.Event) and isinstance(b, torch.cuda.Event):
                out.append(a.elapsed_time(b) / 1e3)
            elif isinstance(a, float) and isinstance(b, float):
                out.append(b - a)
        return out


@dataclass(frozen=True)
class Seconds:
    """What one microbatch took; `step` with a copy of the weights first where that was asked for."""

    load: float
    forward: float
    backward: float
    step: float


class Rehearsal:
    """The undivided model on one device, for microbatches of one size.

    Attributes:
        stage: all layers.
        masters: the parameters that the optimizer sees, by global name.
        optimizer: the job's own.
    """

    def __init__(self, captured: Captured, size: int, device: torch.device) -> None:
        """Make a worker.

        Arguments:
            captured: for microbatches of this many samples.

        Raises:
            InputError: nothing to train.
        """
        self.captured, self.size, self.device = captured, size, device
        self.stage = Stage(captured, range(len(captured.layers)), device=device)
        self._leaves = {name: p for name, p in self.stage.parameters().items() if p.requires_grad}
        if not self._leaves:
            raise InputError("Job.model", "no parameter that requires a gradient", "at least one")
        self.masters = {name: nn.Parameter(p.detach()) for name, p in self._leaves.items()}
        self._slots = ([p.data for p in self._leaves.values()], [p.detach().clone() for p in self._leaves.values()])
        self.optimizer = captured.job.optimizer(list(self.masters.values()))
        self._loaded = 0

    def once(self, clock: Clock, copies: bool = False) -> Seconds:
        """One microbatch and a step.

        Arguments:
            clock: seconds that pass, for CPUs.
            copies: the step keeps the old weights.
        """
        start = clock()
        batch = self._load()
        load_s = clock() - start
        marks = Marks(self.device, clock)
        marks.mark()
        out = self.stage.run(batch, seed_of)
        marks.mark()
        torch.autograd.backward([out[self.captured.loss_tensor]])
        del out
        marks.mark()
        self._step(copies)
        marks.mark()
        with torch.no_grad():  # the next backward finds gradients to add to, but not ever larger ones
            torch._foreach_zero_([p.grad for p in self._leaves.values() if p.grad is not None])
        return Seconds(load_s, *marks.seconds())

    def _load(self) -> dict[str, Tensor]:
        """Samples that were not used lately, as run/device.py makes them."""
        job, names = self.captured.job, self.captured.batch_names
        batch = job.batch(order(self._loaded, self.size, len(job.data), job.seed))
        self._loaded += 1
        loaded = {names[key]: value.to(self.device) for key, value in batch.items() if key in names}
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return loaded

    def _step(self, copies: bool) -> None:
        current, spare = self._slots
        with torch.no_grad():
            if copies:
                torch._foreach_copy_(spare, current)
            for master, leaf, tensor in zip(
                self.masters.values(), self._leaves.values(), spare if copies else current, strict=True
            ):
                master.data, master.grad = tensor, leaf.grad
        self.optimizer.step()
        for master in self.masters.values():
            master.grad = None

"""Timing layers and undivided stages on a CPU or a CUDA device.

Rules of this file: the clock is an argument; layers are timed one after the other inside a whole forward and backward,
so that caches are as in training; iterations of layers and of the undivided model take turns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from hocket.profile.capture import Captured, Stage
from hocket.profile.memory import border, collect, detached, seed_of

Clock = Callable[[], float]

WARM_UP = 2
LEAST, MOST = 5, 60


@dataclass
class Times:
    """Seconds of each iteration: a row per iteration, a column per layer; and of the undivided model."""

    forward: list[list[float]] = field(default_factory=list)
    backward: list[list[float]] = field(default_factory=list)
    whole_forward: list[float] = field(default_factory=list)
    whole_backward: list[float] = field(default_factory=list)


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


def _layers_once(
    captured: Captured, stages: Sequence[Stage], batch: dict[str, Tensor], device: torch.device, clock: Clock
) -> tuple[list[float], list[float]]:
    """Seconds of each layer's forward and backward, all layers in one pass."""
    made = dict(batch)
    runs = []
    forward: list[float] = []
    timers = []
    for stage in stages:
        given = detached(captured, stage, made)
        marks = Marks(device, clock)
        marks.mark()
        out = stage.run(given, seed_of)
        marks.mark()
        timers.append(marks)
        runs.append((given, out))
        made.update(out)
    forward = [marks.seconds()[0] for marks in timers]
    del made
    grads: dict[str, Tensor] = {}
    timers = []
    while runs:
        given, out = runs.pop()
        ends, ways = border(captured, out, grads)
        marks = Marks(device, clock)
        marks.mark()
        if ends:
            torch.autograd.backward(ends, ways)
        marks.mark()
        timers.append(marks)
        del ends, ways, out
        collect(given, grads)
    return forward, [marks.seconds()[0] for marks in timers][::-1]


def _whole_once(
    captured: Captured, stage: Stage, batch: dict[str, Tensor], device: torch.device, clock: Clock
) -> tuple[float, float]:
    """Seconds of the undivided forward and backward."""
    marks = Marks(device, clock)
    marks.mark()
    out = stage.run(batch, seed_of)
    marks.mark()
    torch.autograd.backward([out[captured.loss_tensor]])
    marks.mark()
    forward, backward = marks.seconds()
    return forward, backward


def timed(
    captured: Captured,
    single: Sequence[Stage],
    whole: Stage,
    batch: dict[str, Tensor],
    device: torch.device,
    budget_s: float,
    clock: Clock,
) -> Times:
    """Iterations of both kinds in turns, so that a slow spell of the machine falls on both."""
    times = Times()
    start = clock()
    for k in range(WARM_UP + MOST):
        if k == WARM_UP:
            start_measured = clock()
        if k >= WARM_UP + LEAST:
            now = clock()
            each = (now - start_measured) / (k - WARM_UP)
            if now - start + each > budget_s:
                break
        forward, backward = _layers_once(captured, single, batch, device, clock)
        whole_forward, whole_backward = _whole_once(captured, whole, batch, device, clock)
        if k >= WARM_UP:
            times.forward.append(forward)
            times.backward.append(backward)
            times.whole_forward.append(whole_forward)
            times.whole_backward.append(whole_backward)
    return times

"""Timing of layers and of the undivided model, on a CPU or a CUDA device.

Rules of this file: the clock is an argument. Layers are timed one after the other inside a whole forward and
backward, so that caches are as in training. Iterations of layers and of the undivided model alternate. Microbatch
sizes are timed in turns, so that a slow spell of the machine does not affect only one of them, and each round adds to
the times of earlier rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.measure.memory import collect, seed_of
from hocket.profiling.measure.worker_costs import Clock, Marks, StepMode, WorkerCosts

WARM_UP = 2
ROUNDS = 3
LEAST, MOST = 2, 20  # iterations per round


@dataclass
class Times:
    """Measured seconds of each timed iteration.

    `forward` and `backward` have one row per iteration and one column per layer.

    Attributes:
        whole_forward, whole_backward: seconds of the undivided model.
        load: seconds to load the microbatch.
        step: seconds of the optimizer step, by mode.
        rounds: number of iterations before each round.
    """

    forward: list[list[float]] = field(default_factory=list)
    backward: list[list[float]] = field(default_factory=list)
    whole_forward: list[float] = field(default_factory=list)
    whole_backward: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    step: dict[StepMode, list[float]] = field(default_factory=lambda: {way: [] for way in StepMode})
    rounds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class LayerTimer:
    """Layers of a job, timed on one microbatch.

    Attributes:
        captured: the job, captured for the microbatch's size.
        batch: the microbatch on the device, by the names of the captured tensors.
        clock: clock in seconds, for CPUs.
    """

    captured: Captured
    batch: dict[str, Tensor]
    device: torch.device
    clock: Clock

    def once(self, stages: Sequence[Stage]) -> tuple[list[float], list[float]]:
        """Measure the forward and backward seconds of each stage in one pass."""
        made = dict(self.batch)
        runs = []
        forward: list[float] = []
        timers = []
        for stage in stages:
            given = stage.detached(made)
            marks = Marks(self.device, self.clock)
            marks.mark()
            out = stage.run(given, seed_of)
            marks.mark()
            timers.append(marks)
            runs.append((stage, given, out))
            made.update(out)
        forward = [marks.seconds()[0] for marks in timers]
        del made
        grads: dict[str, Tensor] = {}
        timers = []
        while runs:
            stage, given, out = runs.pop()
            ends, ways = stage.roots(out, grads)
            marks = Marks(self.device, self.clock)
            marks.mark()
            if ends:
                torch.autograd.backward(ends, ways)
            marks.mark()
            timers.append(marks)
            del ends, ways, out
            collect(given, grads)
        return forward, [marks.seconds()[0] for marks in timers][::-1]


def timed(timer: LayerTimer, single: Sequence[Stage], whole: WorkerCosts, budget_s: float, times: Times) -> None:
    """Time iterations of layers and of the undivided model in turns.

    Modes of the optimizer step alternate too, so that slow spells affect all equally.

    Arguments:
        single: a stage for each layer.
        whole: the undivided model.
        budget_s: approximate seconds of this round; at least `LEAST` iterations run.
        times: receives the seconds.
    """
    ways, clock = tuple(StepMode), timer.clock
    times.rounds.append(len(times.whole_forward))
    start = clock()
    for k in range(WARM_UP + MOST):
        if k == WARM_UP:
            start_measured = clock()
        if k >= WARM_UP + LEAST:
            now = clock()
            each = (now - start_measured) / (k - WARM_UP)
            if now - start + each > budget_s:
                break
        forward, backward = timer.once(single)
        way = ways[len(times.forward) % len(ways)] if k >= WARM_UP else StepMode.IN_PLACE
        seconds = whole.once(clock, way)
        if k >= WARM_UP:
            times.forward.append(forward)
            times.backward.append(backward)
            times.whole_forward.append(seconds.forward)
            times.whole_backward.append(seconds.backward)
            times.load.append(seconds.load)
            times.step[way].append(seconds.step)


def deviation(seconds: Sequence[float], rounds: Sequence[int]) -> float:
    """Estimate the standard deviation among replicas that run at the same time.

    The estimate uses differences of consecutive measurements. Two normal values differ by 2 / sqrt(pi) standard
    deviations on average, so the mean difference gives the deviation. Slow drift, which all replicas share, does not
    count, and a few disturbed values have little weight.

    Arguments:
        seconds: consecutive measurements.
        rounds: indices at which rounds begin. Differences between rounds are left out.
    """
    first = set(rounds)
    steps = [abs(b - a) for k, (a, b) in enumerate(pairwise(seconds), start=1) if k not in first]
    return math.sqrt(math.pi) / 2 * fmean(steps) if steps else 0.0

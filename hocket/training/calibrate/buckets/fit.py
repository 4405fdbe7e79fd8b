"""Fit of the contention model to training with random buckets.

The workers' measurements give the points of the fit. The fitted model is then compared with whole measured backwards.
Clocks of different workers are never compared. Means are over the middle half of the steps of a draw. Waits in an
all-reduce for a slower worker count as part of the all-reduce, because the model has no other term for them. This file
does not import torch.

Source: LIBRA (Liu et al. 2023), sections III.A and V.B.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any, ClassVar, NamedTuple, TypeVar

from hocket.cost.buckets.fit import Computed, Fitted, Moved, fit
from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel

T = TypeVar("T")
_LEAST_SHARE = 0.05
"""Minimum overlapping share of a backward or all-reduce; with less, noise dominates."""
_HELD_OUT = 4
"""Interval of held-out draws: every fourth draw with several buckets is predicted, not fitted."""


@dataclass(frozen=True)
class OverlapStep:
    """One step of one worker, in seconds on its clock.

    Attributes:
        backward: (begin, end).
        arrivals: (parameter name, time of its gradient), in order of time.
        sums: (begin, end) of each bucket's all-reduce.
    """

    backward: tuple[float, float]
    arrivals: tuple[tuple[str, float], ...]
    sums: tuple[tuple[float, float], ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Noted:
    """Measurements of one draw by one worker.

    Attributes:
        buckets_bytes: bytes of each bucket.
        threads: communication threads of each bucket.
        names: parameter names of each bucket.
        steps: measured steps.
    """

    buckets_bytes: tuple[float, ...]
    threads: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]
    steps: tuple[OverlapStep, ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


class OverlapRun(NamedTuple):
    """One draw: seconds from the backward's start to the last all-reduce's end."""

    buckets: int
    threads: tuple[int, ...]
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


class OverlapMeasurement(NamedTuple):
    """Result of a measurement of overlap.

    Attributes:
        fitted: model fitted to all draws.
        runs: all draws, with predictions of that model.
        held_out: some draws, with predictions of a model that was fitted without them.
        alone: each worker's backward without communication.
    """

    fitted: Fitted
    runs: tuple[OverlapRun, ...]
    held_out: tuple[OverlapRun, ...]
    alone: tuple["PlainBackward", ...]

    @property
    def error(self) -> float:
        """Mean absolute error of backward times; the larger of fitted and held-out draws."""
        return max(mean(abs(run.error) for run in runs) for runs in (self.runs, self.held_out) if runs)

    @property
    def backward_s(self) -> float:
        """Time of a backward without concurrent communication, in seconds."""
        return mean(own.end_s for own in self.alone)


Draws = Sequence[tuple[Noted, ...]]
"""Measurements by draw, then by worker."""


def measured(notes: Sequence[Sequence[Noted]]) -> OverlapMeasurement:
    """Fit a model to the measurements of all workers.

    Arguments:
        notes: measurements by worker, then by draw.

    Raises:
        InputError: too few all-reduces or computations overlapped with the other.
    """
    draws = list(zip(*notes, strict=True))
    workers, alone = len(notes), _alone(draws)
    several = [k for k, noted in enumerate(draws) if len(noted[0].threads) > 1]
    apart = set(several[_HELD_OUT - 1 :: _HELD_OUT])
    held_out: tuple[OverlapRun, ...] = ()
    if apart:
        seen = [noted for k, noted in enumerate(draws) if k not in apart]
        blind = _fit(seen, alone, workers).model
        held_out = tuple(foretold(draws[k], alone, blind) for k in sorted(apart))
    fitted = _fit(draws, alone, workers)
    threads = tuple(sorted({count for noted in draws for count in noted[0].threads}))
    fitted = fitted._replace(model=replace(fitted.model, threads=threads))
    runs = tuple(foretold(noted, alone, fitted.model) for noted in draws)
    found = OverlapMeasurement(fitted, runs, held_out, tuple(alone))
    return found._replace(fitted=fitted._replace(model=replace(fitted.model, error=round(found.error, 4))))


class PlainBackward(NamedTuple):
    """One worker's backward without communication.

    Attributes:
        arrival_s: time of each gradient after the backward's begin.
        end_s: time of the end after the begin.
    """

    arrival_s: dict[str, float]
    end_s: float


def _alone(draws: Draws) -> list[PlainBackward]:
    found = []
    for worker in range(len(draws[0])):
        steps = [step for noted in draws if len(noted[worker].threads) == 1 for step in noted[worker].steps]
        if not steps:
            raise InputError("measurements", "no backward pass without concurrent all-reduces", "draws with one bucket")
        times: dict[str, list[float]] = {}
        for step in steps:
            for name, at_s in step.arrivals:
                times.setdefault(name, []).append(at_s - step.backward[0])
        ends = [step.backward[1] - step.backward[0] for step in steps]
        found.append(PlainBackward({name: median(of) for name, of in times.items()}, median(ends)))
    return found


def _fit(draws: Draws, alone: Sequence[PlainBackward], workers: int) -> Fitted:
    computed = [one for noted in draws for worker, own in enumerate(noted) for one in _computed(own, alone[worker])]
    moved = [one for noted in draws for one in _moved(noted)]
    return fit(computed, moved, workers)


def _computed(noted: Noted, alone: PlainBackward) -> Iterator[Computed]:
    """Yield the backward up to its last gradient; means over the middle half of steps."""
    spans = sorted(noted.steps, key=lambda step: step.arrivals[-1][1] - step.backward[0])
    middle = _middle(spans)
    whole_s, beside_s = 0.0, dict.fromkeys(sorted(set(noted.threads)), 0.0)
    for step in middle:
        end_s = step.arrivals[-1][1]
        whole_s += (end_s - step.backward[0]) / len(middle)
        for (begin_s, over_s), threads in zip(step.sums, noted.threads, strict=True):
            beside_s[threads] += max(0.0, min(over_s, end_s) - begin_s) / len(middle)
    alone_s = max(alone.arrival_s.values())
    if sum(beside_s.values()) >= _LEAST_SHARE * alone_s:
        beside_s = {threads: seconds for threads, seconds in beside_s.items() if seconds > 0}
        yield Computed(beside_s, whole_s - sum(beside_s.values()), alone_s)


def _moved(noted: Sequence[Noted]) -> Iterator[Moved]:
    """Yield each bucket's all-reduce, as means over the middle half of all steps."""
    one = noted[0]
    for bucket, threads in enumerate(one.threads):
        if not one.buckets_bytes[bucket]:
            continue
        times = []
        for step in (step for own in noted for step in own.steps):
            (begin_s, over_s), end_s = step.sums[bucket], step.arrivals[-1][1]
            beside_s = max(0.0, min(over_s, end_s) - begin_s)
            times.append((over_s - begin_s, beside_s))
        middle = _middle(sorted(times))
        whole_s, beside_s = (mean(of) for of in zip(*middle, strict=True))
        beside_s = beside_s if beside_s >= _LEAST_SHARE * whole_s else 0.0
        yield Moved(threads, one.buckets_bytes[bucket], beside_s, whole_s - beside_s)


def _middle(ranked: Sequence[T]) -> Sequence[T]:
    """Return the middle half of a sorted sequence."""
    return ranked[len(ranked) // 4 : max(1, len(ranked) - len(ranked) // 4)]


def foretold(noted: Sequence[Noted], alone: Sequence[PlainBackward], model: OverlapModel) -> OverlapRun:
    """Combine the measured time of a draw with a model's prediction."""
    measured_s = median(
        max(step.sums[-1][1], step.backward[1]) - step.backward[0] for own in noted for step in own.steps
    )
    ready = [_ready(own, by_itself) for own, by_itself in zip(noted, alone, strict=True)]
    computes_s = [after - before for before, after in pairwise((0.0, *map(mean, zip(*ready, strict=True))))]
    one = noted[0]
    predicted_s = model.backward_s(one.buckets_bytes, computes_s, one.threads)
    return OverlapRun(len(one.threads), one.threads, measured_s, predicted_s)


def _ready(noted: Noted, alone: PlainBackward) -> list[float]:
    """Return the seconds from the begin of a backward to the last gradient of each bucket.

    Arguments:
        noted: measurements with the buckets.
        alone: gradient times of the same worker's backward, measured without communication.
    """
    found = [0.0]
    for names in noted.names:
        found.append(max([found[-1], *(alone.arrival_s[name] for name in names if name in alone.arrival_s)]))
    return found[1:]

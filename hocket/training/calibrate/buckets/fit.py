"""Fit of the contention model to training with random buckets.

A draw is one random choice of gradient buckets and of the communication threads of each bucket. The workers'
measurements of all draws give the points of the fit. The fitted model is then compared with whole measured backwards.
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
"""Minimum share of a backward or all-reduce that overlaps; with less, noise dominates."""
_HELD_OUT = 4
"""Interval of held-out draws: every fourth draw with several buckets is predicted, not fitted."""


@dataclass(frozen=True)
class OverlapStep:
    """One step of one worker, in seconds on its clock.

    Attributes:
        backward: (begin, end) of the backward.
        arrivals: (parameter name, time at which its gradient was computed), in order of time.
        sums: (begin, end) of each bucket's all-reduce.
    """

    backward: tuple[float, float]
    arrivals: tuple[tuple[str, float], ...]
    sums: tuple[tuple[float, float], ...]

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Noted:
    """Measurements of one draw by one worker.

    Each tuple but `steps` has an entry for each bucket of the draw.

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
    """Measured and predicted time of one draw.

    Attributes:
        buckets: number of buckets.
        threads: communication threads of each bucket.
        measured_s: seconds from the start of the backward to the end of the last all-reduce.
        predicted_s: prediction of the same time.
    """

    buckets: int
    threads: tuple[int, ...]
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative error of the prediction, negative if it is too short."""
        return self.predicted_s / self.measured_s - 1


class OverlapMeasurement(NamedTuple):
    """Result of a measurement of overlap.

    Attributes:
        fitted: contention model that was fitted to all draws.
        runs: all draws, with predictions of this model.
        held_out: some draws, with predictions of a model that was fitted without them.
        alone: backward of each worker without concurrent communication.
    """

    fitted: Fitted
    runs: tuple[OverlapRun, ...]
    held_out: tuple[OverlapRun, ...]
    alone: tuple["PlainBackward", ...]

    @property
    def error(self) -> float:
        """Mean absolute error of predictions, relative; the larger of runs and held_out."""
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
        InputError: too few measurements of one kind (`fit` of cost/buckets/fit.py), or no draw with one bucket.
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
    """One worker's backward without concurrent communication.

    Attributes:
        arrival_s: seconds from the start of the backward to each gradient, by parameter name.
        end_s: seconds from the start of the backward to its end.
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
    """Yield the backward of a draw up to its last gradient, if enough of it overlaps.

    Times are means over the middle half of the steps.
    """
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
    """Yield the all-reduce of each bucket of a draw.

    Times are means over the middle half of the steps of all workers.
    """
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
    """Return the middle half of a sorted sequence: all but the lowest and the highest quarter.

    A quarter is rounded down to whole elements.
    """
    return ranked[len(ranked) // 4 : max(1, len(ranked) - len(ranked) // 4)]


def foretold(noted: Sequence[Noted], alone: Sequence[PlainBackward], model: OverlapModel) -> OverlapRun:
    """Return the measured time of a draw, and a model's prediction.

    Arguments:
        noted: the draw's measurements by worker.
        alone: backward of each worker without concurrent communication.
        model: contention model.
    """
    measured_s = median(
        max(step.sums[-1][1], step.backward[1]) - step.backward[0] for own in noted for step in own.steps
    )
    ready = [_ready(own, by_itself) for own, by_itself in zip(noted, alone, strict=True)]
    computes_s = [after - before for before, after in pairwise((0.0, *map(mean, zip(*ready, strict=True))))]
    one = noted[0]
    predicted_s = model.backward_s(one.buckets_bytes, computes_s, one.threads)
    return OverlapRun(len(one.threads), one.threads, measured_s, predicted_s)


def _ready(noted: Noted, alone: PlainBackward) -> list[float]:
    """Return the seconds from the backward's start to each bucket's last gradient.

    Arguments:
        noted: measurements of one worker, for the names in each bucket.
        alone: gradient times of the same worker's backward, measured without concurrent communication.
    """
    found = [0.0]
    for names in noted.names:
        found.append(max([found[-1], *(alone.arrival_s[name] for name in names if name in alone.arrival_s)]))
    return found[1:]

"""Fit of an `OverlapModel` (hardware/overlap.py) to measured overlap of computation and all-reduces.

Computation and all-reduces that run at the same time slow each other down. "Beside" means at the same time as the other
kind of task, "apart" or "alone" without it. Communication threads are the threads that move an all-reduce.

Rules of this file: errors are relative to the measured times, so that short and long tasks weigh the same. Startup and
rates of all-reduces are fitted first, with one rate for each number of communication threads; then the curve through
these rates.
Source: LIBRA (Liu et al. 2023), section III.A and Algorithm 2. Equation numbers in this file are of this paper.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hocket.errors import InputError
from hocket.hardware.overlap import EXPONENT, OverlapModel, Rate

_DECAYS = np.geomspace(1e-4, 10.0, 101)
LEAST_BESIDE = 0.3
"""Smallest share of an all-reduce, by time and by work, that must overlap with computation to fit its rate there."""
_LONGER = "Use a job with a longer backward (a larger model, or larger microbatches), or more draws and steps."
_GOLDEN = (5**0.5 - 1) / 2


class Computed(NamedTuple):
    """One computation, such as a backward, as it was measured beside all-reduces.

    Attributes:
        beside_s: seconds in which all-reduces ran at the same time, by number of communication threads.
        apart_s: seconds in which none ran.
        alone_s: seconds of the whole computation if it runs alone.
    """

    beside_s: Mapping[int, float]
    apart_s: float
    alone_s: float


class Moved(NamedTuple):
    """One all-reduce, as it was measured: partly or never beside computation.

    Attributes:
        threads: number of communication threads.
        size_bytes: bytes of its gradients.
        beside_s: seconds in which computation ran at the same time.
        apart_s: seconds in which no computation ran.
    """

    threads: int
    size_bytes: float
    beside_s: float
    apart_s: float


class _Whole(NamedTuple):
    """Seconds of an all-reduce entirely beside computation, or entirely alone."""

    threads: int
    size_bytes: float
    seconds: float


class Fitted(NamedTuple):
    """A fitted model with its mean absolute errors, relative to the measured values.

    Attributes:
        model: the fitted model.
        computed_error: error of the share of a computation that is done in its measured time, beside all-reduces; the
            measured share is 1.
        beside_error: error of the seconds of all-reduces beside computation.
        alone_error: error of the seconds of all-reduces alone.
    """

    model: OverlapModel
    computed_error: float
    beside_error: float
    alone_error: float


def fit(computed: Sequence[Computed], moved: Sequence[Moved], workers: int) -> Fitted:
    """Fit an overlap model to measurements.

    The fitted parameters are the speed that computation keeps (equation 5), the startup of an all-reduce (equation 4),
    and the rates of all-reduces beside computation and alone (equation 6).

    Arguments:
        workers: number of workers in the ring of the all-reduces.

    Raises:
        InputError: there are fewer than two workers, too few measurements of one kind, or times of 0 or less; or the
            measurements show no progress of computation beside communication, or no growth of time with bytes.
    """
    if workers < 2:
        raise InputError("workers", str(workers), ">= 2: one worker reduces nothing")
    computed = [one for one in computed if one.beside_s]
    alone_ones = [_Whole(one.threads, one.size_bytes, one.apart_s) for one in moved if one.beside_s == 0]
    partly = [one for one in moved if one.beside_s > 0]
    counts = {"computations beside communication": len(computed), "all-reduces alone": len(alone_ones)}
    _enough(counts)
    figures = [(r, seconds) for one in computed for r, seconds in (*one.beside_s.items(), (1, one.alone_s))]
    figures += [(one.threads, one.beside_s + one.apart_s) for one in moved]
    wrong = [(threads, seconds) for threads, seconds in figures if threads < 1 or not seconds > 0]
    if wrong:
        found = f"{wrong[0][0]} communication threads" if wrong[0][0] < 1 else f"a time of {wrong[0][1]:g} s"
        raise InputError("measurements", found, "at least one communication thread, and times above 0 s")
    kept, taken = _share(computed)
    hops, carried = 2 * (workers - 1), 2 * (workers - 1) / workers
    startup_s, rates = _rates(alone_ones, carried, "alone")
    alone = _curve(rates)
    model = OverlapModel(kept, taken, alone, alone, startup_s / hops, workers)
    # The share of an all-reduce that was done without computation is known. The rest was done beside computation.
    long = [one for one in partly if one.beside_s >= LEAST_BESIDE * (one.beside_s + one.apart_s)]
    shares = [(one, 1 - one.apart_s / model.alone_s(one.size_bytes, one.threads)) for one in long]
    beside_ones = [
        _Whole(one.threads, one.size_bytes, one.beside_s / share) for one, share in shares if share >= LEAST_BESIDE
    ]
    _enough({"all-reduces beside computation": len(beside_ones)})
    startup_s, rates = _rates(beside_ones, carried, "beside computation")
    model = replace(model, beside=_curve(rates), beside_latency_s=startup_s / hops)
    return Fitted(
        model,
        _error([(_done(one, model), 1.0) for one in computed]),
        _error([(model.beside_s(one.size_bytes, one.threads), one.seconds) for one in beside_ones]),
        _error([(model.alone_s(one.size_bytes, one.threads), one.seconds) for one in alone_ones]),
    )


def _enough(counts: Mapping[str, int]) -> None:
    for what, count in counts.items():
        if count < 2:
            raise InputError("measurements", f"{count} {what}", "at least two", _LONGER)


def _error(pairs: Sequence[tuple[float, float]]) -> float:
    return float(np.mean([abs(predicted - measured) / measured for predicted, measured in pairs]))


def _share(computed: Sequence[Computed]) -> tuple[float, float]:
    """Fit alpha_1 and alpha_2 of equation 5.

    Beside r communication threads, computation keeps the share alpha_1 - alpha_2 r of its speed.
    """
    beside = np.array([sum(one.beside_s.values()) / one.alone_s for one in computed])
    threads = np.array([sum(r * seconds for r, seconds in one.beside_s.items()) / one.alone_s for one in computed])
    done = np.array([1 - one.apart_s / one.alone_s for one in computed])
    kept = float(beside @ done / (beside @ beside))
    if kept <= 0:
        found, hint = (
            "computation that stands still beside communication",
            f"Stop other work on the machine. {_LONGER}",
        )
        raise InputError("measurements", found, "progress of computation beside communication", hint)
    most = max(r for one in computed for r in one.beside_s)
    if len({r for one in computed for r in one.beside_s}) > 1:
        (both, slope), *_ = np.linalg.lstsq(np.stack([beside, threads], axis=1), done, rcond=None)
        if slope <= 0 < both + slope * most:
            return float(both), float(-slope)
    return kept, 0.0


def _done(one: Computed, model: OverlapModel) -> float:
    """Share of a computation that is done in its measured time, according to a model.

    A perfect model gives 1.
    """
    return (one.apart_s + sum(seconds * model.share(r) for r, seconds in one.beside_s.items())) / one.alone_s


def _rates(moved: Sequence[_Whole], carried: float, what: str) -> tuple[float, dict[int, float]]:
    """Fit the startup and the rates of all-reduces, so that no rate is negative.

    If the all-reduces with one number of threads do not take longer for more bytes, they are fitted together with the
    all-reduces of the nearest other number of threads.

    Arguments:
        moved: all-reduces beside computation, or all-reduces alone.
        carried: bytes that each worker sends per byte of gradients.
        what: "beside computation" or "alone", for error messages.

    Returns:
        One startup in seconds for all, and bytes per second by number of communication threads.

    Raises:
        InputError: even all all-reduces together do not take longer for more bytes, or all have the same size.
    """
    counted = list(moved)
    while True:
        startup_s, per_byte = _line(counted, carried)
        odd = min(per_byte, key=lambda threads: per_byte[threads])
        if per_byte[odd] > 0:
            return startup_s, {threads: 1 / each for threads, each in per_byte.items()}
        others = [threads for threads in per_byte if threads != odd]
        if not others:
            found = f"all-reduces {what} that are not slower for more bytes"
            hint = "Measure larger all-reduces, or more of them, on an idle machine."
            raise InputError("measurements", found, "times that grow with the number of bytes", hint)
        nearest = min(others, key=lambda threads: (abs(threads - odd), threads))
        counted = [one._replace(threads=nearest) if one.threads == odd else one for one in counted]


def _line(moved: Sequence[_Whole], carried: float) -> tuple[float, dict[int, float]]:
    """Fit the times of all-reduces by a line for each number of communication threads.

    The lines have one startup in common. They are fitted by least squares of relative errors.

    Arguments:
        carried: bytes that each worker sends per byte of gradients.

    Returns:
        Startup in seconds, 0 or more; seconds per byte sent, by number of communication threads. These may be negative
            because of noise, and `_rates` then fits again.

    Raises:
        InputError: all all-reduces have the same size.
    """
    kinds = sorted({one.threads for one in moved})
    table = np.zeros((len(moved), 1 + len(kinds)))
    for row, one in zip(table, moved, strict=True):
        row[0] = 1 / one.seconds
        row[1 + kinds.index(one.threads)] = carried * one.size_bytes / one.seconds
    # Columns are scaled to similar size; otherwise, bytes would drown the startup.
    scale = np.abs(table).max(axis=0)
    found, _, rank, _ = np.linalg.lstsq(table / scale, np.ones(len(moved)), rcond=None)
    if rank < table.shape[1]:
        raise InputError("measurements", "all-reduces of one size only", "all-reduces of several sizes", _LONGER)
    if found[0] < 0:  # the startup is too short to be measured
        found[0] = 0.0
        found[1:] = np.linalg.lstsq((table / scale)[:, 1:], np.ones(len(moved)), rcond=None)[0]
    found = found / scale
    return float(found[0]), {threads: float(each) for threads, each in zip(kinds, found[1:], strict=True)}


def _curve(rates: dict[int, float]) -> Rate:
    """Fit gamma_1 to gamma_3 of equation 6 (`Rate`).

    For a given decay (gamma_3), the other two follow from linear least squares. The best decay is searched on a grid,
    then refined.

    Arguments:
        rates: bytes per second by number of communication threads.
    """
    threads = np.array(sorted(rates), dtype=float) ** EXPONENT
    measured = np.array([rates[r] for r in sorted(rates)])
    if len(rates) == 1:
        return Rate(float(measured[0]), 0.0, 1.0)

    def line(decay: float) -> tuple[float, Rate]:
        left = np.exp(-decay * threads)
        table = np.stack([np.ones_like(left), -left], axis=1) / measured[:, None]
        most, lost = np.linalg.lstsq(table, np.ones_like(measured), rcond=None)[0]
        if lost < 0:  # more threads are slower: use one rate for all
            most, lost = 1 / float((1 / measured).mean()), 0.0
        made = most - lost * left
        return (float(np.square(made / measured - 1).sum()) if made.min() > 0 else np.inf), Rate(
            float(most), float(lost), float(decay)
        )

    best = int(np.argmin([line(decay)[0] for decay in _DECAYS]))
    low, high = (np.log(_DECAYS[k]) for k in (max(best - 1, 0), min(best + 1, len(_DECAYS) - 1)))
    return line(float(np.exp(_least(lambda at: line(float(np.exp(at)))[0], low, high))))[1]


def _least(of: Callable[[float], float], low: float, high: float) -> float:
    """Position of a unimodal function's minimum, by golden-section search."""
    while high - low > 1e-10:
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, other) if of(one) <= of(other) else (one, high)
    return (low + high) / 2

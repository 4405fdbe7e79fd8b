"""Extrapolate the time of a long batch from shorter ones.

Rules of this file: a schedule with `Strategy.steady` repeats itself once the pipeline is filled, so seconds grow
linearly with the number of microbatches. Two effects disturb the line:

- It begins late if an overlapped all-reduce takes longer than the computation of a short batch (PipeDream-2BW).
- It has steps if stages wait for links in a rhythm of several microbatches.

So shorter batches are lengthened until they lie on one line, with at least the slope of the busiest device's
computation. A batch for which no line is found is simulated whole.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import ceil, gcd, inf, lcm

from hocket.planning.plan import Predicted
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.strategy import ring_of
from hocket.strategies.base.strategy import strategy as member_named

_LONG = 4  # batches with more microbatches on a pipeline replica than this, relative to its stages, are extrapolated
_FLUSHED = 2  # repetitions of the period that show the steady state if each batch begins with an empty pipeline
# Multiples of the shortest difference between two batches to try. A waiting rhythm has at most as many microbatches as
# are in flight.
_FACTORS = (*range(1, 9), *(12 * 2**n for n in range(10)))
_EQUAL = 3  # equal steps in batch size that must take equally long, unless computation alone determines the time
_ROUNDING = 1e-9  # of the seconds of an iteration
_MOST = 2**15  # forwards of the longest batch that is simulated to find the line


def shorter(strategy: str, cuts: tuple[StageCut, ...], batch: tuple[int, int]) -> tuple[int, int] | None:
    """Sizes of the two shortest batches that represent a long batch, in samples.

    Arguments:
        batch: samples of the batch, and of a microbatch.

    Returns:
        None for a short batch, for a batch that is no whole number of rounds of microbatches over all replicas, or if
            the strategy has no steady state.
    """
    widths = [len(cut.devices) for cut in cuts]
    together = lcm(*widths)  # microbatches after which the assignment to replicas repeats
    rounds, rest = divmod(batch[0], together * batch[1])
    depth = len({cut.devices for cut in cuts})
    if not member_named(strategy).steady or rest:
        return None
    if len(set(widths)) == 1:
        # With virtual stages, or without a flush, the first round after the fill still differs from the others.
        early, further = len(cuts) == depth and strategy in synchronous_strategies(), depth
    else:
        early, further = False, ceil(sum(widths) / together)
    if rounds <= _LONG * further:
        return None
    few = (1 if early else 2) * further + rounds % further
    return few * together * batch[1], (few + further) * together * batch[1]


def repeats(strategy: str, cuts: tuple[StageCut, ...]) -> int | None:
    """Number of repetitions of the period that show the steady state.

    None for the default number, which follows from the program (`enough_repeats`).
    """
    around = len(cuts) > 1 and ring_of([cut.devices for cut in cuts]) is not None  # waves start the next batch early
    return _FLUSHED if strategy in synchronous_strategies() and not around else None


def longest(cuts: tuple[StageCut, ...], microbatch_size: int) -> int:
    """Samples of the longest batch that is simulated for an extrapolation."""
    return _MOST // len(cuts) * gcd(*(len(cut.devices) for cut in cuts)) * microbatch_size


def foreseen(
    batch_size: int, sizes: tuple[int, int], most: float, simulated: Callable[[int], Predicted], round_s: float
) -> tuple[Predicted, tuple[int, int]] | None:
    """Extrapolate a long batch from two shorter ones.

    Arguments:
        batch_size: samples of the long batch.
        sizes: samples of the two shortest batches (`shorter`).
        most: samples of the longest batch to simulate (`longest`).
        simulated: function that predicts a batch of a given number of samples.
        round_s: seconds that the busiest device computes for the samples by which `sizes` differ. No steady state
            is faster.

    Returns:
        The prediction of the long batch, and the samples of the two shorter batches. None if shorter batches do not
            lie on a line, or memory still grows: simulate the whole batch. A batch of more than `most` samples is
            never simulated whole: it gets the line through the longest pair, with at least the slope of computation.
    """
    simulated, last = cache(simulated), None
    for begin, apart in _lengthened(batch_size, sizes, most):
        least_s = round_s * apart / (sizes[1] - sizes[0])
        last = (begin, begin + apart), least_s
        first, second = simulated(begin), simulated(begin + apart)
        apart_s, rounding_s = second.iteration_s - first.iteration_s, _ROUNDING * second.iteration_s
        if apart_s < least_s - rounding_s or _fuller(first, second):
            continue
        if apart_s <= least_s + rounding_s or all(
            abs(simulated(begin + n * apart + apart).iteration_s - simulated(begin + n * apart).iteration_s - apart_s)
            <= rounding_s
            for n in range(1, _EQUAL)
        ):
            return _extended(batch_size, (begin, begin + apart), first, second), (begin, begin + apart)
    if batch_size <= most or last is None:
        return None
    pair, least_s = last
    return _extended(batch_size, pair, simulated(pair[0]), simulated(pair[1]), least_s), pair


def _lengthened(batch_size: int, sizes: tuple[int, int], most: float = inf) -> Iterator[tuple[int, int]]:
    """Yield pairs of growing batches: samples of the shorter one, and difference.

    The whole batch is longer than the shorter one by an integer multiple of the difference.
    """
    shortest, step = sizes[0], sizes[1] - sizes[0]
    for factor in _FACTORS:
        begin = shortest * factor + (batch_size - shortest * factor) % (step * factor)
        if begin + _EQUAL * step * factor > min(batch_size - 1, most) and factor > 1:
            return
        yield begin, step * factor


def _fuller(first: Predicted, second: Predicted) -> bool:
    """True if the longer batch holds more on some device: memory may still grow."""
    return any(second.peak_memory_bytes[d] > size * (1 + _ROUNDING) for d, size in first.peak_memory_bytes.items())


def _extended(
    batch_size: int, sizes: tuple[int, int], first: Predicted, second: Predicted, least_s: float = 0.0
) -> Predicted:
    """Extrapolate two predictions to a larger batch; memory peaks no longer change.

    Arguments:
        sizes: samples of the two predicted batches.
        least_s: least difference of their seconds to assume.
    """
    rounds = (batch_size - sizes[0]) / (sizes[1] - sizes[0])

    def at(one: float, other: float, least: float = 0.0) -> float:
        return one + rounds * max(least, other - one)

    iteration_s = at(first.iteration_s, second.iteration_s, least_s)
    busy_s = at(*(found.iteration_s / (1 + found.bubble_fraction) for found in (first, second)))
    peaks = {d: max(size, second.peak_memory_bytes[d]) for d, size in first.peak_memory_bytes.items()}
    return Predicted(iteration_s, batch_size / iteration_s, peaks, iteration_s / busy_s - 1 if busy_s > 0 else 0.0)

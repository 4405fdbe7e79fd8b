"""Long batches: the time of a batch of very many microbatches is extrapolated from shorter ones.

Rules of this file: schedules that declare `STEADY` go on evenly once the pipeline is filled, so that seconds grow on a straight line
with the number of microbatches. The line begins late where an overlapped all-reduce takes longer than a short batch's compute
(PipeDream-2BW), and it has steps where stages wait for links, in a rhythm of several microbatches. So shorter batches are lengthened
until they lie on one line, as steep as the busiest device's compute or steeper. A batch whose line does not show is simulated whole.
"""

from collections.abc import Callable, Iterator
from functools import cache
from math import ceil, gcd, inf, lcm

from hocket.planning.plan import Predicted
from hocket.planning.predict.update_semantics import synchronous_strategies
from hocket.program.passes.borders import StageCut
from hocket.strategies.base.strategy import ring_of
from hocket.strategies.base.strategy import strategy as member_named

_LONG = 4  # times as many microbatches as stages in a column, from which a batch is foreseen
_FLUSHED = 2  # repetitions that show the steady state where each batch begins with an empty pipeline
# Multiples of the shortest distance that are tried. A rhythm of waiting has at most as many microbatches as are in flight.
_FACTORS = (*range(1, 9), *(12 * 2**n for n in range(10)))
_EQUAL = 3  # distances in a row that must take as long where not compute alone says how long
_ROUNDING = 1e-9  # of the seconds of an iteration
_MOST = 2**15  # forwards of a pipeline that is simulated to show the line


def shorter(strategy: str, cuts: tuple[StageCut, ...], batch: tuple[int, int]) -> tuple[int, int] | None:
    """Sizes of the two shortest batches that represent a long batch; None for a short batch."""
    widths = [len(cut.devices) for cut in cuts]
    together = lcm(*widths)  # microbatches after which every replica has its turn again
    rounds, rest = divmod(batch[0], together * batch[1])
    depth = len({cut.devices for cut in cuts})
    if not member_named(strategy).steady or rest:
        return None
    if len(set(widths)) == 1:
        # With chunks, and without a flush, the first round behind the filling is not yet as the others.
        early, further = len(cuts) == depth and strategy in synchronous_strategies(), depth
    else:
        early, further = False, ceil(sum(widths) / together)
    if rounds <= _LONG * further:
        return None
    few = (1 if early else 2) * further + rounds % further
    return few * together * batch[1], (few + further) * together * batch[1]


def repeats(strategy: str, cuts: tuple[StageCut, ...]) -> int | None:
    """Repetitions of a batch that show the steady state; None where the program itself says how many."""
    around = len(cuts) > 1 and ring_of([cut.devices for cut in cuts]) is not None  # waves begin the next batch in turn
    return _FLUSHED if strategy in synchronous_strategies() and not around else None


def longest(cuts: tuple[StageCut, ...], microbatch_size: int) -> int:
    """Samples of the longest batch that is simulated to foresee a longer one."""
    return _MOST // len(cuts) * gcd(*(len(cut.devices) for cut in cuts)) * microbatch_size


def foreseen(
    batch_size: int, sizes: tuple[int, int], most: float, simulated: Callable[[int], Predicted], round_s: float
) -> tuple[Predicted, tuple[int, int]] | None:
    """Prediction for a long batch, with the sizes of the two shorter ones it is extrapolated from.

    Arguments:
        sizes: of the two shortest batches (`shorter`). most: samples of the longest batch to simulate (`longest`).
        simulated: the prediction for a batch of so many samples.
        round_s: seconds that the busiest device computes for the samples by which `sizes` differ. No steady state is quicker.

    Returns:
        None where shorter batches do not lie on a line, or memory still grows: simulate the whole. Where the whole has more than
        `most` samples, the line through the longest pair, made as steep as compute is at least.
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
    """A batch size and a distance, ever larger; the batch is a whole number of distances further."""
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
    """The line through two predictions, at a larger batch; the peaks of memory no longer change.

    Arguments:
        least_s: by which the two differ at least.
    """
    rounds = (batch_size - sizes[0]) / (sizes[1] - sizes[0])

    def at(one: float, other: float, least: float = 0.0) -> float:
        return one + rounds * max(least, other - one)

    iteration_s = at(first.iteration_s, second.iteration_s, least_s)
    busy_s = at(*(found.iteration_s / (1 + found.bubble_fraction) for found in (first, second)))
    peaks = {d: max(size, second.peak_memory_bytes[d]) for d, size in first.peak_memory_bytes.items()}
    return Predicted(iteration_s, batch_size / iteration_s, peaks, iteration_s / busy_s - 1 if busy_s > 0 else 0.0)

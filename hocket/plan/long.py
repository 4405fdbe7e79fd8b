"""Long batches: what a batch of very many microbatches takes is foreseen from two shorter ones.

Rules of this file: of schedules that go on evenly once the pipeline is filled (they declare it: `STEADY`), each further round of as many microbatches as there
are stages in a column takes as long as the one before. For models of equal blocks that is the whole's time; the most memory is
there long before the end of the shorter one.
"""

from math import ceil, lcm

from hocket.passes.borders import StageCut
from hocket.plan.plan import Predicted
from hocket.plan.updates import synchronous_strategies
from hocket.strategies._common import strategy as member_named

_LONG = 4  # times as many microbatches as stages in a column, from which a batch is foreseen
_FLUSHED = 2  # repetitions that show the steady state of what begins each batch anew


def shorter(strategy: str, cuts: tuple[StageCut, ...], batch: tuple[int, int]) -> tuple[int, int] | None:
    """Batch sizes of the two shorter ones, for a batch and its microbatches of so many samples; None where it is not long."""
    widths = [len(cut.devices) for cut in cuts]
    together = lcm(*widths)  # microbatches after which every replica has its turn again
    rounds, rest = divmod(batch[0], together * batch[1])
    depth = len({cut.devices for cut in cuts})
    if not member_named(strategy).STEADY or rest:
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


def repeats(strategy: str) -> int | None:
    """Repetitions of a batch that show the steady state; None where the program itself says how many."""
    return _FLUSHED if strategy in synchronous_strategies() else None


def foreseen(batch_size: int, sizes: tuple[int, int], first: Predicted, second: Predicted, round_s: float) -> Predicted:
    """The prediction for a batch of so many samples from those of two of these sizes.

    Arguments:
        round_s: what the busiest device computes for the samples by which these differ. Where stages are unequal, early rounds
            are quicker than that: until the stages before the slowest have run as far ahead as they may.
    """
    rounds = (batch_size - sizes[0]) / (sizes[1] - sizes[0])

    def at(one: float, other: float, least: float = 0.0) -> float:
        return one + rounds * max(least, other - one)

    iteration_s = at(first.iteration_s, second.iteration_s, round_s)
    busy_s = at(*(found.iteration_s / (1 + found.bubble_fraction) for found in (first, second)))
    peaks = {d: max(size, second.peak_memory_bytes[d]) for d, size in first.peak_memory_bytes.items()}
    return Predicted(iteration_s, batch_size / iteration_s, peaks, iteration_s / busy_s - 1 if busy_s > 0 else 0.0)

"""Missing conditions: sentences for strategies without candidates, with advice where possible."""

from collections.abc import Callable
from math import ceil

from hocket.strategies.base.search_space import MAX_MICROBATCHES, SearchSpace
from hocket.util.units import show_count


def pipeline(situation: SearchSpace, layers: int = 2) -> str:
    """Missing condition for stages on several devices, each with at least one of `layers` layers."""
    if situation.cluster.devices < 2:
        return "it takes two devices or more"
    there = len(situation.profile.layers)
    return f"the model has {show_count(there, 'layer')}; it takes {layers} or more" if there < layers else ""


def microbatches(situation: SearchSpace, takes: str, enough: Callable[[int], bool]) -> str:
    """Note that a batch is not a suitable number of microbatches, with the next batch size that is.

    Arguments:
        takes: what the strategy wants. enough: whether so many microbatches are such a number.
    """
    batch = situation.batch_size
    first, *others = ((size, ceil(batch / size)) for size in reversed(situation.sizes))
    now = f"a batch is {show_count(first[1], 'microbatch')} of {show_count(first[0], 'sample')}"
    now += "".join(f", or {count} of {size}" for size, count in others)
    larger = [
        (size * count, count, size)
        for size in situation.microbatch_sizes or situation.profile.microbatch_sizes
        if (count := next((n for n in range(ceil(batch / size), MAX_MICROBATCHES + 1) if enough(n)), 0))
    ]
    step = "take other sizes of microbatches (hocket profile -b)"
    if larger:
        samples, count, size = min(larger)
        step += f", or a batch of {samples}, {count} of {size}"
    return f"{now}; {takes}; {step}"


def even(situation: SearchSpace, takes: str) -> str:
    """Note that a batch cannot be divided evenly, where an even number of microbatches would be enough."""
    return microbatches(situation, takes, lambda count: count % 2 == 0)

"""Texts for error messages: why a strategy has no candidate, and what would help."""

from collections.abc import Callable
from math import ceil

from hocket.strategies.base.search_space import MAX_MICROBATCHES, SearchSpace
from hocket.util.units import show_count


def pipeline(space: SearchSpace, layers: int = 2) -> str:
    """Say that devices or layers are too few for a pipeline.

    Arguments:
        layers: minimum number of layers.

    Returns:
        The text; empty if there are two devices and enough layers.
    """
    if space.cluster.devices < 2:
        return "two or more devices are needed"
    there = len(space.profile.layers)
    return f"the model has {show_count(there, 'layer')}; {layers} or more are needed" if there < layers else ""


def microbatches(space: SearchSpace, takes: str, enough: Callable[[int], bool]) -> str:
    """Say that the number of microbatches is wrong, and which larger batch would do.

    Arguments:
        takes: the strategy's condition on the number of microbatches, in words.
        enough: the same condition as a function.
    """
    batch = space.batch_size
    first, *others = ((size, ceil(batch / size)) for size in reversed(space.sizes))
    now = f"a batch is {show_count(first[1], 'microbatch')} of {show_count(first[0], 'sample')}"
    now += "".join(f", or {count} of {size}" for size, count in others)
    larger = [
        (size * count, count, size)
        for size in space.microbatch_sizes or space.profile.microbatch_sizes
        if (count := next((n for n in range(ceil(batch / size), MAX_MICROBATCHES + 1) if enough(n)), 0))
    ]
    step = "use other microbatch sizes (hocket profile -b)"
    if larger:
        samples, count, size = min(larger)
        step += f", or a batch of {samples}, {count} of {size}"
    return f"{now}; {takes}; {step}"


def even(space: SearchSpace, takes: str) -> str:
    """Say that a batch cannot be divided equally, and which even number would do.

    Arguments:
        takes: the strategy's condition on the number of microbatches, in words.
    """
    return microbatches(space, takes, lambda count: count % 2 == 0)

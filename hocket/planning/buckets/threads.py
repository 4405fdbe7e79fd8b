"""Buckets and threads that a plan takes of what tensor_fusion.py finds: other threads than the library's only where they gain something.

Rules of this file: one rule for planner and benches. What a fit tells apart by less than it is off itself, or by less than WORTH, is
chance.
"""

from collections.abc import Sequence
from functools import lru_cache

from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients, allocate, joint

WORTH = 0.002  # what other buckets, or threads, must gain


def taken_buckets(gradients: ReadyGradients, model: OverlapModel, threads: Sequence[int] = ()) -> Fusion:
    """Buckets and threads together (`joint`).

    Arguments:
        threads: numbers to choose from; () for those of the library alone.
    """
    return _taken(gradients, model, tuple(threads), None)


def taken_threads(
    gradients: ReadyGradients, model: OverlapModel, ends: Sequence[int], threads: Sequence[int]
) -> Fusion:
    """Threads of buckets that are given (`allocate`)."""
    return _taken(gradients, model, tuple(threads), tuple(ends))


@lru_cache(maxsize=512)
def _taken(
    gradients: ReadyGradients, model: OverlapModel, threads: tuple[int, ...], ends: tuple[int, ...] | None
) -> Fusion:
    def found(choice: tuple[int, ...]) -> Fusion:
        return joint(gradients, model, choice) if ends is None else allocate(gradients, model, ends, choice)

    if model.own_threads not in threads:  # of the library's number nothing is known, or there is no choice
        return found(threads or (model.own_threads,))
    plain, other = found((model.own_threads,)), found(threads)
    gain = plain.backward_s(gradients, model) / other.backward_s(gradients, model) - 1
    return other if gain > max(WORTH, model.error) else plain

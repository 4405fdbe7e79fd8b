"""Choose between the library's number of communication threads and others.

Rules of this file: planner and benchmarks use the same rule. Other numbers are chosen only if the time that they save
exceeds both the error of the fitted model and WORTH; smaller differences are chance.
"""

from collections.abc import Sequence
from functools import lru_cache

from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients, allocate, joint

WORTH = 0.002  # least share of time that other buckets, or other threads, have to save


def taken_buckets(gradients: ReadyGradients, model: OverlapModel, threads: Sequence[int] = ()) -> Fusion:
    """Choose buckets and threads together (`joint`).

    Arguments:
        threads: numbers to choose from; () for the library's number alone.
    """
    return _taken(gradients, model, tuple(threads), None)


def taken_threads(
    gradients: ReadyGradients, model: OverlapModel, ends: Sequence[int], threads: Sequence[int]
) -> Fusion:
    """Choose threads for given buckets (`allocate`).

    Arguments:
        ends: the buckets, as in `Fusion`.
        threads: numbers to choose from; () for the library's number alone.
    """
    return _taken(gradients, model, tuple(threads), tuple(ends))


@lru_cache(maxsize=512)
def _taken(
    gradients: ReadyGradients, model: OverlapModel, threads: tuple[int, ...], ends: tuple[int, ...] | None
) -> Fusion:
    def found(choice: tuple[int, ...]) -> Fusion:
        return joint(gradients, model, choice) if ends is None else allocate(gradients, model, ends, choice)

    if model.own_threads not in threads:  # the library's number was not measured, or there is no choice
        return found(threads or (model.own_threads,))
    plain, other = found((model.own_threads,)), found(threads)
    gain = plain.backward_s(gradients, model) / other.backward_s(gradients, model) - 1
    return other if gain > max(WORTH, model.error) else plain

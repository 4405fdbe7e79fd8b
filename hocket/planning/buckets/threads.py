"""Choose between the communication library's default thread count and other counts.

Rules of this file: planner and benchmarks use the same rule. Another count is chosen only if the time that it saves
exceeds both the error of the fitted model and WORTH; smaller differences are chance.
"""

from collections.abc import Sequence
from functools import lru_cache

from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients, allocate, joint

WORTH = 0.002  # least share of time that other buckets, or other threads, have to save


def taken_buckets(gradients: ReadyGradients, model: OverlapModel, threads: Sequence[int] = ()) -> Fusion:
    """Choose gradient buckets together with the thread count of each bucket's all-reduce.

    Arguments:
        threads: thread counts to choose from; () for the library's default alone.
    """
    return _taken(gradients, model, tuple(threads), None)


def taken_threads(
    gradients: ReadyGradients, model: OverlapModel, ends: Sequence[int], threads: Sequence[int]
) -> Fusion:
    """Choose the thread count of the all-reduce of each given gradient bucket.

    Arguments:
        ends: for each bucket, the number of layers up to its end, counted in the order of the backward; ascending.
        threads: thread counts to choose from; () for the library's default alone.
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

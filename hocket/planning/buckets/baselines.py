"""Bucket rules of other systems, as baselines for tensor_fusion.py.

The rules: no overlap, one bucket for each layer, a number of bytes, a time window, and merging without contention.

Rules of this file: the number of communication threads of all-reduces is an argument of each rule.
`tensor_fusion.allocate` chooses threads for the buckets of any rule.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, inf

from hocket.errors import InputError
from hocket.hardware.overlap import OverlapModel
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients

WINDOW_S = 0.005
WINDOW_BYTES = 64 * 2**20
"""Horovod's cycle time and fusion threshold up to version 0.20, which LIBRA compares itself with.

From version 0.21 on the defaults are 1 ms and 128 MiB (its release notes).
"""


def no_overlap(gradients: ReadyGradients, threads: int) -> Fusion:
    """One all-reduce of everything after the backward (SynEASGD)."""
    return _same((len(gradients.sizes_bytes),), threads)


def each_layer(gradients: ReadyGradients, threads: int) -> Fusion:
    """One all-reduce for each layer with gradients (WFBP).

    Layers without gradients share the bucket of the next layer that has some.
    """
    sizes, layers = gradients.sizes_bytes, len(gradients.sizes_bytes)
    return _same(_closed([end for end in range(1, layers + 1) if sizes[end - 1] > 0], layers), threads)


def by_bytes(gradients: ReadyGradients, limit_bytes: float, threads: int) -> Fusion:
    """Close a bucket when it reaches a number of bytes (DistributedDataParallel)."""
    _above_zero("limit_bytes", limit_bytes)
    ends, filled = [], 0.0
    for end, size_bytes in enumerate(gradients.sizes_bytes):
        if filled >= limit_bytes and size_bytes > 0:
            ends.append(end)
            filled = 0.0
        filled += size_bytes
    return _same(_closed(ends, len(gradients.sizes_bytes)), threads)


def by_window(
    gradients: ReadyGradients,
    model: OverlapModel,
    threads: int,
    window_s: float = WINDOW_S,
    limit_bytes: float = WINDOW_BYTES,
) -> Fusion:
    """One all-reduce for all gradients that are ready at a tick (Horovod).

    A bucket has at most `limit_bytes`. Ticks are `window_s` apart, from the beginning of the backward on. A tick at
    which an all-reduce is still running starts none. Layers become ready, and all-reduces run, as if there were no
    contention.
    """
    _above_zero("window_s", window_s)
    _above_zero("limit_bytes", limit_bytes)
    free, sizes = model.without_contention(), gradients.sizes_bytes
    ready_s = list(accumulate(gradients.computes_s))
    ends: list[int] = []
    begin, free_s = 0, 0.0
    while begin < len(sizes):
        first = next((k for k in range(begin, len(sizes)) if sizes[k] > 0), len(sizes) - 1)
        look_s = ceil(max(ready_s[first], free_s) / window_s) * window_s
        end, filled = first + 1, sizes[first]
        while end < len(sizes) and ready_s[end] <= look_s and filled + sizes[end] <= limit_bytes:
            filled += sizes[end]
            end += 1
        ends.append(end)
        begin, free_s = end, look_s + (free.alone_s(filled, threads) if filled > 0 else 0.0)
    return _same(_closed(ends, len(sizes)), threads)


def merged(gradients: ReadyGradients, model: OverlapModel, threads: int) -> Fusion:
    """Best buckets without contention, with the same threads for each (MG-WFBP).

    If one all-reduce ends earlier, the next ends no later. So only the earliest end is kept for each number of
    leading layers.
    """
    free = model.without_contention()
    layers = len(gradients.sizes_bytes)
    ready_s = list(accumulate(gradients.computes_s, initial=0.0))
    made_bytes = list(accumulate(gradients.sizes_bytes, initial=0.0))
    ends_s, before = [0.0] + [inf] * layers, [0] * (layers + 1)
    for end in range(1, layers + 1):
        for k in range(end):
            size_bytes = made_bytes[end] - made_bytes[k]
            moving_s = free.alone_s(size_bytes, threads) if size_bytes > 0 else 0.0
            end_s = max(ends_s[k], ready_s[end]) + moving_s
            if end_s < ends_s[end]:
                ends_s[end], before[end] = end_s, k
    found, end = [], layers
    while end > 0:
        found.append(end)
        end = before[end]
    return _same(tuple(reversed(found)), threads)


def _same(ends: tuple[int, ...], threads: int) -> Fusion:
    if threads < 1:
        raise InputError("threads", str(threads), ">= 1")
    return Fusion(ends, (threads,) * len(ends))


def _closed(ends: Sequence[int], layers: int) -> tuple[int, ...]:
    """Ends of buckets, extended so that the last bucket reaches the last layer."""
    return (*ends[:-1], layers) if ends and ends[-1] == layers else (*ends, layers)


def _above_zero(place: str, figure: float) -> None:
    if not figure > 0:
        raise InputError(place, str(figure), "above zero")

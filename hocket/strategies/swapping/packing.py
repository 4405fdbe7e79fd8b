"""Dynamic programs that cut layers into packs.

The candidates do not depend on the device memory, so more memory only adds candidates that fit.

The weight of a pack is the sum of its layers + head[first] + tail[end], in seconds or bytes. These functions run as
plain Python, and compiled by numba (numba_kernels.py).
"""

from typing import Any

import numpy as np


def least_maximum(layers: Any, head: Any, tail: Any, packs: int) -> tuple[Any, Any]:
    """Minimize the largest pack weight of every prefix, by number of packs.

    Arguments:
        layers: prefix sums of weights; shape (layers + 1,).
        head: weight to add for a pack's first layer.
        tail: weight to add for a pack's end.
        packs: largest number of packs.

    Returns:
        The weight, infinite if impossible, and the first layer of the last pack; shapes (packs + 1, layers + 1).
    """
    count = len(layers)
    best, origin = np.full((packs + 1, count), np.inf), np.zeros((packs + 1, count), np.int64)
    best[0, 0] = 0.0
    for s in range(1, packs + 1):
        for e in range(count):
            least, place = float("inf"), 0
            for a in range(e - 1, s - 2, -1):
                grown = layers[e] - layers[a]
                if grown > least:
                    break
                weight = max(best[s - 1, a], grown + head[a] + tail[e])
                if weight < least:
                    least, place = weight, a
            best[s, e], origin[s, e] = least, place
    return best, origin


def least_sum(layers: Any, head: Any, tail: Any, price: Any, first: Any, limit: float) -> tuple[Any, Any]:
    """Minimize the sum of pack prices of every prefix, with limited pack weights.

    Arguments:
        layers: prefix sums of weights; shape (layers + 1,).
        head: weight to add for a pack's first layer.
        tail: weight to add for a pack's end.
        price: price of a pack, by its first layer.
        first: additional price of the first pack of the model, by its end.
        limit: maximum weight of a pack.

    Returns:
        The sum of prices, infinite if impossible, and the first layer of the last pack; shapes (layers + 1,).
    """
    best, origin = np.full(len(layers), np.inf), np.zeros(len(layers), np.int64)
    best[0] = 0.0
    for e in range(1, len(layers)):
        for a in range(e - 1, -1, -1):
            grown = layers[e] - layers[a]
            if grown > limit:
                break
            if grown + head[a] + tail[e] <= limit:
                total = best[a] + price[a] if a else price[0] + first[e]
                if total < best[e]:
                    best[e], origin[e] = total, a
    return best, origin

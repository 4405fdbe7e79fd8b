"""Dynamic programs that cut layers into packs.

The results do not depend on the device memory, so more memory only adds packs that fit.

The weight of a pack is the sum of the weights of its layers, plus head[first layer] and tail[last layer + 1]. All are
in seconds or in bytes. These functions run as plain Python, and compiled by numba (numba_kernels.py).
"""

from typing import Any

import numpy as np


def least_maximum(layers: Any, head: Any, tail: Any, packs: int) -> tuple[Any, Any]:
    """Cut each prefix of the layers so that its heaviest pack is as light as possible.

    Arguments:
        layers: prefix sums of the layers' weights; shape (layers + 1,).
        head: weight to add to a pack, by its first layer.
        tail: weight to add to a pack, by its last layer + 1.
        packs: maximum number of packs.

    Returns:
        The weight of the heaviest pack, infinite if impossible; and the first layer of the last pack. Both have the
        shape (packs + 1, layers + 1): by number of packs and of layers.
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
    """Cut every prefix of the layers into packs of limited weight at the least price.

    Arguments:
        layers: prefix sums of the layers' weights; shape (layers + 1,).
        head: weight to add to a pack, by its first layer.
        tail: weight to add to a pack, by its last layer + 1.
        price: price of a pack, by its first layer.
        first: additional price of the first pack of the model, by its last layer + 1.
        limit: maximum weight of a pack.

    Returns:
        The sum of prices, infinite if impossible; and the first layer of the last pack. Both have the shape
        (layers + 1,): by number of layers.
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

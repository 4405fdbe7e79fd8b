"""Layers into packs: candidates that no memory limit has a say in, so that more memory only adds to what may be chosen.

A pack's weight is const + sum of its layers + head[first] + tail[end]: its seconds, its bytes or what a border costs.
These functions run as they stand, and compiled (`_harmony_compiled`).
"""

from typing import Any


def least_maximum(layers: Any, head: Any, tail: Any, best: Any, origin: Any) -> None:
    """Least largest weight of every prefix of layers in exactly 1, 2, ... packs.

    Arguments:
        layers: prefix sums of weights (layers + 1). head, tail: beside them, by the pack's first layer and its end.
        best, origin: results (packs + 1, layers + 1): the weight, and where the last pack begins; infinite where there is none.
    """
    count = len(layers)
    for e in range(count):
        best[0, e] = float("inf")
    best[0, 0] = 0.0
    for s in range(1, len(best)):
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


def least_sum(layers: Any, head: Any, tail: Any, price: Any, first: Any, limit: float, best: Any, origin: Any) -> None:
    """Least sum of the prices of cuts of every prefix of layers with no pack's weight above a limit.

    Arguments:
        price: of a pack that begins at a layer. first: more, of the pack that begins the model, by its end. best, origin: results (layers + 1).
    """
    for e in range(len(layers)):
        best[e] = float("inf")
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

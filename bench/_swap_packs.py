"""Packs of consecutive layers for plans that swap, as the benchmarks cut them."""

from hocket.profiling.profile import ModelProfile


def packs_of(profile: ModelProfile, most_bytes: float) -> list[tuple[str, ...]]:
    """Names of the layers of each pack.

    The weights of a pack are at most `most_bytes`, unless the pack is a single layer.
    """
    packs, size = list[list[str]]([[]]), 0.0
    for layer in profile.layers:
        if packs[-1] and size + layer.weights_bytes > most_bytes:
            packs.append([])
            size = 0.0
        packs[-1].append(layer.name)
        size += layer.weights_bytes
    return [tuple(pack) for pack in packs]

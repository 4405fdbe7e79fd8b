"""Packs of layers for plans that swap, as benches cut them: neighbours, until the next one would be too much."""

from hocket.profiling.profile import ModelProfile


def packs_of(profile: ModelProfile, most_bytes: float) -> list[tuple[str, ...]]:
    """Names of the layers of each pack, whose weights are at most so many bytes, or one layer's."""
    packs, size = list[list[str]]([[]]), 0.0
    for layer in profile.layers:
        if packs[-1] and size + layer.weights_bytes > most_bytes:
            packs.append([])
            size = 0.0
        packs[-1].append(layer.name)
        size += layer.weights_bytes
    return [tuple(pack) for pack in packs]

"""Models, clusters and gradients that a seed draws, for tests that keep what is computed from them."""

import random
from dataclasses import replace

from hocket.hardware.cluster import Cluster, Level
from hocket.hardware.links import Link
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import ReadyGradients
from hocket.profiling.analytic import synthetic
from hocket.profiling.profile import ModelProfile

DEVICE_TYPE = "v100-16gb"
APART = 30
"""Largest figure of a layer, divided by the least."""


def model(draw: random.Random, most_layers: int = 14) -> ModelProfile:
    """A chain of unlike layers with up to two skip connections; some layers have no weights."""
    layers = draw.randint(3, most_layers)

    def figures(least: float, some: float = 1.0) -> list[float]:
        return [least * APART ** draw.random() * (draw.random() <= some) for _ in range(layers)]

    pairs = [sorted(draw.sample(range(layers), 2)) for _ in range(draw.randint(0, 2))]
    found = synthetic.chain(
        layers,
        forward_s=figures(1e-3),
        backward_s=figures(2e-3),
        activation_bytes=figures(1e5),
        weights_bytes=figures(1e6, 0.8),
        stash_bytes=figures(3e5),
        optimizer_bytes=figures(1e6),
        skips=sorted({(a, b) for a, b in pairs if b > a + 1}),
        microbatch_sizes=(1, 2, 4),
        device_type=DEVICE_TYPE,
    )
    steps = [draw.uniform(0, 2e-3) for _ in range(layers)]
    each = zip(found.layers, steps, strict=True)
    return replace(found, layers=tuple(replace(layer, step_s=step_s) for layer, step_s in each))


def overlap(draw: random.Random, workers: int) -> OverlapModel:
    """Contention of computation and all-reduces, with its fits for some numbers of threads."""
    most, part = draw.uniform(3e8, 3e9), draw.uniform(0.0, 0.9)
    slower = draw.uniform(0.6, 1.0)
    return OverlapModel(
        draw.uniform(0.8, 1.0),
        draw.uniform(0.0, 0.02),
        Rate(most * slower, most * slower * part, draw.uniform(0.05, 0.6)),
        Rate(most, most * part, draw.uniform(0.05, 0.6)),
        draw.uniform(0.0, 1e-4),
        workers,
        draw.choice(((), (1, 2, 4, 8))),
        draw.choice((1, 2, 4)),
        draw.choice((None, draw.uniform(0.0, 3e-4))),
        draw.choice((0.0, 0.05)),
    )


def cluster(draw: random.Random, widths: tuple[int, ...] | None = None) -> Cluster:
    """One to three levels, the outer ones slower but for some, with measured collectives on some."""
    widths = widths or draw.choice([(4,), (6,), (9,), (2, 2), (4, 2), (3, 3), (2, 4), (2, 2, 2)])
    levels = []
    for k, width in enumerate(widths):
        bandwidth, latency_s = 1e9 * draw.choice((1.0, 0.3, 0.7)) / 4**k, draw.uniform(0, 2e-5) * k
        level = Level(f"level {k}", width, bandwidth, latency_s, shared=draw.random() < 0.3)
        if draw.random() < 0.3:
            level = replace(level, all_reduce=Link(draw.uniform(0, 1e-4), bandwidth * draw.uniform(0.5, 1.1)))
        if draw.random() < 0.2:
            level = replace(level, reduce_scatter=draw.uniform(0.5, 1.2), all_gather=draw.uniform(0.5, 1.2))
        if draw.random() < 0.2:
            level = replace(level, overlap=overlap(draw, width))
        levels.append(level)
    return Cluster("drawn", tuple(levels), DEVICE_TYPE, memory_bytes=draw.uniform(1e8, 2e9))


def gradients(draw: random.Random) -> ReadyGradients:
    """Gradients of up to 20 layers, some without."""
    layers = draw.randint(2, 20)
    sizes = [1e4 * 300 ** draw.random() * (draw.random() < 0.8) for _ in range(layers)]
    return ReadyGradients((*sizes, 1e6), tuple(1e-4 * 100 ** draw.random() for _ in range(layers + 1)))

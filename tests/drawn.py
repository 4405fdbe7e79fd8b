"""Models, clusters and gradients that a seed draws, for tests that keep what is computed from them."""

import random
from dataclasses import replace
from math import prod

from hocket.hardware.cluster import Cluster, Level, Node
from hocket.hardware.links import Link
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import ReadyGradients
from hocket.profiling.analytic import synthetic
from hocket.profiling.layer import Layer, OtherDeviceLayer
from hocket.profiling.profile import ModelProfile

DEVICE_TYPE, SLOWER_TYPE = "v100-16gb", "p100"
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
    found = replace(found, layers=tuple(_dressed(draw, layer) for layer in found.layers))
    return _tied(draw, found) if draw.random() < 0.3 else found


def _dressed(draw: random.Random, layer: Layer) -> Layer:
    """A layer with figures that a chain leaves out, and seconds on another type of device."""
    sizes = [size * draw.uniform(0.1, 0.5) for size in layer.stash_bytes]
    slower = draw.uniform(1.2, 4.0)
    return replace(
        layer,
        step_s=draw.uniform(0, 2e-3),
        copy_s=draw.uniform(0, 5e-4),
        step_bytes=layer.weights_bytes * draw.choice((0.0, 0.5)),
        buffers_bytes=draw.choice((0.0, 0.0, draw.uniform(1e3, 1e6))),
        working_bytes=tuple(sizes),
        backward_bytes=tuple(1.5 * size for size in sizes),
        fresh_bytes=tuple(1.5 * size + layer.gradients_bytes for size in sizes),
        elsewhere=(
            OtherDeviceLayer(
                SLOWER_TYPE,
                tuple(slower * one for one in layer.forward_s),
                tuple(1.1 * slower * one for one in layer.backward_s),
                draw.uniform(0, 4e-3),
                draw.uniform(0, 1e-3),
            ),
        ),
    )


def _tied(draw: random.Random, profile: ModelProfile) -> ModelProfile:
    """The same, but the last layers use the weights of the first ones, as an output layer those of the embedding."""
    layers, ties = list(profile.layers), []
    for first in range(draw.choice((1, 1, 2))):
        last = len(layers) - 1 - first
        if layers[first].parameters and last > first + 1:
            own = ("parameters", "weights_bytes", "gradients_bytes", "optimizer_bytes")
            layers[last] = replace(layers[last], **{name: getattr(layers[first], name) for name in own})
            ties.append((first, last))
    return replace(profile, layers=tuple(layers), ties=tuple(ties))


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
            level = replace(level, all_reduce=Link(bandwidth * draw.uniform(0.5, 1.1), draw.uniform(0, 1e-4)))
        if draw.random() < 0.2:
            level = replace(level, reduce_scatter=draw.uniform(0.5, 1.2), all_gather=draw.uniform(0.5, 1.2))
        if draw.random() < 0.2:
            level = replace(level, overlap=overlap(draw, width))
        levels.append(level)
    memory_bytes = draw.uniform(1e8, 2e9)
    if draw.random() < 0.25 and widths[0] > 1:
        count = prod(widths)
        nodes = (Node(DEVICE_TYPE, count // 2, memory_bytes=memory_bytes), Node(SLOWER_TYPE, count - count // 2))
        return Cluster("drawn", tuple(levels), nodes=nodes, memory_bytes=memory_bytes)
    return Cluster("drawn", tuple(levels), DEVICE_TYPE, memory_bytes=memory_bytes)


def gradients(draw: random.Random) -> ReadyGradients:
    """Gradients of up to 20 layers, some without."""
    layers = draw.randint(2, 20)
    sizes = [1e4 * 300 ** draw.random() * (draw.random() < 0.8) for _ in range(layers)]
    return ReadyGradients((*sizes, 1e6), tuple(1e-4 * 100 ** draw.random() for _ in range(layers + 1)))

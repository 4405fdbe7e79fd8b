"""Partitions of drawn models over drawn clusters, equal to those that are kept in partitions.txt.

Limits of memory, recomputation, idle devices, three levels and unlike figures of layers are drawn together. After a change
that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

import pytest

from hocket.errors import RefusedError
from hocket.profiling.analytic import synthetic
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.kernel import _need
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule, in_flight, pipeline_bytes
from hocket.strategies.pipedream_partition.partition import Partition, partition
from tests.drawn import cluster, model
from tests.kept import check

TASKS = 150


def options(draw: random.Random, profile: ModelProfile, devices: int) -> PartitionOptions:
    """Options; half of them with memory for a part of the model on each device."""
    whole = sum(layer.weights_bytes + layer.gradients_bytes + layer.optimizer_bytes for layer in profile.layers)
    roomy = [whole * draw.uniform(0.4, 1.5)] * devices
    if draw.random() < 0.3:
        roomy = [size * draw.uniform(0.7, 1.3) for size in roomy]
    rule = MemoryRule(tuple(roomy) if draw.random() < 0.6 else (), draw.random() < 0.4, draw.choice((None, None, 2)))
    return PartitionOptions(
        rule,
        replicate=draw.random() < 0.8,
        exact_devices=draw.random() < 0.2,
        max_stages=draw.choice((None, None, 3)),
        data_parallel_within=draw.choice((0.0, 0.01, 0.2)),
    )


def shown(found: Partition) -> str:
    """Layers, devices, bytes and seconds of each stage."""
    lines = [f"{found.config}, {found.bottleneck_s:.9g} s, {found.cuts} cuts, {'exact' if found.exact else 'in part'}"]
    for (layers, devices), size, cost in zip(found.stages, found.memory_bytes, found.costs.stages, strict=True):
        lines.append(f"  layers {layers} on {devices}: {size:.9g} bytes, {cost}")
    return "\n".join(lines)


def test_partitions(update_golden: bool) -> None:
    """Stages, their costs and their memory; what cannot be divided is refused for the same reason."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        profile, there = model(draw), cluster(draw)
        asked, size = options(draw, profile, there.devices), draw.choice((1, 2, 4))
        try:
            found = shown(partition(profile, there, size, asked))
        except RefusedError as error:
            found = f"refused: {error}"
        lines.append(f"{seed}: {found}")
    check(Path(__file__).with_name("partitions.txt"), "\n".join(lines) + "\n", update_golden)


def test_the_inner_loop_counts_the_same_bytes() -> None:
    """Bytes of a stage in the search are those of the partition that is found, for every number of inputs in flight."""
    draw = random.Random(0)
    for _ in range(20):
        profile = synthetic.chain(
            3,
            activation_bytes=draw.uniform(1e5, 1e7),
            weights_bytes=draw.uniform(1e5, 1e7),
            stash_bytes=draw.uniform(1e5, 1e7),
            optimizer_bytes=draw.uniform(1e5, 1e7),
        )
        stages = tuple(((i,), (i,)) for i in range(3))
        for recompute, versions in ((False, None), (True, None), (False, 2), (True, 1)):
            held = pipeline_bytes(profile, 1, stages, recompute=recompute, weight_versions=versions)
            for s, flight in enumerate(in_flight((1, 1, 1))):
                layer = profile.layers[s]
                received = float(profile.tensor_bytes(1)[0])  # of each border as of the input
                own = layer.stash_bytes[0] + (received if s == 0 else 0.0)
                fixed = layer.gradients_bytes + layer.optimizer_bytes
                figures = layer.weights_bytes, fixed, own, received if s else 0.0
                assert _need(figures, flight, versions or flight, recompute) == pytest.approx(held[s], rel=1e-12)

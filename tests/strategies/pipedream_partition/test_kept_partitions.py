"""Partitions of drawn models over drawn clusters, equal to those that are kept in partitions.txt.

Limits of memory, recomputation, idle devices, three levels and unlike figures of layers are drawn together. After a change
that is meant, write them again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

from hocket.errors import RefusedError
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.level import PartitionOptions
from hocket.strategies.pipedream_partition.memory import MemoryRule
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

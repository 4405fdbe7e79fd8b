"""Memory of one pipeline stage on each of its devices, as the partitioner counts it.

A stage with F inputs in flight on each replica keeps F weight versions (fewer where a strategy keeps fewer), one
gradient, the optimizer's state, and F stashes: what backward needs of its own layers and the input that it received.
With recomputation it keeps F inputs and the stash of the one input that is being recomputed.
In the steady state of 1F1B-RR (section 2.4.2) F = ceil(devices from this stage to the last / replicas of this stage),
which for the input stage is NOAM. Working memory inside operators is not counted: leave headroom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.cost import Stages, journeys, owners

MAX_COUNTED_DEVICES = 32


@dataclass(frozen=True)
class MemoryRule:
    """Memory rule of a strategy: at most `weight_versions` versions (None: one for each input in flight)."""

    capacity_bytes: tuple[float, ...]
    recompute: bool = False
    weight_versions: int | None = None


def in_flight(replicas: Sequence[int]) -> tuple[int, ...]:
    """Inputs in flight on each replica of each stage, stages from input to output."""
    return tuple(-(-sum(replicas[s:]) // replicas[s]) for s in range(len(replicas)))


def pipeline_bytes(
    profile: ModelProfile,
    microbatch_size: float,
    stages: Stages,
    *,
    recompute: bool = False,
    weight_versions: int | None = None,
) -> tuple[float, ...]:
    """Bytes on each device of each stage of a pipeline, given as (layers, devices) from input to output."""
    stash = profile.column("stash_bytes", microbatch_size)
    sizes = profile.tensor_bytes(microbatch_size).tolist()
    for tensor, size in zip(profile.tensors, sizes, strict=True):
        if tensor.source < 0 and tensor.targets:
            stash[tensor.targets[0]] += size
    received = [0.0] * len(stages)
    for index, source, last in journeys(profile, owners(stages, len(profile.layers))):
        # One that skips a stage is passed on, and waits there like one that it reads.
        for s in range(source + 1, last + 1):
            received[s] += sizes[index]
    found = []
    for s, flight in enumerate(in_flight([len(devices) for _, devices in stages])):
        layers = sorted(stages[s][0])
        own = [profile.layers[i] for i in layers]
        fixed = sum(layer.gradients_bytes + layer.optimizer_bytes + layer.buffers_bytes for layer in own)
        versions = flight if weight_versions is None else min(flight, weight_versions)
        kept = float(stash[layers].sum()) * (1 if recompute else flight)
        found.append(profile.weights_bytes(layers) * versions + fixed + kept + received[s] * flight)
    return tuple(found)


def kernel_memory(
    rule: MemoryRule | None, positions: int, group: int, copies: int
) -> tuple[bool, np.ndarray, np.ndarray, int, bool]:
    """The memory rule as the sweep reads it.

    (Whether devices in use are counted, capacity by position from the pipeline's end, inputs in flight, weight
    versions, recompute.)

    A position holds `group` devices. On many positions those in use are not counted one by one: idle ones among them
    count as used, so that more inputs in flight are reckoned with than there are, never fewer.
    """
    if rule is None:
        return False, np.zeros(1), _flights(0), 1, False
    by_copy = np.array(rule.capacity_bytes).reshape(copies, -1)[:, -positions * group :]
    capacity = by_copy.reshape(copies, positions, group).min(axis=(0, 2))[::-1].copy()
    versions = 2**31 - 1 if rule.weight_versions is None else rule.weight_versions
    return positions <= MAX_COUNTED_DEVICES, capacity, _flights(positions), versions, rule.recompute


@lru_cache(maxsize=8)
def _flights(devices: int) -> np.ndarray:
    """Inputs in flight on each of r replicas, behind which `placed` devices are in use; [placed, r]."""
    placed, replicas = np.arange(devices + 1)[:, None], np.maximum(np.arange(devices + 1), 1)
    return ((placed + 2 * replicas - 1) // replicas).astype(np.uint32)

"""Memory of a pipeline stage on each of its devices, in the partitioner's model.

A stage with F inputs in flight on each replica keeps F weight versions (fewer if the strategy keeps fewer), one
gradient, the optimizer state, and F stashes. A stash is the saved activations of its own layers and the input that it
received. With recomputation the stage keeps F inputs and one stash, of the input that is being recomputed.

In the steady state of 1F1B-RR, F = ceil(devices from this stage to the last / replicas of this stage), which for the
input stage is NOAM (Narayanan's dissertation, section 2.4.2). Working memory inside operators is not counted: leave
headroom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hocket.errors import InputError
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.cost import Stages, journeys, owners

MAX_COUNTED_DEVICES = 32


@dataclass(frozen=True)
class MemoryRule:
    """Memory of the devices, and what a strategy keeps in it.

    Attributes:
        capacity_bytes: memory of each device; empty for no limit.
        recompute: True if stages recompute saved activations.
        weight_versions: maximum number of weight versions; None for one for each input in flight.

    Raises:
        InputError: fewer than one weight version.
    """

    capacity_bytes: tuple[float, ...] = ()
    recompute: bool = False
    weight_versions: int | None = None

    def __post_init__(self) -> None:
        if self.weight_versions is not None and self.weight_versions < 1:
            raise InputError("weight_versions", str(self.weight_versions), ">= 1")

    @property
    def limits(self) -> bool:
        """True if the memory of the devices is limited."""
        return bool(self.capacity_bytes)


def in_flight(replicas: Sequence[int]) -> tuple[int, ...]:
    """Inputs in flight on each replica, by stage from input to output.

    Arguments:
        replicas: number of replicas of each stage.
    """
    return tuple(-(-sum(replicas[s:]) // replicas[s]) for s in range(len(replicas)))


def pipeline_bytes(
    profile: ModelProfile,
    microbatch_size: float,
    stages: Stages,
    *,
    recompute: bool = False,
    weight_versions: int | None = None,
) -> tuple[float, ...]:
    """Bytes on each device of a stage, by stage.

    Arguments:
        stages: (layers, devices) from input to output.
        recompute: True if stages recompute saved activations.
        weight_versions: maximum number of weight versions; None for one for each input in flight.
    """
    stash = profile.column("stash_bytes", microbatch_size)
    sizes = profile.tensor_bytes(microbatch_size).tolist()
    for tensor, size in zip(profile.tensors, sizes, strict=True):
        if tensor.source < 0 and tensor.targets:
            stash[tensor.targets[0]] += size
    received = [0.0] * len(stages)
    for index, source, last in journeys(profile, owners(stages, len(profile.layers))):
        # A tensor that skips a stage is passed on there, and waits like a tensor that the stage reads.
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
    rule: MemoryRule, positions: int, group: int, copies: int
) -> tuple[bool, np.ndarray, np.ndarray, int, bool]:
    """Tables of a memory rule for `kernel.sweep`.

    On more than MAX_COUNTED_DEVICES positions, used positions are not counted, and idle positions count as used. The
    number of inputs in flight is then too large, never too small.

    Arguments:
        positions: number of positions of one copy of the pipeline.
        group: number of devices of a position.
        copies: number of copies.

    Returns:
        - True if used positions are counted.
        - Bytes of memory of a device by position, from the pipeline's end.
        - Inputs in flight by used positions and replicas (`_flights`).
        - Maximum number of weight versions.
        - True if stages recompute saved activations.
    """
    if not rule.limits:
        return False, np.zeros(1), _flights(0), 1, False
    by_copy = np.array(rule.capacity_bytes, dtype=float).reshape(copies, -1)[:, -positions * group :]
    capacity = by_copy.reshape(copies, positions, group).min(axis=(0, 2))[::-1].copy()
    versions = 2**31 - 1 if rule.weight_versions is None else rule.weight_versions
    return positions <= MAX_COUNTED_DEVICES, capacity, _flights(positions), versions, rule.recompute


@lru_cache(maxsize=8)
def _flights(devices: int) -> np.ndarray:
    """Inputs in flight on each replica of a stage.

    Arguments:
        devices: maximum number of devices.

    Returns:
        Shape (devices + 1, devices + 1). Rows are by number of devices in use after the stage, columns by number of
        replicas of the stage.
    """
    placed, replicas = np.arange(devices + 1)[:, None], np.maximum(np.arange(devices + 1), 1)
    return ((placed + 2 * replicas - 1) // replicas).astype(np.uint32)

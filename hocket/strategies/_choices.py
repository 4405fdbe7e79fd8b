"""What strategies offer to the planner: balanced pipelines, replicas, interleavings and the partitioner's plans."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from typing import Any

import numpy as np

from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.passes.borders import StageCut
from hocket.passes.gradients import DEFAULT_BUCKET_BYTES, buckets_of
from hocket.profile.model import ModelProfile
from hocket.strategies._balance import balanced
from hocket.strategies._pipedream_cost import Sync

MAX_MICROBATCHES = 64
SYNC: tuple[Sync, ...] = ("paper", "ring")


@dataclass(frozen=True)
class Situation:
    """What there is to choose for.

    Attributes:
        batch_size: samples of one update.
        microbatch_sizes: candidate sizes; by default those of the profile that are not larger than the batch.
        bucket_bytes: size at which a gradient bucket closes.
    """

    profile: ModelProfile
    cluster: Cluster
    batch_size: int
    microbatch_sizes: tuple[int, ...] = ()
    bucket_bytes: float = DEFAULT_BUCKET_BYTES

    @property
    def sizes(self) -> tuple[int, ...]:
        """Microbatch sizes to try, ascending."""
        given = self.microbatch_sizes or self.profile.microbatch_sizes
        fitting = tuple(b for b in given if b <= self.batch_size and ceil(self.batch_size / b) <= MAX_MICROBATCHES)
        return fitting or (self.batch_size,)


@dataclass(frozen=True)
class Choice:
    """One candidate: stages, microbatch size and the strategy's options."""

    stages: tuple[StageCut, ...]
    microbatch_size: int
    microbatches: int
    options: dict[str, Any] = field(default_factory=dict)


def cut(
    situation: Situation, layers: range | tuple[int, ...], devices: tuple[int, ...], recompute: bool = False
) -> StageCut:
    """A stage with its gradient buckets: one bucket where nobody waits for it, else as the bucket size says."""
    layers = tuple(layers)
    if len(devices) == 1:
        return StageCut(layers, devices, recompute)
    sizes = [situation.profile.layers[i].gradients_bytes for i in layers]
    buckets = tuple(tuple(layers[i] for i in bucket) for bucket in buckets_of(sizes, situation.bucket_bytes))
    return StageCut(layers, devices, recompute, buckets)


def replicas(situation: Situation) -> Iterator[Choice]:
    """One stage on 1 to all devices."""
    everything = range(len(situation.profile.layers))
    for size in situation.sizes:
        microbatches = ceil(situation.batch_size / size)
        for width in _widths(situation.cluster.devices):
            if width <= microbatches:
                for recompute in (False, True):
                    stage = cut(situation, everything, tuple(range(width)), recompute)
                    yield Choice((stage,), size, microbatches)


def pipelines(situation: Situation, recompute: bool = False) -> Iterator[Choice]:
    """Pipelines of every depth p >= 2 and width d with p * d devices, balanced by measured cost.

    The replicas of one stage stand side by side, so that their all-reduce stays on fast links where it can (3.2.3).
    """
    devices = situation.cluster.devices
    for size in situation.sizes:
        microbatches = ceil(situation.batch_size / size)
        for depth in range(2, min(devices, len(situation.profile.layers)) + 1):
            for width in _widths(devices // depth):
                if width > microbatches:
                    continue
                runs = balanced(situation.profile, situation.cluster, size, depth)
                for again in (False, True) if recompute else (False,):
                    stages = tuple(
                        cut(situation, run, tuple(range(s * width, (s + 1) * width)), again)
                        for s, run in enumerate(runs)
                    )
                    yield Choice(stages, size, microbatches)


def interleavings(situation: Situation) -> Iterator[Choice]:
    """Depth p, width d, and v = 2, 4, ... chunks a device."""
    devices, layers = situation.cluster.devices, len(situation.profile.layers)
    for size in situation.sizes:
        microbatches = ceil(situation.batch_size / size)
        for depth in range(2, devices + 1):
            for width in _widths(devices // depth):
                if microbatches % (depth * width):
                    continue
                chunks = 2
                while depth * chunks <= layers:
                    runs = balanced(situation.profile, situation.cluster, size, depth * chunks)
                    stages = tuple(
                        cut(situation, run, tuple(range(s % depth * width, (s % depth + 1) * width)))
                        for s, run in enumerate(runs)
                    )
                    yield Choice(stages, size, microbatches)
                    chunks *= 2


def partitioned(situation: Situation) -> Iterator[Choice]:
    """The plans of the PipeDream partitioner, for each microbatch size: under both readings of its synchronisation
    cost, with replication and straight, with memory out of account and within every device's, and with fewer inputs in
    flight."""
    from hocket.strategies._partition import partition

    profile, cluster = situation.profile, situation.cluster
    capacity = [cluster.capacity_bytes(d) for d in range(cluster.devices)]
    seen = set()
    for size in situation.sizes:
        for sync, replicate, limit in product(SYNC, (True, False), (None, capacity)):
            try:
                found = partition(profile, cluster, size, replicate=replicate, memory_bytes=limit, sync=sync)
            except RefusedError:
                continue  # nothing fits this size; other sizes may, and the simulator says what a plan needs
            for in_flight in (None, *range(1, len(found.stages))):
                key = (size, found.stages, in_flight)
                if key not in seen:
                    seen.add(key)
                    stages = tuple(cut(situation, layers, devices) for layers, devices in found.stages)
                    options = {} if in_flight is None else {"in_flight": in_flight}
                    yield Choice(stages, size, 1, options)


def _widths(limit: int) -> list[int]:
    """1, 2, 3, ... up to 8, then powers of two and the limit itself."""
    found = set(range(1, min(limit, 8) + 1)) | {int(w) for w in 2 ** np.arange(0, 20) if w <= limit} | {limit}
    return sorted(w for w in found if w >= 1)

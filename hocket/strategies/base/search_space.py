"""Candidates of strategies.

They are balanced pipelines, replicas, FSDP units, interleaved schedules and the plans of PipeDream's partitioner.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from math import ceil, lcm
from typing import Any

import numpy as np

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from hocket.program.passes.gradients import DEFAULT_BUCKET_BYTES, buckets_of
from hocket.strategies.base.balance import Balancer, Ends, runs
from hocket.strategies.pipedream_partition.cost import Sync

MAX_MICROBATCHES = 64
_MOST_UNITS = 64
# Forwards in one period. Stages whose numbers of replicas have no common factor repeat only after very many
# microbatches. Such a program is too long to read, to check or to simulate.
MAX_FORWARDS = 8192
SYNC: tuple[Sync, ...] = ("paper", "ring")


@dataclass(frozen=True)
class SearchSpace:
    """Search space of strategies: profile, cluster, batch and limits.

    Attributes:
        batch_size: samples of one update.
        microbatch_sizes: candidate sizes; by default the profile's sizes up to the batch size.
        bucket_bytes: size at which a gradient bucket closes.
        rebuckets: True if plans may later get other buckets and communication threads (planning/buckets/assign.py).
            Lower bounds then hold for all buckets and threads.
        shard: sharding among replicas (program.SHARDS) of every candidate; None for each strategy's own
            choice and its variant with sharded optimizer state (`shared`).
        amplification_limit: limit of an iteration's device-seconds, relative to the seconds of one device alone; None
            for no limit.
    """

    profile: ModelProfile
    cluster: Cluster
    batch_size: int
    microbatch_sizes: tuple[int, ...] = ()
    bucket_bytes: float = DEFAULT_BUCKET_BYTES
    rebuckets: bool = False
    shard: str | None = None
    amplification_limit: float | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("batch_size", str(self.batch_size), ">= 1")
        for size in self.microbatch_sizes:
            if not 1 <= size <= self.batch_size:
                expected = f"a number from 1 to {self.batch_size} (the batch size)"
                raise InputError("microbatch_sizes", str(size), expected)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Microbatch sizes to try, ascending."""
        given = self.microbatch_sizes or self.profile.microbatch_sizes
        fitting = tuple(b for b in given if b <= self.batch_size and ceil(self.batch_size / b) <= MAX_MICROBATCHES)
        return fitting or (self.batch_size,)

    @cached_property
    def straight(self) -> "tuple[Candidate, ...]":
        """Pipelines without recomputation, shared by several strategies (see `pipelines`)."""
        return tuple(_straight(self))

    @cached_property
    def saving(self) -> "tuple[Candidate, ...]":
        """Pipelines of `straight`, with recomputation if memory is short.

        Recomputation begins with the first stage, which holds most stashes in 1F1B, then takes the first two, up to
        all.
        """
        return tuple(
            replace(choice, thriftier=tuple(recomputing(choice, k + 1) for k in range(len(choice.stages))))
            for choice in self.straight
        )

    def bucketed(self, layers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Gradient buckets of a replicated stage: the layers of each bucket."""
        if layers not in self._buckets:
            sizes = [self.profile.layers[i].gradients_bytes for i in layers]
            found = buckets_of(sizes, self.bucket_bytes)
            self._buckets[layers] = tuple(tuple(layers[i] for i in bucket) for bucket in found)
        return self._buckets[layers]

    @cached_property
    def _buckets(self) -> dict[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        return {}


@dataclass(frozen=True)
class Candidate:
    """One candidate: stages, microbatch size and the strategy's options.

    Attributes:
        thriftier: variants with less memory and more time, to be tried in this order if the candidate does not fit.
    """

    stages: tuple[StageCut, ...]
    microbatch_size: int
    microbatches: int
    options: dict[str, Any] = field(default_factory=dict)
    thriftier: "tuple[Candidate, ...]" = ()


def cut(
    space: SearchSpace, layers: range | tuple[int, ...], devices: tuple[int, ...], recompute: bool = False
) -> StageCut:
    """Build a stage with its gradient buckets.

    A stage without replicas has one bucket. Otherwise buckets close at the search space's bucket size.
    """
    layers = tuple(layers)
    buckets = space.bucketed(layers) if len(devices) > 1 else ()
    return StageCut(layers, devices, recompute, buckets, shard=space.shard or "none")


def units(space: SearchSpace) -> Iterator[Candidate]:
    """Yield FSDP candidates: 1, 2, 4, ... units of equal cost on 2 to all devices.

    With full sharding, the weights of a unit are whole only during its computation.
    """
    for size in space.sizes if space.shard != "none" else ():
        microbatches = ceil(space.batch_size / size)
        found = Balancer(space.profile, size).cuts(min(len(space.profile.layers), _MOST_UNITS))
        for width in _widths(space.cluster.devices):
            if width < 2 or microbatches % width:
                continue
            for count in (2**k for k in range(len(found).bit_length())):
                if count <= len(found) and (count > 1 or space.shard in (None, "full")):  # else it is data parallelism
                    devices = tuple(range(width))
                    own = (cut(space, layers, devices) for layers in runs(found[count - 1]))
                    plain = Candidate(
                        tuple(replace(one, shard=space.shard or "full") for one in own), size, microbatches
                    )
                    yield replace(plain, thriftier=(recomputing(plain),))


def recomputing(choice: Candidate, first: int | None = None) -> Candidate:
    """The candidate with recomputation in the `first` stages, or in all."""
    many = len(choice.stages) if first is None else first
    return replace(choice, stages=tuple(replace(stage, recompute=k < many) for k, stage in enumerate(choice.stages)))


def shared(choice: Candidate) -> Candidate | None:
    """The candidate with optimizer state and step sharded among replicas.

    None without replicas, or if something is sharded already.
    """
    if any(stage.sharded for stage in choice.stages) or all(len(stage.devices) == 1 for stage in choice.stages):
        return None
    return replace(choice, stages=tuple(replace(one, shard="optimizer") for one in choice.stages), thriftier=())


def replicas(space: SearchSpace) -> Iterator[Candidate]:
    """Yield data-parallel candidates: one stage on 1 to all devices."""
    everything = range(len(space.profile.layers))
    for size in space.sizes:
        microbatches = ceil(space.batch_size / size)
        for width in _widths(space.cluster.devices):
            if width <= microbatches:
                plain = Candidate((cut(space, everything, tuple(range(width))),), size, microbatches)
                yield replace(plain, thriftier=(recomputing(plain),))


def pipelines(space: SearchSpace, recompute: bool = False) -> Iterator[Candidate]:
    """Yield pipelines of every depth p >= 2 and width d, balanced by measured cost.

    A pipeline uses p * d devices. The replicas of one stage are neighbours, so that their all-reduce stays on fast
    links where possible (Narayanan's dissertation, section 3.2.3).

    Each depth is balanced for several prices of a byte on each level of the cluster. The prices follow from the
    profile alone. The candidates therefore do not depend on the speed of links, and faster links never remove the
    best candidate.
    """
    yield from space.saving if recompute else space.straight


def _straight(space: SearchSpace) -> Iterator[Candidate]:
    devices = space.cluster.devices
    for size in space.sizes:
        microbatches = ceil(space.batch_size / size)
        balancer = Balancer(space.profile, size)
        for width in _widths(devices // 2):
            if width > microbatches:
                continue
            for depth, offered in enumerate(_balanced(space, balancer, devices // width, width), start=1):
                for ends in offered if depth > 1 else ():
                    stages = tuple(
                        cut(space, run, tuple(range(s * width, (s + 1) * width))) for s, run in enumerate(runs(ends))
                    )
                    yield Candidate(stages, size, microbatches)


def _balanced(space: SearchSpace, balancer: Balancer, stages: int, width: int) -> list[list[Ends]]:
    """Distinct cuts into 1, 2, ... stages of `width` devices each."""
    level = [space.cluster.level_between((s + 1) * width - 1, (s + 1) * width) for s in range(stages - 1)]
    used = sorted(set(level))
    found: list[dict[Ends, None]] = []
    # An outer level is seldom faster than an inner level, so prices never fall from inner to outer levels. Equal
    # prices serve a cluster with a faster outer level.
    for prices in combinations_with_replacement(balancer.prices, len(used)):
        price = dict(zip(used, prices, strict=True))
        _collect(found, balancer.cuts(stages, [price[at] for at in level]))
    return [list(ends) for ends in found]


def _collect(found: list[dict[Ends, None]], cuts: list[Ends]) -> None:
    for k, ends in enumerate(cuts):
        if k == len(found):
            found.append({})
        found[k].setdefault(ends)


def interleavings(space: SearchSpace) -> Iterator[Candidate]:
    """Yield interleaved pipelines: depth p, width d, v = 2, 4, ... chunks a device."""
    devices, layers = space.cluster.devices, len(space.profile.layers)
    for size in space.sizes:
        microbatches = ceil(space.batch_size / size)
        balancer = Balancer(space.profile, size)
        found: list[dict[Ends, None]] = []
        for price in balancer.prices:
            _collect(found, balancer.cuts(layers, [price] * (layers - 1)))
        for depth in range(2, min(devices, layers // 2) + 1):
            for width in _widths(devices // depth):
                if microbatches % (depth * width):
                    continue
                chunks = 2
                while depth * chunks <= len(found):
                    for ends in found[depth * chunks - 1]:
                        stages = tuple(
                            cut(space, run, tuple(range(s % depth * width, (s % depth + 1) * width)))
                            for s, run in enumerate(runs(ends))
                        )
                        yield Candidate(stages, size, microbatches)
                    chunks *= 2


def period_forwards(stages: tuple[StageCut, ...], microbatches: int = 1) -> int:
    """Number of forwards in one period of a schedule.

    A period covers whole batches and whole rounds of the replicas of every stage.
    """
    turns = lcm(microbatches, *(len(stage.devices) * stage.merged for stage in stages))
    return sum(turns // stage.merged for stage in stages)


def partitioned(space: SearchSpace) -> Iterator[Candidate]:
    """Yield plans of PipeDream's partitioner for each microbatch size.

    - Synchronisation cost: both readings of the paper.
    - Replication: with replicas, and straight.
    - Memory: without a limit, and within the memory of every device.
    - Inputs in flight: NOAM, and fewer if memory is short.

    If the period of the best plan is too long (`MAX_FORWARDS`), the best plan with fewer stages follows.
    """
    from hocket.strategies.pipedream_partition.cuts import cuts
    from hocket.strategies.pipedream_partition.level import PartitionOptions
    from hocket.strategies.pipedream_partition.memory import MemoryRule
    from hocket.strategies.pipedream_partition.partition import partition

    readings: tuple[Sync, ...] = ("paper", "ring")
    profile, cluster = space.profile, space.cluster
    capacity = MemoryRule(tuple(cluster.capacity_bytes(d) for d in range(cluster.devices)))
    seen = set()
    for size in space.sizes:
        places = cuts(profile, size)
        for sync, replicate, rule in product(readings, (True, False), (MemoryRule(), capacity)):
            most: int | None = None
            while most is None or most >= 1:
                options = PartitionOptions(rule, replicate, max_stages=most, sync=sync)
                try:
                    found = partition(profile, cluster, size, options, places)
                except RefusedError:
                    break  # no plan fits at this size; other sizes may fit
                stages = tuple(cut(space, layers, devices) for layers, devices in found.stages)
                if (size, stages) not in seen:
                    seen.add((size, stages))
                    yield Candidate(stages, size, 1, {}, _throttled(stages, size))
                if period_forwards(stages) <= MAX_FORWARDS:
                    break
                most = len(stages) // 2


def _throttled(stages: tuple[StageCut, ...], size: int) -> tuple[Candidate, ...]:
    """Variants with fewer inputs in flight, from NOAM - 1 down to 1.

    NOAM: Narayanan's dissertation, section 2.4.2.
    """
    most = min(len(stages), ceil(sum(len(stage.devices) for stage in stages) / len(stages[0].devices)))
    return tuple(Candidate(stages, size, 1, {"in_flight": k}) for k in range(most - 1, 0, -1))


def _widths(limit: int) -> list[int]:
    """Data-parallel sizes to try: 1 to 8, then powers of two, and the limit itself."""
    found = set(range(1, min(limit, 8) + 1)) | {int(w) for w in 2 ** np.arange(0, 20) if w <= limit} | {limit}
    return sorted(w for w in found if w >= 1)

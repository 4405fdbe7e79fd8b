"""Search space, and the candidate plans that strategies propose in it.

Candidates are balanced pipelines, data parallelism, FSDP, interleaved schedules and the plans of PipeDream's
partitioner.
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
# Maximum number of forwards in one steady-state period. If the stages' numbers of replicas have no common factor, a
# schedule repeats only after very many microbatches. Such a program is too long to read, to check or to simulate.
MAX_FORWARDS = 8192
SYNC: tuple[Sync, ...] = ("paper", "ring")


@dataclass(frozen=True)
class SearchSpace:
    """Search space of strategies: profile, cluster, batch and limits.

    Attributes:
        batch_size: samples of one update.
        microbatch_sizes: microbatch sizes to try; by default a choice of the profile's (`sizes`).
        bucket_bytes: size at which a gradient bucket closes.
        rebuckets: True if plans may later get other buckets and communication threads (planning/buckets/assign.py).
            Lower bounds then hold for all buckets and threads.
        shard: what every candidate shards among replicas (SHARDS in program/program.py). None: each strategy decides,
            and a variant with sharded optimizer state (`shared`) is tried as well.
        amplification_limit: maximum of an iteration's device-seconds, as a multiple of the seconds that one device
            alone needs for the batch; None for no limit.
        prefetch: number of microbatches that every candidate loads ahead (Program.prefetch).
        loaders: number of processes of each worker that read its samples ahead.
    """

    profile: ModelProfile
    cluster: Cluster
    batch_size: int
    microbatch_sizes: tuple[int, ...] = ()
    bucket_bytes: float = DEFAULT_BUCKET_BYTES
    rebuckets: bool = False
    shard: str | None = None
    amplification_limit: float | None = None
    prefetch: int = 0
    loaders: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("batch_size", str(self.batch_size), ">= 1")
        for size in self.microbatch_sizes:
            if not 1 <= size <= self.batch_size:
                expected = f"a number from 1 to {self.batch_size} (the batch size)"
                raise InputError("microbatch_sizes", str(size), expected)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Microbatch sizes to try: the given ones, or else a choice of the profile's.

        Profiled sizes that give more than `MAX_MICROBATCHES` microbatches are left out, except the largest if no other
        is left: a larger microbatch was never measured. If even the smallest exceeds the batch, it is the batch size.
        """
        if self.microbatch_sizes:
            return self.microbatch_sizes
        fitting = tuple(b for b in self.profile.microbatch_sizes if b <= self.batch_size) or (self.batch_size,)
        few = tuple(b for b in fitting if ceil(self.batch_size / b) <= MAX_MICROBATCHES)
        return few or (max(fitting),)

    @cached_property
    def straight(self) -> "tuple[Candidate, ...]":
        """Balanced pipelines without recomputation (see `pipelines`)."""
        return tuple(_straight(self))

    @cached_property
    def saving(self) -> "tuple[Candidate, ...]":
        """Balanced pipelines (`straight`), each with variants that recompute activations.

        The variants (`Candidate.thriftier`) are tried if the pipeline does not fit into memory. The first variant
        recomputes the first stage, which holds the most saved activations in 1F1B. The next one recomputes the first
        two stages, and so on up to all.
        """
        return tuple(
            replace(choice, thriftier=tuple(recomputing(choice, k + 1) for k in range(len(choice.stages))))
            for choice in self.straight
        )

    def bucketed(self, layers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Layers of each gradient bucket of a replicated stage.

        Arguments:
            layers: indices of the stage's layers.
        """
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
    """Candidate plan: stages, microbatch size and the strategy's options.

    Attributes:
        microbatches: number of microbatches in a batch.
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
    """Yield FSDP candidates: 1, 2, 4, ... units of similar cost on 2 to all devices.

    With full sharding, the weights of a unit are whole only during its computation. The number of devices divides the
    number of microbatches.
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
    """Copy of a candidate that recomputes the saved activations of some stages.

    Arguments:
        first: number of stages that recompute, from the first on; None for all.
    """
    many = len(choice.stages) if first is None else first
    return replace(choice, stages=tuple(replace(stage, recompute=k < many) for k, stage in enumerate(choice.stages)))


def shared(choice: Candidate) -> Candidate | None:
    """Copy of a candidate with optimizer state and step sharded (ZeRO-1).

    Returns:
        None if no stage has replicas, or if something is sharded already.
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
    """Yield balanced pipelines of p >= 2 stages with d replicas each.

    A pipeline uses p * d devices. The replicas of one stage are neighbours, so that their all-reduce stays on fast
    links where possible (Narayanan's dissertation, section 3.2.3).

    Stages are balanced by measured cost, for several prices of a byte on each level of the cluster. The prices follow
    from the profile alone. The candidates therefore do not depend on the speed of links, and faster links never remove
    the best candidate.

    Arguments:
        recompute: True to add variants with recomputation (`SearchSpace.saving`).
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
    """Distinct cuts into 1, 2, ... `stages` stages of `width` replicas each.

    Returns:
        For each number of stages, the cuts for all combinations of prices (`Balancer.cuts`).
    """
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
    """Yield interleaved pipelines: p x d devices, each with v = 2, 4, ... chunks.

    p is the pipeline-parallel size, d the data-parallel size. p * d divides the number of microbatches.
    """
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
    """Number of forwards of all stages in one steady-state period of a schedule.

    A period covers whole batches, and every replica of a stage has the same number of turns in it.

    Arguments:
        microbatches: number of microbatches in a batch.
    """
    turns = lcm(microbatches, *(len(stage.devices) * stage.merged for stage in stages))
    return sum(turns // stage.merged for stage in stages)


def partitioned(space: SearchSpace) -> Iterator[Candidate]:
    """Yield plans of PipeDream's partitioner for each microbatch size.

    All combinations of these are tried:

    - Synchronisation cost: both readings of the paper (pipedream_partition/cost.py).
    - Replication: with replicas, and straight.
    - Memory: without a limit, and within the memory of every device.

    Each plan has NOAM inputs in flight, and variants with fewer if memory is short. If the steady-state period of a
    plan is too long (`MAX_FORWARDS`), the best plan with at most half as many stages follows.
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

    Arguments:
        size: microbatch size.
    """
    most = min(len(stages), ceil(sum(len(stage.devices) for stage in stages) / len(stages[0].devices)))
    return tuple(Candidate(stages, size, 1, {"in_flight": k}) for k in range(most - 1, 0, -1))


def _widths(limit: int) -> list[int]:
    """Data-parallel sizes to try: 1 to 8, then powers of two, and the limit itself."""
    found = set(range(1, min(limit, 8) + 1)) | {int(w) for w in 2 ** np.arange(0, 20) if w <= limit} | {limit}
    return sorted(w for w in found if w >= 1)

"""Burst-parallel plans: the number of devices of every layer.

Source: Park et al., "Efficient strong scaling through burst parallel training" (DeepPool, MLSys 2022), section 4. The
printed algorithm and the exact search differ: docs/explanation/deeppool.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.strategies.burst.algorithm1 import search_linear
from hocket.strategies.burst.constraints import BurstLimits, ConstrainedCounts, fastest_kept, gpu_s, peak_bytes
from hocket.strategies.burst.costs import BurstCosts
from hocket.strategies.burst.graph import BurstGraph, graph_of
from hocket.strategies.burst.redistribution import device_order
from hocket.strategies.burst.search import SLACK, BurstSearch
from hocket.util.units import show_count, show_seconds


@dataclass(frozen=True)
class BurstLayer:
    """One layer of a plan.

    A unit is a run of layers that stay together, nearly always one layer.

    Attributes:
        devices: devices of the layer; position k has the k-th share of the batch. Shares are as equal as possible, and
            none is larger than the first.
        comp_s: seconds of forward, backward and step of the largest share.
        comm_s: seconds to transfer input activations and their gradients. The first layer of a unit has the seconds of
            the whole unit, the others have 0.
        sync_s: seconds of the all-reduce of gradients. The first layer of a unit has the seconds of the whole unit,
            the others have 0.
        amplification: GPU-seconds of the layer's unit divided by its seconds on one device. Only the longest incoming
            transfer counts.
    """

    devices: tuple[int, ...]
    comp_s: float
    comm_s: float
    sync_s: float
    amplification: float


@dataclass(frozen=True)
class BurstRun:
    """Consecutive layers on the same devices; `layers` are indices into the profile."""

    layers: tuple[int, ...]
    devices: tuple[int, ...]


@dataclass(frozen=True)
class BurstPlan:
    """Burst-parallel plan: number of devices of each layer, with predicted seconds and bytes.

    Attributes:
        layers: the layers in the order of the profile.
        iteration_s: seconds of one batch and its step; of branches in parallel only the longest counts.
        gpu_s: seconds times devices, summed over layers.
        amplification: gpu_s divided by the seconds of one device alone.
        data_parallel_s: seconds of an iteration with every layer on the maximum number of devices.
        peak_bytes: bytes of the device that holds the most.
        remarks: warnings for the user.
    """

    layers: tuple[BurstLayer, ...]
    iteration_s: float
    gpu_s: float
    amplification: float
    data_parallel_s: float
    peak_bytes: float
    remarks: tuple[str, ...] = ()

    @property
    def runs(self) -> tuple[BurstRun, ...]:
        """The layers, grouped into runs of consecutive layers on the same devices."""
        groups = groupby(range(len(self.layers)), key=lambda i: self.layers[i].devices)
        return tuple(BurstRun(tuple(layers), devices) for devices, layers in groups)


@dataclass(frozen=True)
class DeviceCounts:
    """Numbers of devices that a layer may have.

    Attributes:
        powers_of_two: True for 1, 2, 4, ... devices; False for any number.
        counts: possible numbers of devices, instead of `powers_of_two`; 1 is added.
        least: smallest number of devices of a layer without a fixed number, so that shares of the batch are not larger
            than the profiled microbatches. If all possible numbers are smaller, it is the only one.
        only: fixed number of devices of some layers, by index in the profile.
    """

    powers_of_two: bool = True
    counts: tuple[int, ...] | None = None
    least: int = 1
    only: Mapping[int, int] = field(default_factory=dict)

    def of(self, cluster: Cluster, batch_size: int) -> tuple[int, ...]:
        """Possible numbers of devices for a batch on a cluster, ascending.

        Raises:
            InputError: a number below 1 or above the devices of the cluster or the samples of the batch, or a batch
                without samples.
        """
        most, fixed = _most(cluster, batch_size), self.only.values()
        if not 1 <= self.least <= most:
            raise InputError("least", str(self.least), f"1 to {most}")
        for place, given in (("counts", self.counts or ()), ("only", fixed)):
            for count in given:
                if not 1 <= count <= most:
                    there = f"{show_count(cluster.devices, 'device')} and {show_count(batch_size, 'sample')}"
                    raise InputError(place, str(count), f"1 to {most}: there are {there}")
        if self.counts is not None:
            free: Iterable[int] = (1, *self.counts)
        else:
            free = (2**k for k in range(most.bit_length())) if self.powers_of_two else range(1, most + 1)
        numbers = sorted({*free, *fixed})
        return tuple(number for number in numbers if number >= self.least or number in fixed) or (self.least,)


def plan_burst(
    profile: ModelProfile,
    cluster: Cluster,
    batch_size: int,
    limits: BurstLimits | None = None,
    counts: DeviceCounts | None = None,
    bucket_bytes: float = 0.0,
) -> BurstPlan:
    """Find the numbers of devices of a job's layers that make an iteration fastest.

    Arguments:
        batch_size: samples of a batch.
        limits: limits of the plan; by default `BurstLimits()`.
        counts: numbers of devices that a layer may have; by default powers of two.
        bucket_bytes: size of a gradient bucket, so that a layer has only its share of an all-reduce's latency; 0 for
            an all-reduce of every layer, as in the paper.

    Raises:
        InputError: an argument is invalid, or no plan keeps the limits; the message says why.
    """
    limits, counts = limits or BurstLimits(), counts or DeviceCounts()
    if not bucket_bytes >= 0:
        raise InputError("bucket_bytes", str(bucket_bytes), ">= 0")
    graph, numbers = graph_of(profile), counts.of(cluster, batch_size)
    costs = BurstCosts(profile, cluster, batch_size, numbers, graph.units, bucket_bytes)
    room = costs.capacity_bytes if limits.memory_bytes is None else limits.memory_bytes
    fixed = _fixed(graph, numbers, counts.only)
    found = fastest_kept(costs, graph, limits.of_layer, fixed, limits.of_whole, room)
    return _plan(costs, graph, found, limits.of_layer)


def plan_printed(
    profile: ModelProfile, cluster: Cluster, batch_size: int, amplification_limit: float | None = 2.0
) -> BurstPlan:
    """Find the numbers of devices by the paper's Algorithm 1 to the letter.

    Arguments:
        amplification_limit: maximum of every layer's GPU-seconds divided by its seconds on one device; None for no
            limit. The algorithm has no other limit.

    Raises:
        InputError: an argument is invalid.
    """
    limit = BurstLimits(amplification_limit).of_layer
    graph = graph_of(profile)
    costs = BurstCosts(profile, cluster, batch_size, DeviceCounts().of(cluster, batch_size), graph.units)
    search = BurstSearch(costs, graph.row, inf, {})
    alone_s = [float(costs.alone_s[u]) for u in graph.row.units]
    steps = islice((step[0] for step in search.steps()), len(alone_s))  # the algorithm ends with the last layer
    found = search_linear(steps, alone_s, costs.counts, limit)[1]
    return _plan(costs, graph, ConstrainedCounts(search, (found[0], *found, found[-1])), limit)


def _fixed(graph: BurstGraph, numbers: tuple[int, ...], only: Mapping[int, int]) -> dict[int, int]:
    """Fixed numbers of devices by unit, as indices into `numbers`.

    If layers of a unit have different fixed numbers, the largest is used.

    Arguments:
        numbers: possible numbers of devices.
        only: fixed number of devices of some layers, by index in the profile.
    """
    fixed: dict[int, int] = {}
    for u, unit in enumerate(graph.units):
        asked = [only[i] for i in unit if i in only]
        if asked:
            fixed[u] = numbers.index(max(asked))
    return fixed


def _plan(costs: BurstCosts, graph: BurstGraph, found: ConstrainedCounts, limit: float) -> BurstPlan:
    where = {one.unit: one for one in found.placed}
    layers: list[BurstLayer] = []
    for u, unit in enumerate(graph.units):
        one = where[u]
        devices = device_order(int(costs.counts[one.count]), one.first)
        sync_s = float(costs.sync_s[u, one.count])
        for k, i in enumerate(unit):
            comp_s, head = float(costs.layer_comp_s[i, one.count]), k == 0
            layers.append(BurstLayer(devices, comp_s, one.comm_s * head, sync_s * head, one.amplification))
    spent_s, alone_s = gpu_s(costs, found.placed), float(costs.alone_s.sum())
    parallel_s = _data_parallel_s(costs)
    return BurstPlan(
        layers=tuple(layers),
        iteration_s=found.seconds,
        gpu_s=spent_s,
        amplification=spent_s / alone_s if alone_s else 1.0,
        data_parallel_s=parallel_s,
        peak_bytes=peak_bytes(costs, found.placed),
        remarks=tuple(_remarks(costs, graph, found, parallel_s, limit)),
    )


def _most(cluster: Cluster, batch_size: int) -> int:
    """Maximum number of devices of a layer: each has at least one sample.

    Raises:
        InputError: a batch without samples.
    """
    if batch_size < 1:
        raise InputError("batch_size", str(batch_size), ">= 1")
    return min(cluster.devices, batch_size)


def _data_parallel_s(costs: BurstCosts) -> float:
    most = _most(costs.cluster, costs.batch_size)
    whole = costs.on((most,))
    return float(whole.own_s.sum())


def _remarks(
    costs: BurstCosts, graph: BurstGraph, found: ConstrainedCounts, parallel_s: float, limit: float
) -> Iterator[str]:
    cluster, batch_size = costs.cluster, costs.batch_size
    if found.seconds > parallel_s * SLACK:
        most = show_count(_most(cluster, batch_size), "device")
        yield (
            f"slower than data parallelism on {most}: {show_seconds(found.seconds)} an iteration instead of "
            f"{show_seconds(parallel_s)}; the limits exclude data parallelism"
        )
    above = [one for one in found.placed if one.amplification > limit * SLACK]
    if above:
        worst = max(one.amplification for one in above)
        yield f"{show_count(len(above), 'unit')} above the amplification limit: {worst:.3g}, at most {limit:g} allowed"
    shares = sorted({int(costs.shares[one.count]) for one in found.placed})
    profiled = costs.profile.microbatch_sizes
    if shares[-1] > profiled[-1]:
        yield (
            f"{shares[-1]:,} samples on a device are more than were profiled: "
            f"seconds are scaled in proportion from {profiled[-1]:,}"
        )
    if shares[0] < profiled[0]:
        yield f"{shares[0]:,} samples on a device are fewer than were profiled: seconds are extrapolated linearly"
    uneven = sorted({int(costs.counts[one.count]) for one in found.placed if batch_size % costs.counts[one.count]})
    if uneven:
        numbers = ", ".join(map(str, uneven))
        yield f"{numbers} devices do not divide {batch_size:,} samples evenly: devices with one more determine the time"
    for unit in graph.units:
        if len(unit) > 1:
            ends = " to ".join(costs.profile.layers[i].name for i in (unit[0], unit[-1]))
            yield f"{ends} stay together: they share weights, or cannot be divided into branches that join again"

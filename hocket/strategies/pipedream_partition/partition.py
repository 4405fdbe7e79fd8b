"""PipeDream's partitioner: the layers, replicas and devices of each stage.

Source: Narayanan's dissertation, section 2.4.1.

Search space: a stage is the difference of two downsets of the layer graph (cuts.py), on a run of consecutive devices
of the cluster's hierarchy. Devices between stages may be idle. A stage may fill part of a server or several servers,
or end in the middle of a server. The space contains the paper's stages, which have whole components, and every
placement that ignores the hierarchy.

Pipelines that are replicated as a whole over equal parts of the outermost level are searched where they can help:
under a memory limit, or if an outer level is not shared or is faster than an inner level. In all other cases a
replicated stage on the same devices is never worse: its compute is balanced perfectly, and its all-reduce over the
outer level takes as long.

The result has the smallest bottleneck in the search space under the cost model (`cost.evaluate`). Ties go to fewer
stages, then to fewer devices. Plain data parallelism is preferred if it is within 1 %.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.bisection import GAP, smallest
from hocket.strategies.pipedream_partition.buffers import Loops
from hocket.strategies.pipedream_partition.cost import PipelineCosts, evaluate
from hocket.strategies.pipedream_partition.cuts import Cuts, cuts
from hocket.strategies.pipedream_partition.level import LevelTask, PartitionOptions, Placed, parts
from hocket.strategies.pipedream_partition.memory import MemoryRule, pipeline_bytes
from hocket.strategies.pipedream_partition.topology import MAX_POSITIONS, joined_levels, topology
from hocket.util.units import show_bytes


@dataclass(frozen=True)
class Partition:
    """A partition of a model over a cluster.

    Attributes:
        stages: (layers, devices) from input to output, both ascending.
        bottleneck_s: seconds between two inputs under the cost model (cost.py).
        costs: costs of each stage.
        memory_bytes: bytes on a device of each stage (memory.py).
        cuts: number of possible cuts of the graph that were considered.
        exact: True if the whole search space was searched; False on graphs with too many cuts, more than
            `MAX_POSITIONS` devices, or more than two levels.
    """

    stages: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    bottleneck_s: float
    costs: PipelineCosts
    memory_bytes: tuple[float, ...]
    cuts: int
    exact: bool

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of replicas of each stage."""
        return tuple(len(devices) for _, devices in self.stages)

    @property
    def config(self) -> str:
        """Replicas from input to output, such as '15-1' (dissertation, table 2.2)."""
        return "-".join(map(str, self.replicas))


def partition(
    profile: ModelProfile,
    cluster: Cluster,
    microbatch_size: float,
    options: PartitionOptions | None = None,
    places: Cuts | None = None,
) -> Partition:
    """Find the partition with the smallest bottleneck.

    Arguments:
        microbatch_size: samples of one input.
        places: possible cuts of the profile's graph at this size, if already known.

    Raises:
        InputError: the memory rule has more or fewer devices than the cluster.
        RefusedError: no pipeline fits the memory, or no pipeline uses every device.
    """
    options = options or PartitionOptions()
    rule = options.rule
    if rule.limits and len(rule.capacity_bytes) != cluster.devices:
        raise InputError("memory_bytes", f"{len(rule.capacity_bytes)} values", f"{cluster.devices}, one a device")
    places = places or cuts(profile, microbatch_size)
    count, levels = len(places.masks), len(joined_levels(cluster))
    loops = Loops(count, cluster.devices, levels)
    unlimited = replace(options, rule=replace(rule, capacity_bytes=()))
    low_s, stages = _search(places, cluster, unlimited, loops, 0.0)

    def held() -> tuple[float, ...]:
        if not stages:
            raise _refusal(options, profile)
        return pipeline_bytes(
            profile, microbatch_size, stages, recompute=rule.recompute, weight_versions=rule.weight_versions
        )

    memory = held()
    if rule.limits and not _fits(stages, memory, rule):
        # The best pipeline without a limit is also the best under the limit if it fits. Otherwise it is a lower
        # bound.
        _, stages = _search(places, cluster, options, loops, low_s)
        memory = held()
    costs = evaluate(profile, cluster, microbatch_size, stages, sync=options.sync)
    exact = places.exact and levels <= 2 and (not options.replicate or cluster.devices <= MAX_POSITIONS)
    return Partition(stages, costs.bottleneck_s, costs, memory, count, exact)


def _search(
    places: Cuts, cluster: Cluster, options: PartitionOptions, loops: Loops, low_s: float
) -> tuple[float, Placed]:
    """Find the stages with the smallest bottleneck.

    Arguments:
        low_s: lower bound of the bottleneck; 0 if unknown.

    Returns:
        Lower bound of the bottleneck of all pipelines, and the stages; () if no pipeline fits.
    """
    plain_s, plain = _data_parallel(places, cluster, options)
    margin = options.data_parallel_within if options.replicate else 0.0
    best_s, stages = plain_s / (1 + margin), plain
    # Pipelines must beat plain data parallelism by the margin.
    tasks = [LevelTask(places, cluster, part, options, loops) for part in parts(cluster, options, len(places.masks))]
    found = smallest(tasks, low_s, best_s * (1 - GAP), low_s > 0 or not options.replicate)
    if found is not None:
        best_s, stages = found.bottleneck_s, found.task.trace(found.bottleneck_s, found.stages, found.limit_s)
    return best_s * (1 - 2 * GAP), stages


def _fits(stages: Placed, memory_bytes: tuple[float, ...], rule: MemoryRule) -> bool:
    return all(
        need <= min(rule.capacity_bytes[device] for device in devices)
        for need, (_, devices) in zip(memory_bytes, stages, strict=True)
    )


def _data_parallel(places: Cuts, cluster: Cluster, options: PartitionOptions) -> tuple[float, Placed]:
    """Bottleneck and placement of the best single stage (data parallelism).

    The stage is on the first devices of the cluster. The bottleneck is infinite and the placement empty if the model
    does not fit, or if all devices must be used and one is too small.
    """
    rule, most = options.rule, cluster.devices if options.replicate else 1
    weights = float(places.weights_bytes[-1] - places.tied_bytes.sum())
    if rule.limits:
        need = weights + places.fixed_bytes[-1] + places.stash_bytes[-1]
        fitting = next((d for d, limit in enumerate(rule.capacity_bytes) if need > limit), cluster.devices)
        most = min(most, fitting)
    if most < 1 or (options.exact_devices and most < cluster.devices):
        return inf, ()
    seconds = places.seconds[-1] / np.arange(1, most + 1)
    if most > 1:
        table = topology(joined_levels(cluster), 1, options.sync, 1, cluster.devices)
        seconds = np.maximum(seconds, (table.sync[:, 0, 1 : most + 1] * weights).max(axis=0))
    best = most if options.exact_devices else int(np.argmin(seconds)) + 1
    return float(seconds[best - 1]), ((places.layers(0, len(places.masks) - 1), tuple(range(best))),)


def _refusal(options: PartitionOptions, profile: ModelProfile) -> RefusedError:
    if not options.rule.limits:
        return RefusedError("partition", "no pipeline that uses every device", "", "Leave devices idle, or use fewer.")
    largest = max(options.rule.capacity_bytes)
    return RefusedError(
        "partition",
        f"no pipeline of {profile.name} that fits" + (" and uses every device" if options.exact_devices else ""),
        f"stages of at most {show_bytes(largest)} a device",
        "Use a smaller microbatch, recomputation, fewer weight versions or more devices.",
    )

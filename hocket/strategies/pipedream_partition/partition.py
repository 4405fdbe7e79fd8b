"""PipeDream's partitioner: which layers form a stage, how often it is replicated, on which devices (section 2.4.1).

What is searched: pipelines whose stages are differences of downsets of the graph and stand on consecutive runs of
devices, idle devices between them allowed, over the real hierarchy: a stage may fill part of a server, several
servers, or end in the middle of one. This contains the paper's stages that own whole components, and every flat
placement. Where it can help (a memory limit, or an outer level that is faster than an inner one or not shared) so
are pipelines that are replicated as a whole over equal parts of the outermost level; elsewhere a plain replicated
stage on the same devices is never worse: its compute is balanced perfectly, its outer synchronisation is the same sum.

The answer has the smallest bottleneck under `_pipedream_cost.evaluate` of all that are searched. Ties go to fewer
stages, then to fewer devices; plain data parallelism is taken when it is within 1 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.strategies.pipedream_partition.bisection import GAP, smallest
from hocket.strategies.pipedream_partition.buffers import Loops
from hocket.strategies.pipedream_partition.cost import PipelineCosts, Sync, evaluate
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
        bottleneck_s: seconds between two inputs under the cost model.
        costs: each stage's terms.
        memory_bytes: on each device of each stage, by `_partition_memory`.
        cuts: how many places to cut were considered.
        exact: whether nothing of what the module says was left out: False on graphs with too many cuts, more than
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
        """Replicas of each stage."""
        return tuple(len(devices) for _, devices in self.stages)

    @property
    def config(self) -> str:
        """Notation of Table 2.2: replicas from input to output, such as '15-1'."""
        return "-".join(map(str, self.replicas))


def partition(
    profile: ModelProfile,
    cluster: Cluster,
    microbatch_size: float,
    *,
    replicate: bool = True,
    memory_bytes: float | Sequence[float] | None = None,
    recompute: bool = False,
    weight_versions: int | None = None,
    exact_devices: bool = False,
    max_stages: int | None = None,
    sync: Sync = "paper",
    data_parallel_within: float = 0.01,
    places: Cuts | None = None,
) -> Partition:
    """The partition with the smallest bottleneck.

    Arguments:
        replicate: False gives the straight pipeline, one device a stage.
        memory_bytes: of each device, or one number for all; None for no limit.
        recompute, weight_versions: how the strategy keeps memory, see `_partition_memory`.
        exact_devices: use every device; otherwise devices that do not help stay idle.
        max_stages: at most so many.
        sync: see `_pipedream_cost`.
        data_parallel_within: how much slower plain data parallelism may be and is still taken.
        places: the profile's cuts at this size, where they are known already.

    Raises:
        InputError: an argument that makes no sense.
        RefusedError: nothing fits the memory, or nothing uses exactly the devices asked for.
    """
    rule = _rule(cluster, memory_bytes, recompute, weight_versions)
    if max_stages is not None and max_stages < 1:
        raise InputError("max_stages", str(max_stages), ">= 1")
    places = places or cuts(profile, microbatch_size)
    count, levels = len(places.masks), len(joined_levels(cluster))
    loops = Loops(count, cluster.devices, levels)
    options = PartitionOptions(rule, replicate, exact_devices, max_stages or 0, sync, data_parallel_within)
    low_s, stages = _search(places, cluster, replace(options, rule=None), loops, 0.0)

    def held() -> tuple[float, ...]:
        if not stages:
            raise _refusal(rule, exact_devices, profile)
        return pipeline_bytes(profile, microbatch_size, stages, recompute=recompute, weight_versions=weight_versions)

    memory = held()
    if rule is not None and not _fits(stages, memory, rule):
        # What is best without a limit and fits is best under it; what does not fit still bounds the answer from below.
        _, stages = _search(places, cluster, options, loops, low_s)
        memory = held()
    costs = evaluate(profile, cluster, microbatch_size, stages, sync=sync)
    exact = places.exact and levels <= 2 and (not replicate or cluster.devices <= MAX_POSITIONS)
    return Partition(stages, costs.bottleneck_s, costs, memory, count, exact)


def _rule(
    cluster: Cluster, memory_bytes: float | Sequence[float] | None, recompute: bool, weight_versions: int | None
) -> MemoryRule | None:
    if weight_versions is not None and weight_versions < 1:
        raise InputError("weight_versions", str(weight_versions), ">= 1")
    if memory_bytes is None:
        return None
    single = isinstance(memory_bytes, int | float)
    capacity = (float(memory_bytes),) * cluster.devices if single else tuple(map(float, memory_bytes))  # type: ignore[arg-type]
    if len(capacity) != cluster.devices:
        raise InputError("memory_bytes", f"{len(capacity)} values", f"{cluster.devices}, one a device")
    return MemoryRule(capacity, recompute, weight_versions)


def _search(
    places: Cuts, cluster: Cluster, options: PartitionOptions, loops: Loops, low_s: float
) -> tuple[float, Placed]:
    """Best stages (none if nothing fits), and a lower bound of seconds for all pipelines, at least low_s."""
    plain_s, plain = _data_parallel(places, cluster, options)
    margin = options.margin if options.replicate else 0.0
    best_s, stages = plain_s / (1 + margin), plain
    # What does not beat plain data parallelism by its margin is not looked for.
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
    """Best single stage: its bottleneck, and its placement on the first devices (empty if it does not fit)."""
    rule, most = options.rule, cluster.devices if options.replicate else 1
    weights = float(places.weights_bytes[-1] - places.tied_bytes.sum())
    if rule is not None:
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


def _refusal(rule: MemoryRule | None, exact_devices: bool, profile: ModelProfile) -> RefusedError:
    if rule is None:
        return RefusedError("partition", "no pipeline that uses every device", "", "Leave devices idle, or use fewer.")
    largest = max(rule.capacity_bytes)
    return RefusedError(
        "partition",
        f"no pipeline of {profile.name} that fits" + (" and uses every device" if exact_devices else ""),
        f"stages of at most {show_bytes(largest)} a device",
        "Use a smaller microbatch, recomputation, fewer weight versions or more devices.",
    )

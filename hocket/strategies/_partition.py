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
from hocket.profile.model import ModelProfile
from hocket.strategies import _partition_kernel as kernel
from hocket.strategies._partition_cuts import DEFAULT_LIMIT, Cuts, cuts
from hocket.strategies._partition_memory import MemoryRule, kernel_memory, stage_bytes
from hocket.strategies._partition_topology import MAX_POSITIONS, groups, joined_levels, topology
from hocket.strategies._pipedream_cost import PipelineCosts, Sync, evaluate, level_spans
from hocket.units import show_bytes

MAX_TIE_STATES = 20_000_000  # above this a tie goes to few stages, not always to the fewest


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
        """As Table 2.2 writes it: replicas from input to output, such as '15-1'."""
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
    max_cuts: int = DEFAULT_LIMIT,
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
        max_cuts: see `_partition_cuts`.

    Raises:
        InputError: an argument that makes no sense.
        RefusedError: nothing fits the memory, or nothing uses exactly the devices asked for.
    """
    rule = _rule(cluster, memory_bytes, recompute, weight_versions)
    if max_stages is not None and max_stages < 1:
        raise InputError("max_stages", str(max_stages), ">= 1")
    places = cuts(profile, microbatch_size, max_cuts)
    options = _Options(rule, replicate, exact_devices, max_stages or 0, sync, data_parallel_within)
    free = replace(options, rule=None)
    low_s, stages = _search(places, cluster, free, 0.0)
    searched = _parts(cluster, free, len(places.masks))
    if rule is not None and not (stages and _fits(profile, microbatch_size, stages, rule)):
        # What is best without a limit and fits is best under it; what does not fit still bounds the answer from below.
        _, stages = _search(places, cluster, options, low_s)
        searched = _parts(cluster, options, len(places.masks))
    if not stages:
        raise _refusal(rule, exact_devices, profile)
    costs = evaluate(profile, cluster, microbatch_size, stages, sync=sync)
    memory = tuple(
        stage_bytes(profile, microbatch_size, stages, s, recompute=recompute, weight_versions=weight_versions)
        for s in range(len(stages))
    )
    exact = places.exact and all(part.group == 1 for part in searched) and len(joined_levels(cluster)) <= 2
    return Partition(stages, costs.bottleneck_s, costs, memory, len(places.masks), exact)


Placed = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True)
class _Options:
    rule: MemoryRule | None
    replicate: bool
    exact_devices: bool
    max_stages: int
    sync: Sync
    margin: float


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


def _search(places: Cuts, cluster: Cluster, options: _Options, low_s: float) -> tuple[float, Placed]:
    """The best stages, none when nothing fits, and seconds that no pipeline at all can be below; not below low_s."""
    plain_s, plain = _data_parallel(places, cluster, options)
    margin = options.margin if options.replicate else 0.0
    best_s, stages = plain_s / (1 + margin), plain
    for part in _parts(cluster, options, len(places.masks)):
        # What does not beat plain data parallelism by its margin is not looked for.
        found_s, found = _pipeline(places, cluster, part, options, low_s, best_s)
        if found:
            best_s, stages = found_s, found
    return best_s * (1 - 2e-9), stages


def _fits(profile: ModelProfile, microbatch_size: float, stages: Placed, rule: MemoryRule) -> bool:
    return all(
        stage_bytes(profile, microbatch_size, stages, s, recompute=rule.recompute, weight_versions=rule.weight_versions)
        <= min(rule.capacity_bytes[device] for device in devices)
        for s, (_, devices) in enumerate(stages)
    )


@dataclass(frozen=True)
class _Part:
    """What one search covers: `positions` groups of `group` devices in each of `copies` parts of the cluster."""

    copies: int
    group: int
    positions: int


def _parts(cluster: Cluster, options: _Options, count: int) -> list[_Part]:
    if not options.replicate:
        # A straight pipeline leaves nothing idle between its stages, so it ends within as many devices as cuts.
        same = options.rule is None or len(set(options.rule.capacity_bytes)) == 1
        few = min(cluster.devices, count) if same and not options.exact_devices else cluster.devices
        return [_Part(1, 1, few)]
    parts = []
    for copies in _copies(cluster, options.rule):
        sizes = groups(cluster, copies)
        for group in sizes[-1:] if copies > 1 or options.exact_devices else sizes:
            parts.append(_Part(copies, group, min(cluster.devices // copies // group, MAX_POSITIONS)))
    return parts


def _copies(cluster: Cluster, rule: MemoryRule | None) -> list[int]:
    """Into how many equal parts of the outermost level the pipeline may be replicated as a whole."""
    levels = joined_levels(cluster)
    if len(levels) < 2:
        return [1]
    inner, outer = levels[:-1], levels[-1]
    slowest = min((level.all_reduce or level.link).bandwidth_bytes_per_s for level in inner)
    ordered = (outer.all_reduce or outer.link).bandwidth_bytes_per_s <= slowest
    if rule is None and ordered and all(level.shared for level in levels[1:]):
        return [1]
    return [m for m in range(1, outer.width + 1) if outer.width % m == 0]


def _data_parallel(places: Cuts, cluster: Cluster, options: _Options) -> tuple[float, Placed]:
    """The best single stage: its bottleneck, and its placement on the first devices (empty when it does not fit)."""
    rule, most = options.rule, cluster.devices if options.replicate else 1
    weights = float(places.weights_bytes[-1] - places.tied_bytes.sum())
    if rule is not None:
        need = weights + places.fixed_bytes[-1] + places.stash_bytes[-1]
        fitting = next((d for d, limit in enumerate(rule.capacity_bytes) if need > limit), cluster.devices)
        most = min(most, fitting)
    if most < 1 or (options.exact_devices and most < cluster.devices):
        return inf, ()
    table = topology(cluster, 1, options.sync, 1, most)
    counts = np.arange(1, most + 1)
    seconds = np.maximum(places.seconds[-1] / counts, (table.sync[:, 0, 1 : most + 1] * weights).max(axis=0))
    best = most if options.exact_devices else int(np.argmin(seconds)) + 1
    return float(seconds[best - 1]), ((places.layers(0, len(places.masks) - 1), tuple(range(best))),)


def _pipeline(
    places: Cuts, cluster: Cluster, part: _Part, options: _Options, low_s: float, high_s: float
) -> tuple[float, Placed]:
    """The best pipeline on one part, replicated on all of them, if any is faster than high_s."""
    if high_s <= 0:
        return inf, ()
    copies = part.copies
    table = topology(cluster, copies, options.sync, part.group, part.positions)
    start, listed = kernel.predecessors(places.words)
    seconds = places.seconds / (copies * table.group)
    graph = (seconds, places.weights_bytes, places.crossing_bytes, start, listed, places.tied_bytes, places.tied_inside)
    uniform = options.rule is None or len(set(options.rule.capacity_bytes)) == 1
    tables = (table.unit, table.sync, table.together, table.border, table.shared)
    layout = (table.positions, table.period, table.spans, *tables, not (table.steep and uniform))
    memory = kernel_memory(
        options.rule,
        places.stash_bytes,
        places.fixed_bytes,
        places.activation_bytes,
        table.positions,
        table.group,
        copies,
    )
    widest = table.positions if options.replicate else 1
    rest = (widest, options.exact_devices or options.sync == "ring", options.exact_devices)
    if high_s == inf:
        slowest = float(max(table.border.max(), 1 / min(level.bandwidth_bytes_per_s for level in cluster.levels)))
        high_s = float(seconds[-1] + places.crossing_bytes.max() * slowest + 2 * places.weights_bytes[-1] * slowest) * 2
    low_s = max(low_s, float(seconds[-1]) / table.positions * (1 - 1e-9))
    best_s = kernel.search(low_s, high_s * (1 - 1e-9), graph, layout, memory, *rest, options.max_stages, False)
    if best_s == inf:
        return inf, ()
    found, _, state, trail = kernel.sweep(best_s, graph, layout, memory, *rest, options.max_stages, True)
    states = len(places.masks) * (table.positions + 1) * len(table.spans) * (table.positions + 1 if memory[1] else 1)
    if found > 1 and states * (found + 1) <= MAX_TIE_STATES:
        _, _, state, trail = kernel.sweep(best_s, graph, layout, memory, *rest, found, True)
    runs = _walk(trail, state, len(places.masks), states, table.positions + 1)
    uniform = options.rule is None or len(set(options.rule.capacity_bytes)) == 1
    # The pipeline ends at the last device of its part; idle devices come first, or last where whole components are idle.
    end = cluster.devices // copies
    if uniform and copies == 1:
        passed = max(first + count for _, _, first, count in runs) * part.group
        end -= _shift(end - passed, passed, level_spans(joined_levels(cluster)))
    return float(best_s), tuple(
        (
            places.layers(inner, outer),
            tuple(
                device
                for copy in range(copies)
                for device in range(
                    copy * (cluster.devices // copies) + end - (first + count) * part.group,
                    copy * (cluster.devices // copies) + end - first * part.group,
                )
            ),
        )
        for inner, outer, first, count in runs
    )


def _walk(trail: np.ndarray, state: int, count: int, states: int, positions: int) -> list[tuple[int, int, int, int]]:
    """Stages from input to output as (inner cut, outer cut, first position, replicas)."""
    row = states // count
    runs = []
    while state != (count - 1) * row:
        before, replicas = int(trail[state, 0]), int(trail[state, 1])
        if replicas:
            position = before % row // (row // positions)
            runs.append((state % states // row, before % states // row, position, replicas))
        state = before
    return runs


def _shift(idle: int, passed: int, spans: list[int]) -> int:
    """How far a pipeline that ends at the last device moves towards the first without changing what it spans."""
    shift = 0
    for span in reversed(spans):
        shift += (idle - shift) // span * span
        if idle - shift + passed > span:
            break
    return shift


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

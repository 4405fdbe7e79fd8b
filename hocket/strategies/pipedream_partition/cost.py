"""PipeDream's cost model, for any placement of stages on devices.

Source: Narayanan's dissertation, section 2.4.1 ("the paper"). The paper states the model as a recursion over levels.
A stage on m components of level k-1 takes `T^k = (1/m) max(A^(k-1), 2 (m-1) sum|w| / B_k)`. A stage boundary takes
`2 a_s / B_k`. The bottleneck of the pipeline is the maximum over all of them. Unrolled, for a stage with weights w and
compute time c (forward and backward) on a set D of r devices:

    compute     c / r
    all-reduce  at each level k: 2 (n_k - 1) w / (B_k N_k), where N_k is the number of components of level k-1 with a
                device of D, and n_k the maximum number of them in one component of level k.

Proof for a stage that owns m whole components of level 2, each of m_1 devices: the paper gives
`(1/m) max((1/m_1) max(c, 2 (m_1 - 1) w / B_1), 2 (m - 1) w / B_2)`, and here r = N_1 = m m_1, n_1 = m_1 and
N_2 = n_2 = m: the same three numbers; by induction for more levels. On one level it is
`(1/r) max(c, 2 (r - 1) w / B)`.

Synchronisation has two readings. The paper's formula counts one synchronisation an *input* (`sync="paper"`). Its text
(each worker sends (m-1)/m |w|, once every m inputs) gives 1/m of that: an all-reduce of 2 (n_k - 1)/n_k w / B_k once
in r inputs (`sync="ring"`).

If several stages synchronise over the link of one component (a server's network card), the paper's sum over all
weights below T^k adds them up. This model does the same on levels that are `shared`.

A stage boundary moves 2 a_s bytes an input. They go over the innermost level at which the replicas of the two stages
can be paired: every component of the level holds the same share of both stages. N such components work at once:
2 a_s / (B N). For stages that own components this is the paper's term, and also for a pipeline that is replicated as
a whole (its 1/m). Tensors that skip stages are passed on over each boundary between. A tensor without a gradient
counts once. The paper does not divide by the replication, and neither does this model. Latency and the batch's own
input are not in the model.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.profile import ModelProfile

Stages = Sequence[tuple[Sequence[int], Sequence[int]]]  # (layers, devices) from input to output
Sync = Literal["paper", "ring"]


@dataclass(frozen=True)
class StageCosts:
    """Seconds of one stage for each input of the pipeline.

    Attributes:
        compute_s: forward and backward, divided by the number of replicas.
        all_reduce_s: all-reduce of gradients on the busiest link.
        border_s: transfers over the boundary after the stage.
    """

    compute_s: float
    all_reduce_s: float
    border_s: float


@dataclass(frozen=True)
class PipelineCosts:
    """Costs of each stage, and the bottleneck: seconds between two inputs."""

    stages: tuple[StageCosts, ...]
    bottleneck_s: float


def evaluate(
    profile: ModelProfile, cluster: Cluster, microbatch_size: float, stages: Stages, *, sync: Sync = "paper"
) -> PipelineCosts:
    """Compute the cost of a pipeline.

    Arguments:
        stages: (layers, devices) from input to output: every layer once, every device at most once.
        sync: reading of the paper's synchronisation cost (see the docstring of this module).

    Raises:
        InputError: a layer is missing or duplicate, a device is duplicate or unknown, a stage has no layers or
            devices, or a tensor would flow backwards.
    """
    stage_of = _owners(profile, cluster, stages)
    compute = profile.column("forward_s", microbatch_size) + profile.column("backward_s", microbatch_size)
    spans = level_spans(cluster.levels)
    # Load of every component's link at every level, in seconds an input: (level, component) -> stage -> load.
    links: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for s, (layers, devices) in enumerate(stages):
        weights = profile.weights_bytes(sorted(layers))
        for k, level in enumerate(cluster.levels):
            units = {device // spans[k] for device in devices}
            most = max(_counts(unit // level.width for unit in units).values())
            load_s = sync_seconds_per_byte(level, most, len(units), len(devices), sync) * weights
            if load_s > 0:
                for unit in units:
                    links[k, unit][s] = load_s
    busiest = [0.0] * len(stages)
    for (k, _), loads in links.items():
        together = sum(loads.values())
        for s, load_s in loads.items():
            busiest[s] = max(busiest[s], together if cluster.levels[k].shared else load_s)
    crossing = [0.0] * (len(stages) - 1)
    sizes = profile.tensor_bytes(microbatch_size)
    for index, source, last in journeys(profile, stage_of):
        tensor = profile.tensors[index]
        if any(stage_of[target] < source for target in tensor.targets):
            raise InputError(
                "stages", f"tensor {tensor.name} flowing backwards", "readers in the same or a later stage"
            )
        for s in range(source, last):
            crossing[s] += float(sizes[index]) * (2 if tensor.gradient else 1)
    borders = [
        size * border_seconds_per_byte(cluster.levels, spans, before, after)
        for size, ((_, before), (_, after)) in zip(crossing, pairwise(stages), strict=True)
    ]
    costs = tuple(
        StageCosts(float(compute[list(layers)].sum()) / len(devices), busiest[s], border_s)
        for s, ((layers, devices), border_s) in enumerate(zip(stages, [*borders, 0.0], strict=True))
    )
    return PipelineCosts(costs, max(max(c.compute_s, c.all_reduce_s, c.border_s) for c in costs))


def level_spans(levels: Sequence[Level]) -> list[int]:
    """Number of devices in one component of the next inner level, for each level.

    A level joins components of the next inner level, such as servers. The innermost level joins single devices, so its
    entry is 1.
    """
    spans = [1]
    for level in levels[:-1]:
        spans.append(spans[-1] * level.width)
    return spans


def all_reduce_bandwidth(level: Level) -> float:
    """Bandwidth of an all-reduce among the components of a level, in bytes a second."""
    return (level.all_reduce or level).bandwidth_bytes_per_s


def sync_seconds_per_byte(level: Level, most: int, units: int, replicas: int, sync: Sync) -> float:
    """Seconds of a stage's all-reduce on a component's link at one level.

    The result is for one input and one byte of weights.

    Arguments:
        most: maximum number of such components (see `units`) in one component of the level.
        units: number of components of the level below that have a device of the stage.
        replicas: number of the stage's devices.
    """
    bandwidth = all_reduce_bandwidth(level)
    if sync == "ring":
        return 2 * (most - 1) / (most * bandwidth * replicas)
    return 2 * (most - 1) / (bandwidth * units)


def border_seconds_per_byte(
    levels: Sequence[Level], spans: Sequence[int], before: Iterable[int], after: Iterable[int]
) -> float:
    """Seconds per byte that crosses a stage boundary.

    Bytes go over the innermost level at which the replicas of both stages can be paired.

    Arguments:
        spans: number of devices in each component that a level joins (`level_spans`).
        before: devices of the stage before the boundary.
        after: devices of the stage after it.

    Raises:
        InputError: a device is outside the cluster.
    """
    before, after = list(before), list(after)
    for level, span in zip(levels, spans, strict=True):
        ours = _counts(device // (span * level.width) for device in before)
        theirs = _counts(device // (span * level.width) for device in after)
        if ours.keys() == theirs.keys() and all(ours[u] * len(after) == theirs[u] * len(before) for u in ours):
            return 1 / (level.bandwidth_bytes_per_s * len(ours))
    found = f"devices {', '.join(map(str, sorted({*before, *after})[:8]))}, some of them outside the cluster"
    raise InputError("stages", found, "devices of the cluster's outermost level")


def journeys(profile: ModelProfile, stage_of: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the tensors that cross stage boundaries.

    Yields:
        Index of the tensor, stage of its source, last stage with a reader.
    """
    for index, tensor in enumerate(profile.tensors):
        if tensor.source >= 0:
            source = stage_of[tensor.source]
            for target in tensor.targets:
                if stage_of[target] != source:
                    yield index, source, max(stage_of[reader] for reader in tensor.targets)
                    break


def owners(stages: Stages, layers: int) -> list[int]:
    """Index of the stage of every layer; -1 for a layer without a stage.

    Arguments:
        layers: number of layers.
    """
    found = [-1] * layers
    for s, (own, _) in enumerate(stages):
        for layer in own:
            found[layer] = s
    return found


def _owners(profile: ModelProfile, cluster: Cluster, stages: Stages) -> list[int]:
    """Index of the stage of every layer, for stages that are valid.

    Raises:
        InputError: a layer is missing or duplicate, a device is duplicate or unknown, or a stage has no layers or
            devices.
    """
    count = len(profile.layers)
    placed = [layer for layers, _ in stages for layer in layers]
    if sorted(placed) != list(range(count)):
        wrong = [i for i in range(count) if placed.count(i) != 1]
        raise InputError("stages", f"layers {wrong[:5]} not exactly once", f"layers 0 to {count - 1} once each")
    used = _counts(device for _, devices in stages for device in devices)
    bad = [d for d, times in used.items() if times > 1 or not 0 <= d < cluster.devices]
    if bad:
        raise InputError("stages", f"devices {sorted(bad)[:5]}", f"each of 0 to {cluster.devices - 1} at most once")
    empty = [s for s, (layers, devices) in enumerate(stages) if not layers or not devices]
    if empty:
        raise InputError(f"stages.{empty[0]}", "a stage without layers or devices", "at least one layer and one device")
    return owners(stages, count)


def _counts(values: Iterable[int]) -> dict[int, int]:
    """Count equal values; faster than `collections.Counter` for few values."""
    found: dict[int, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found

"""Options for a plan's gradient buckets and communication threads.

The gain of each option is estimated with the equations of LIBRA; nothing is simulated.

Rules of this file: only the last backward of a batch is considered, in each stage with replicas, with the simulator's
times. There are three cases:

- The contention between computation and all-reduces is known (`Level.overlap`): buckets and threads are chosen
  together (tensor_fusion.py).
- The contention is not known: only buckets are chosen. The only contention is for the cores of a host that has too
  few.
- Gradient sums are sharded (`shard`), so that each bucket has a reduce-scatter: only buckets are chosen, because only
  all-reduces have a number of threads.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hocket.cost.contention import collective_uses, host_of
from hocket.cost.model import CostModel
from hocket.cost.transfer import collective
from hocket.hardware.cluster import HALF, Cluster
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients
from hocket.planning.buckets.threads import taken_buckets, taken_threads
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.planned_run import PlannedRun
from hocket.profiling.profile import ModelProfile, is_cpu
from hocket.program.instruction import Kind
from hocket.program.passes.borders import StageCut
from hocket.program.program import MAX_CPU_THREADS, MAX_THREADS

# Groups of layers from which buckets are made: about MOST_LAYERS in all stages together, but at least LEAST_LAYERS for
# each stage. Small layers are merged into groups.
MOST_LAYERS, LEAST_LAYERS = 96, 20


class BucketOption(NamedTuple):
    """A plan's stages with other buckets or threads.

    Attributes:
        gain_s: seconds that one device saves in the last backwards of its stages, estimated by the equations of
            LIBRA; the largest of all devices. An iteration can be shorter by about as much.
    """

    stages: tuple[PlanStage, ...]
    gain_s: float


def ways(plan: Plan, profile: ModelProfile) -> list[BucketOption]:
    """Two options for a plan: new threads for its present buckets, and new buckets.

    New buckets come with new threads, if threads can be chosen.
    """
    run = PlannedRun.of(plan, profile)
    whole, cluster, cuts = run.profile, run.cluster, run.cuts
    costs = CostModel(whole, cluster, cuts, plan.batches.sizes)
    layers = tuple(replace(cut, buckets=tuple((i,) for i in reversed(cut.layers)), threads=()) for cut in cuts)
    each = CostModel(whole, cluster, layers, plan.batches.sizes)
    summing = sum(len(cut.devices) > 1 for cut in cuts)
    allocated, found = list(plan.stages), list(plan.stages)
    gains_s: list[dict[tuple[int, ...], float]] = [defaultdict(float), defaultdict(float)]
    for s, cut in enumerate(cuts):
        own, single = gradients_of(costs, s), gradients_of(each, s)
        if len(cut.devices) < 2 or own is None or single is None:
            continue
        model, threads = _contention(cluster, cuts, cut)
        count = max(1, len(cut.buckets))
        # Computation after the last gradients is in no bucket.
        ends = tuple(dict.fromkeys((*range(1, count + 1), len(own.sizes_bytes))))
        lanes = (*(cut.threads or (model.own_threads,) * count), model.own_threads)[: len(ends)]
        before_s = Fusion(ends, lanes).backward_s(own, model)
        if threads:
            fusion = taken_threads(own, model, ends, threads)
            allocated[s] = replace(plan.stages[s], threads=fusion.threads[:count])
            gains_s[0][cut.devices] += before_s - fusion.backward_s(own, model)
        runs, smaller = _together(single, max(LEAST_LAYERS, MOST_LAYERS // summing))
        fusion = taken_buckets(smaller, model, threads)
        gain_s = before_s - fusion.backward_s(smaller, model)
        if gain_s > 0:
            names = [whole.layers[i].name for i in reversed(cut.layers)]
            found[s] = _stage(plan.stages[s], names, runs, smaller, fusion, bool(threads))
            gains_s[1][cut.devices] += gain_s
        elif threads:
            found[s] = allocated[s]
    both = zip((allocated, found), gains_s, strict=True)
    return [BucketOption(tuple(stages), max(own_s.values(), default=0.0)) for stages, own_s in both]


def _contention(cluster: Cluster, cuts: Sequence[StageCut], cut: StageCut) -> tuple[OverlapModel, tuple[int, ...]]:
    """Contention model of a stage's gradient sums, and numbers of threads to try.

    There are no numbers to try, (), if the cluster has no measured contention, or if the sums are sharded.
    """
    devices, workers, kind = cut.devices, len(cut.devices), Kind.REDUCE_SCATTER if cut.sharded else Kind.ALL_REDUCE
    level = cluster.levels[cluster.level_of(devices)]
    if level.overlap is not None:
        model = level.overlap.on(workers)
        if cut.sharded:
            part = level.reduce_scatter or HALF
            return model.scaled(1 / part, part), ()
        processor = any(is_cpu(cluster.node_of(device).device_type) for device in devices)
        most = MAX_CPU_THREADS if processor else MAX_THREADS
        return model, tuple(threads for threads in model.usable if threads <= most)
    byte = collective(cluster, kind, devices, 1.0)
    carried = 2 * (workers - 1)
    rate = Rate(carried / workers / byte.flow_s, 0.0, 0.0)
    return OverlapModel(_kept(cluster, cuts, devices), 0.0, rate, rate, byte.latency_s / carried, workers), ()


def _kept(cluster: Cluster, cuts: Sequence[StageCut], devices: tuple[int, ...]) -> float:
    """Speed of computation beside a collective, relative to computation alone.

    It is below 1 if a host has too few cores for its workers and the collective; 1 without a known number of cores.

    Arguments:
        devices: the devices of the collective.
    """
    if cluster.host_cores is None:
        return 1.0
    host = host_of(cluster, devices[0])
    busy = len({device for cut in cuts for device in cut.devices if host_of(cluster, device) == host})
    taken = sum(use.load for use in collective_uses(cluster, devices) if use.resource == host)
    return min(1.0, cluster.host_cores / (busy + taken)) / min(1.0, cluster.host_cores / busy)


def gradients_of(costs: CostModel, s: int) -> ReadyGradients | None:
    """Gradients of stage `s` in its last backward, one entry for each bucket.

    Times are the simulator's. If computation remains after the last gradients, it is a further entry with 0 bytes.

    Returns:
        None if there is nothing to sum, or the backward takes no time.
    """
    cut = costs.cuts[s]
    samples = costs.samples_from(0, min(cut.merged, len(costs.samples)))
    own = max(1, len(cut.buckets))  # further buckets hold tied weights
    sizes = costs.memory.stages[s].bucket_bytes[:own].tolist()
    whole_s = max(costs.backward_s(s, device, samples) for device in cut.devices)
    if sum(sizes) <= 0 or whole_s <= 0:
        return None
    ready = costs.ready_fractions(s, samples)[:own]
    computes = [whole_s * (later - sooner) for sooner, later in pairwise((0.0, *ready))]
    if ready[-1] < 1:
        sizes, computes = [*sizes, 0.0], [*computes, whole_s * (1 - ready[-1])]
    return ReadyGradients(tuple(sizes), tuple(computes))


def _together(each: ReadyGradients, most: int) -> tuple[list[int], ReadyGradients]:
    """Merge neighbouring small layers into at most `most` groups and one rest.

    If at most `most` layers have gradients, each of these layers ends a group.

    Returns:
        For each group, the number of layers up to its end; and the gradients of the groups.
    """
    sizes, whole = np.array(each.sizes_bytes), sum(each.sizes_bytes)
    many = np.count_nonzero(sizes) > most
    limit, ends, filled = whole / most if many else 0.0, list[int](), 0.0
    for k, size in enumerate(each.sizes_bytes):
        filled += size
        if size > 0 and filled >= limit:
            ends.append(k + 1)
            filled = 0.0
    if not ends or ends[-1] < len(sizes):
        ends.append(len(sizes))
    cuts = list(pairwise((0, *ends)))
    sums = (tuple(float(sum(figures[a:b])) for a, b in cuts) for figures in (each.sizes_bytes, each.computes_s))
    return ends, ReadyGradients(*sums)


def _stage(
    stage: PlanStage,
    names: Sequence[str],
    runs: Sequence[int],
    gradients: ReadyGradients,
    fusion: Fusion,
    threads: bool,
) -> PlanStage:
    """A stage with the buckets of a fusion.

    Buckets without gradients are merged into the bucket before.

    Arguments:
        names: names of the stage's layers, in the order of a backward.
        runs: for each entry of `gradients`, the index in `names` after its last layer.
        threads: True to take over the fusion's threads as well.
    """
    buckets, lanes = list[tuple[str, ...]](), list[int]()
    for own, lane in zip(fusion.buckets, fusion.threads, strict=True):
        inside = tuple(names[runs[own.start - 1] if own.start else 0 : runs[own.stop - 1]])
        if buckets and sum(gradients.sizes_bytes[own.start : own.stop]) == 0:
            buckets[-1] += inside
            continue
        buckets.append(inside)
        lanes.append(lane)
    return replace(stage, buckets=tuple(buckets), threads=tuple(lanes) if threads else ())

"""Buckets: which gradients the replicas of a plan's stages sum together, and by how many threads, chosen anew for what a search has found.

Rules of this file: what is chosen is quicker in the simulator than buckets of one size, and fits; else those stay. Where it is known
what computation and all-reduces take from each other (`Level.overlap`), buckets and threads are chosen together (fusion.py); elsewhere
buckets alone, as if nothing contended but for the cores that a host has too few of. Of sums that replicas divide (`shard`), which are
scattered bucket by bucket, buckets alone: only an all-reduce has threads of its own.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from hocket.cost.contention import collective_uses, host_of
from hocket.cost.model import CostModel
from hocket.cost.transfer import collective
from hocket.errors import InputError
from hocket.hardware.cluster import HALF, Cluster
from hocket.hardware.overlap import OverlapModel, Rate
from hocket.passes.borders import StageCut
from hocket.passes.gradients import DEFAULT_BUCKET_BYTES
from hocket.plan.amplification import device_s
from hocket.plan.candidates import NEAR, Candidate
from hocket.plan.fusion import Fusion, Gradients
from hocket.plan.fusion_threads import WORTH, taken_buckets, taken_threads
from hocket.plan.least_sums import least_used_s
from hocket.plan.plan import Plan, PlanStage, Predicted
from hocket.plan.predict import predict_iteration, profile_of_group, proven_peaks
from hocket.plan.tolerance import Tolerance, held_s
from hocket.profile.model import CPU, ModelProfile
from hocket.program.instruction import Kind
from hocket.program.program import MAX_CPU_THREADS, MAX_THREADS
from hocket.strategies._choices import Choice, Situation
from hocket.strategies._common import lends

AUTO, DEFAULT = "auto", "default"
FINALISTS = 3  # candidates of a search for which buckets are chosen, and beside these the first of each strategy
REACH = 0.25  # by how much more than the best they may take
MOST_LAYERS, LEAST_LAYERS = 96, 20  # of all stages, and of one, that are told apart; smaller ones go together


@dataclass(frozen=True)
class Rebucketed:
    """A plan with other buckets, or threads.

    Attributes:
        plan: with its prediction. text: what they gain. used_s: device-seconds of an iteration; 0 where nobody asked.
    """

    plan: Plan
    predicted: Predicted
    text: str
    used_s: float


def best_few(
    candidates: Sequence[Candidate], profile: ModelProfile, tolerance: Tolerance | None = None
) -> list[Candidate]:
    """Candidates of a search, some with the buckets that serve them best: of those that sum gradients the first few, and the first of
    each strategy, so that it is as quick here as where only that strategy is asked for. The others are marked.

    Arguments:
        candidates: the best first. profile: that their plans name. tolerance: what a plan may use of devices, with other buckets as well.
    """
    found = list(candidates)
    limit_s = min((one.iteration_s for one in found), default=0.0) * (1 + REACH)
    summing = [k for k, one in enumerate(found) if _sums(one.plan)]
    near = [k for k in summing if found[k].iteration_s <= limit_s]
    first = {found[k].strategy: k for k in reversed(near)}
    chosen = {*near[:FINALISTS], *first.values()}
    for k in summing:
        if found[k].buckets:  # without which it would use too much of devices
            continue
        if k not in chosen:
            found[k] = replace(found[k], default_buckets=True)
            continue
        better = rebucketed(found[k].plan, profile, tolerance)
        if better is not None:
            found[k] = replace(
                found[k],
                plan=better.plan,
                buckets=better.text,
                amplification=better.used_s / tolerance.alone_s if tolerance else None,
                iteration_s=better.predicted.iteration_s,
                samples_per_s=better.predicted.samples_per_s,
                peak_memory_bytes=better.predicted.peak_memory_bytes,
                bubble_fraction=better.predicted.bubble_fraction,
            )
    return found


def check_buckets(buckets: str | float) -> None:
    """Refuse what says nothing of buckets.

    Raises:
        InputError: it is neither AUTO nor DEFAULT nor a number of bytes.
    """
    if buckets not in (AUTO, DEFAULT) and (isinstance(buckets, str) or not 0 < buckets < inf):
        raise InputError("buckets", repr(buckets), f"{AUTO}, {DEFAULT} or a number of bytes")


def rebucketed(plan: Plan, profile: ModelProfile, tolerance: Tolerance | None = None) -> Rebucketed | None:
    """A plan with the buckets, and threads, with which it is quickest; None where those that it has are as good.

    Arguments:
        plan: with its prediction, or without. profile: that it names. tolerance: what it may use of devices.

    Raises:
        InputError: the plan does not fit the profile. RefusedError: its strategy does not support it.
    """
    if not _sums(plan):
        return None
    before_s = (plan.predicted or predict_iteration(plan, profile)).iteration_s
    return _quickest(plan, before_s, profile, tolerance)


def kept_by_buckets(plan: Plan, profile: ModelProfile, tolerance: Tolerance) -> Rebucketed | None:
    """A plan with its prediction that uses too much of devices, with buckets with which it does not; None where there are none.

    They are looked for only where the plan would keep the limit if its sums took no more than they must.
    """
    if plan.predicted is None or not _sums(plan) or tolerance.refusal(least_used_s(plan, profile)):
        return None
    return _quickest(plan, plan.predicted.iteration_s, profile, tolerance)


def _quickest(plan: Plan, before_s: float, profile: ModelProfile, tolerance: Tolerance | None) -> Rebucketed | None:
    best, best_s, used_s = None, before_s / (1 + WORTH), 0.0
    for stages, gain_s in dict.fromkeys(_ways(plan, profile)):
        if stages == plan.stages or gain_s < WORTH / 2 * before_s:
            continue
        other = replace(plan, stages=stages, predicted=None)
        predicted = predict_iteration(other, profile)
        if predicted.iteration_s >= best_s or not _fits(other, profile, predicted.peak_memory_bytes):
            continue
        other = replace(other, predicted=predicted)
        if tolerance is not None:
            # Who lends devices may use more of them in less time: a sum by fewer threads lasts longer.
            other_s = _used_s(other, profile)
            if tolerance.refusal(other_s):
                continue
            used_s = other_s
        best, best_s = other, predicted.iteration_s
    if best is None or best.predicted is None:
        return None
    return Rebucketed(best, best.predicted, _text(plan, best, before_s / best_s - 1), used_s)


def _sums(plan: Plan) -> bool:
    """Whether replicas of a stage sum gradients of which buckets, or threads, may be chosen: one layer's sum has no other buckets."""
    whole = plan.shard == "none"
    return any(len(stage.devices) > 1 and (whole or len(stage.layers) > 1) for stage in plan.stages)


def _used_s(plan: Plan, profile: ModelProfile) -> float:
    """Device-seconds of an iteration of a plan with its prediction; what keeps its devices need not be simulated for that."""
    if plan.predicted is None or lends(plan.strategy):
        return device_s(plan, profile)
    return held_s(plan.stages, plan.predicted.iteration_s, plan.tensor)


class _Way(NamedTuple):
    """A plan's stages with other buckets or threads.

    Attributes:
        gain_s: by how much less the last backwards of one device take, by the equations of LIBRA: an iteration can gain about as much.
    """

    stages: tuple[PlanStage, ...]
    gain_s: float


def _ways(plan: Plan, profile: ModelProfile) -> list[_Way]:
    """With threads for the buckets that there are, and with buckets that are found."""
    whole, cluster, cuts = profile_of_group(plan, profile), plan.group.cluster, plan.cuts(profile)
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
        # What is computed behind the last gradients is in no bucket.
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
    return [_Way(tuple(stages), max(own_s.values(), default=0.0)) for stages, own_s in both]


def _contention(cluster: Cluster, cuts: Sequence[StageCut], cut: StageCut) -> tuple[OverlapModel, tuple[int, ...]]:
    """What holds among the replicas of a stage, and the numbers of threads to choose from; () where nothing is known of them, or the
    library alone chooses."""
    devices, workers, kind = cut.devices, len(cut.devices), Kind.REDUCE_SCATTER if cut.sharded else Kind.ALL_REDUCE
    level = cluster.levels[cluster.level_of(devices)]
    if level.overlap is not None:
        model = level.overlap.on(workers)
        if cut.sharded:
            part = level.reduce_scatter or HALF
            return model.scaled(1 / part, part), ()
        processor = any(cluster.node_of(device).device_type == CPU for device in devices)
        most = MAX_CPU_THREADS if processor else MAX_THREADS
        return model, tuple(threads for threads in model.usable if threads <= most)
    byte = collective(cluster, kind, devices, 1.0)
    carried = 2 * (workers - 1)
    rate = Rate(carried / workers / byte.flow_s, 0.0, 0.0)
    return OverlapModel(_kept(cluster, cuts, devices), 0.0, rate, rate, byte.latency_s / carried, workers), ()


def _kept(cluster: Cluster, cuts: Sequence[StageCut], devices: tuple[int, ...]) -> float:
    """Share of its speed that computation keeps beside a transfer, where a host has fewer cores than work."""
    if cluster.host_cores is None:
        return 1.0
    host = host_of(cluster, devices[0])
    busy = len({device for cut in cuts for device in cut.devices if host_of(cluster, device) == host})
    taken = sum(use.load for use in collective_uses(cluster, devices) if use.resource == host)
    return min(1.0, cluster.host_cores / (busy + taken)) / min(1.0, cluster.host_cores / busy)


def gradients_of(costs: CostModel, s: int) -> Gradients | None:
    """What a stage's last backward makes, bucket by bucket, as the simulator takes them to be ready; behind them what is computed when all
    are there. None where there is nothing to sum, or no time for it."""
    cut = costs.cuts[s]
    samples = costs.samples_from(0, min(cut.merged, len(costs.samples)))
    own = max(1, len(cut.buckets))  # others are those of ties
    sizes = costs.memory.stages[s].bucket_bytes[:own].tolist()
    whole_s = max(costs.backward_s(s, device, samples) for device in cut.devices)
    if sum(sizes) <= 0 or whole_s <= 0:
        return None
    ready = costs.ready_fractions(s, samples)[:own]
    computes = [whole_s * (later - sooner) for sooner, later in pairwise((0.0, *ready))]
    if ready[-1] < 1:
        sizes, computes = [*sizes, 0.0], [*computes, whole_s * (1 - ready[-1])]
    return Gradients(tuple(sizes), tuple(computes))


def _together(each: Gradients, most: int) -> tuple[list[int], Gradients]:
    """Layers that are small run together, so that at most so many and what is behind them are left; and where each such run ends."""
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
    return ends, Gradients(*sums)


def _stage(
    stage: PlanStage, names: Sequence[str], runs: Sequence[int], gradients: Gradients, fusion: Fusion, threads: bool
) -> PlanStage:
    """A stage with these buckets; what has no gradients goes with the bucket before.

    Arguments:
        names: of its layers, in the order of a backward. runs: where each entry of the gradients ends among them.
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


def _fits(plan: Plan, profile: ModelProfile, peaks: dict[int, float]) -> bool:
    """Whether a plan fits, whatever the timing where it is near to not fitting."""
    cluster = plan.group.cluster
    if all(size <= NEAR * cluster.capacity_bytes(device) for device, size in peaks.items()):
        return True
    situation = Situation(profile_of_group(plan, profile), cluster, plan.batch_size)
    choice = Choice(plan.cuts(profile), plan.microbatch_size, plan.microbatches, plan.options)
    most = proven_peaks(situation, plan.strategy, choice)
    return all(max(peaks[device], size) <= cluster.capacity_bytes(device) for device, size in most.items())


def _text(before: Plan, after: Plan, gain: float) -> str:
    """What other buckets gain, in a sentence."""
    summing = [s for s, stage in enumerate(after.stages) if len(stage.devices) > 1]
    old, new = ([max(1, len(plan.stages[s].buckets)) for s in summing] for plan in (before, after))
    threads = [lane for s in summing for lane in after.stages[s].threads]
    by = "" if len(summing) == 1 else " by stage"
    size = f" of {DEFAULT_BUCKET_BYTES // 2**20} MiB"
    lanes = f" with {_numbers(threads, ', ')} threads" if threads else ""
    same = all(before.stages[s].buckets == after.stages[s].buckets for s in summing)
    if not same and all(_takes_own(after, s) for s in summing):
        lanes = ""
    if same:
        return f"buckets: {_numbers(old)}{by}{size}{lanes} instead of as many as the library takes: {gain:.1%} quicker"
    return f"buckets: {_numbers(new)}{by}{lanes} instead of {_numbers(old)}{size}: {gain:.1%} quicker"


def _takes_own(plan: Plan, s: int) -> bool:
    """Whether all threads of a stage are as many as the library would take by itself."""
    cluster, stage = plan.group.cluster, plan.stages[s]
    overlap = cluster.levels[cluster.level_of(stage.devices)].overlap
    return overlap is not None and set(stage.threads) <= {overlap.own_threads}


def _numbers(numbers: Sequence[int], between: str = "-", most: int = 12) -> str:
    if len(numbers) > most:
        least, largest = min(numbers), max(numbers)
        return f"{least} to {largest}" if least < largest else str(least)
    return between.join(map(str, numbers))

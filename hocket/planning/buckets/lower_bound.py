"""Lower bound of a plan's device-seconds for any gradient buckets and threads.

Rules of this file: all-reduces have no startup latency and do not slow computation down. Each stage sums only the
gradients of its first layer with gradients, which are ready last in the backward, at the rate of the fastest number of
threads. An all-gather of updated weights takes the time of its bytes, without startup latency.
"""

from dataclasses import replace

from hocket.hardware.cluster import Level, Link
from hocket.hardware.overlap import Rate
from hocket.planning.burst.amplification_limit import held_s
from hocket.planning.plan import Plan
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_choice, trace_of_choice
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.busy_time import active_s
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import yields_idle


def least_used_s(plan: Plan, profile: ModelProfile) -> float:
    """Lower bound of an iteration's device-seconds (amplification.py).

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    space, choice = _freed(plan, profile)
    if yields_idle(plan.strategy):
        return plan.tensor * sum(active_s(trace_of_choice(space, plan.strategy, choice)).values())
    return held_s(plan.stages, predict_choice(space, plan.strategy, choice).iteration_s, plan.tensor)


def _freed(plan: Plan, profile: ModelProfile) -> tuple[SearchSpace, Candidate]:
    run = PlannedRun.of(plan, profile)
    whole, cluster, cuts = run.profile, run.cluster, run.cuts
    summed = [[i for i in cut.layers if whole.layers[i].gradients_bytes > 0] for cut in cuts]
    last = {layers[0] for layers in summed if layers}
    layers = tuple(layer if i in last else replace(layer, gradients_bytes=0.0) for i, layer in enumerate(whole.layers))
    stages = tuple(replace(cut, threads=()) for cut in cuts)
    freed = replace(cluster, levels=tuple(map(_quickest, cluster.levels)))
    space = SearchSpace(replace(whole, layers=layers), freed, plan.batch_size)
    return space, Candidate(stages, plan.microbatch_size, plan.microbatches, plan.options)


def _quickest(level: Level) -> Level:
    ring, overlap = level.all_reduce or level.link, level.overlap
    if overlap is not None:
        threads = {overlap.own_threads, *overlap.usable}
        most = max(rate.at(own) for rate in (overlap.beside, overlap.alone) for own in threads)
        rate = Rate(most, 0.0, 0.0)
        overlap = replace(overlap, beside=rate, alone=rate).without_contention()
        overlap = replace(overlap, latency_s=0.0)
    return replace(level, all_reduce=Link(ring.bandwidth_bytes_per_s), overlap=overlap)

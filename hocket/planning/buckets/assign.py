"""Choose gradient buckets and communication threads for a search's best plans.

Rules of this file: the default buckets close at a fixed number of bytes. Others replace them only if the simulator
finds them faster and they fit into memory. The options to choose from come from options.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hocket.planning.buckets.lower_bound import least_used_s
from hocket.planning.buckets.options import ways
from hocket.planning.buckets.threads import WORTH
from hocket.planning.burst.amplification import device_s
from hocket.planning.burst.amplification_limit import Tolerance, held_s
from hocket.planning.plan import Plan, Predicted
from hocket.planning.predict.planned_run import PlannedRun
from hocket.planning.predict.predict import predict_iteration, proven_peaks
from hocket.planning.search.failures import failed
from hocket.planning.search.result import NEAR, Evaluated, Refused, Search
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.gradients import DEFAULT_BUCKET_BYTES
from hocket.strategies.base.search_space import Candidate, SearchSpace
from hocket.strategies.base.strategy import yields_idle

FINALISTS = 3  # number of fastest candidates for which buckets are chosen, in addition to the fastest of each strategy
REACH = 0.25  # share by which the iteration of such a candidate may be longer than the best candidate's


@dataclass(frozen=True)
class Rebucketed:
    """A plan with other gradient buckets, or other communication threads.

    Attributes:
        plan: the plan, including its prediction.
        predicted: the same prediction.
        text: the new buckets and the time that they save, in a sentence.
        used_s: device-seconds of an iteration; 0 without a limit on amplification.
    """

    plan: Plan
    predicted: Predicted
    text: str
    used_s: float


def best_few(
    search: Search, tolerance: Tolerance | None = None, refused: list[Refused] | None = None
) -> list[Evaluated]:
    """Choose buckets and threads for the fastest candidates.

    They are the first FINALISTS candidates that sum gradients, and the first one of each strategy, so that a search
    for one strategy alone gives the same plan. Candidates that are slower than the best one by more than REACH are
    left out. A candidate that sums gradients and is left out gets `default_buckets`; all others stay as they are.

    Arguments:
        search: result of a search, with the best candidate first.
        tolerance: limit on amplification, which holds for the new buckets as well.
        refused: list to which failures are added; the candidate then stays as it was. None: failures are raised.

    Returns:
        All candidates, in the given order.
    """
    found = list(search.candidates)
    limit_s = min((one.iteration_s for one in found), default=0.0) * (1 + REACH)
    summing = [k for k, one in enumerate(found) if _sums(one.plan)]
    near = [k for k in summing if found[k].iteration_s <= limit_s]
    first = {found[k].strategy: k for k in reversed(near)}
    chosen = {*near[:FINALISTS], *first.values()}
    for k in summing:
        if found[k].buckets:  # chosen already, because the plan exceeds the amplification limit without them
            continue
        if k not in chosen:
            found[k] = replace(found[k], default_buckets=True)
            continue
        try:
            opened = search.loaded(found[k])
            better = rebucketed(opened.plan, opened.profile, tolerance)
        except Exception as error:
            if refused is None:
                raise
            refused.append(failed(found[k].strategy, f"{found[k].config} with other buckets", error))
            continue
        if better is not None:
            found[k] = replace(
                found[k],
                predicted=better.predicted,
                plan=better.plan,
                buckets=better.text,
                amplification=better.used_s / tolerance.alone_s if tolerance else None,
            )
    return found


def rebucketed(plan: Plan, profile: ModelProfile, tolerance: Tolerance | None = None) -> Rebucketed | None:
    """Choose the fastest buckets and threads of a plan.

    Arguments:
        plan: with or without its prediction.
        profile: the profile that the plan names.
        tolerance: limit on amplification.

    Returns:
        The plan with other buckets or threads. None if its present ones are as good, or it sums no gradients.

    Raises:
        InputError: the plan does not fit the profile.
        RefusedError: the strategy does not support the plan.
    """
    if not _sums(plan):
        return None
    before_s = (plan.predicted or predict_iteration(plan, profile)).iteration_s
    return _quickest(plan, before_s, profile, tolerance)


def kept_by_buckets(plan: Plan, profile: ModelProfile, tolerance: Tolerance) -> Rebucketed | None:
    """Choose buckets that bring a plan below the amplification limit.

    Buckets are tried only if the plan's lower bound for any buckets (lower_bound.py) is within the limit.

    Returns:
        The plan with other buckets. None if the plan has no prediction, or no tried buckets meet the limit.
    """
    if plan.predicted is None or not _sums(plan) or tolerance.refusal(least_used_s(plan, profile)):
        return None
    return _quickest(plan, plan.predicted.iteration_s, profile, tolerance)


def _quickest(plan: Plan, before_s: float, profile: ModelProfile, tolerance: Tolerance | None) -> Rebucketed | None:
    best, best_s, used_s = None, before_s / (1 + WORTH), 0.0
    for stages, gain_s in dict.fromkeys(ways(plan, profile)):
        if stages == plan.stages or gain_s < WORTH / 2 * before_s:
            continue
        other = replace(plan, stages=stages, predicted=None)
        predicted = predict_iteration(other, profile)
        if predicted.iteration_s >= best_s or not _fits(other, profile, predicted.peak_memory_bytes):
            continue
        other = replace(other, predicted=predicted)
        if tolerance is not None:
            # With a strategy that yields idle devices, a shorter iteration may use more device-seconds: an all-reduce
            # with fewer threads lasts longer.
            other_s = _used_s(other, profile)
            if tolerance.refusal(other_s):
                continue
            used_s = other_s
        best, best_s = other, predicted.iteration_s
    if best is None or best.predicted is None:
        return None
    return Rebucketed(best, best.predicted, _text(plan, best, before_s / best_s - 1), used_s)


def _sums(plan: Plan) -> bool:
    """True if some stage sums gradients and has a choice of buckets or threads.

    A sharded stage with a single layer has no choice.
    """
    whole = plan.shard == "none"
    return any(len(stage.devices) > 1 and (whole or len(stage.layers) > 1) for stage in plan.stages)


def _used_s(plan: Plan, profile: ModelProfile) -> float:
    """Device-seconds of a plan's iteration.

    The plan is simulated only if it has no prediction, or its strategy yields idle devices to other jobs.
    """
    if plan.predicted is None or yields_idle(plan.strategy):
        return device_s(plan, profile)
    return held_s(plan.stages, plan.predicted.iteration_s, plan.tensor)


def _fits(plan: Plan, profile: ModelProfile, peaks: dict[int, float]) -> bool:
    """True if a plan fits into device memory.

    Near the limit (NEAR), the peak memory for any timing is computed as well.

    Arguments:
        peaks: predicted peak bytes, by device.
    """
    cluster = plan.group.cluster
    if all(size <= NEAR * cluster.capacity_bytes(device) for device, size in peaks.items()):
        return True
    run = PlannedRun.of(plan, profile)
    space = SearchSpace(run.profile, cluster, plan.batch_size)
    choice = Candidate(run.cuts, plan.microbatch_size, plan.microbatches, plan.options)
    most = proven_peaks(space, plan.strategy, choice)
    return all(max(peaks[device], size) <= cluster.capacity_bytes(device) for device, size in most.items())


def _text(before: Plan, after: Plan, gain: float) -> str:
    """Sentence about the new buckets.

    Arguments:
        gain: share by which the plan before takes longer.
    """
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
        return f"buckets: {_numbers(old)}{by}{size}{lanes} instead of the library's default: {gain:.1%} quicker"
    return f"buckets: {_numbers(new)}{by}{lanes} instead of {_numbers(old)}{size}: {gain:.1%} quicker"


def _takes_own(plan: Plan, s: int) -> bool:
    """True if all threads of a stage equal the library's default."""
    cluster, stage = plan.group.cluster, plan.stages[s]
    overlap = cluster.levels[cluster.level_of(stage.devices)].overlap
    return overlap is not None and set(stage.threads) <= {overlap.own_threads}


def _numbers(numbers: Sequence[int], between: str = "-", most: int = 12) -> str:
    if len(numbers) > most:
        least, largest = min(numbers), max(numbers)
        return f"{least} to {largest}" if least < largest else str(least)
    return between.join(map(str, numbers))

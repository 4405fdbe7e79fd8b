"""Choice whether the first stage reads the samples for all stages."""

from dataclasses import replace

from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.result import NEAR, TIE, Evaluated
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import batch_tensors
from hocket.util.compatibility import Feature, conflict


def with_read_once(candidate: Evaluated, profile: ModelProfile) -> Evaluated:
    """Let the first stage of a candidate read the samples for all stages, if that is predicted to be faster.

    The other stages then receive the items that they need, and read no samples. The candidate stays the same if one
    stage needs items, if its loads take less than a tie of its iteration, or if the gain is less than a tie. Items that
    wait need memory, so it also stays the same if a device's peak would have to be proved again.
    """
    plan = candidate.plan
    if not _may_gain(candidate, profile):
        return candidate
    once = replace(plan, predicted=None, read_once=True)
    predicted = predict_iteration(once, profile)
    if predicted.iteration_s > (1 - TIE) * candidate.iteration_s:
        return candidate
    cluster = plan.group.cluster
    if any(size > NEAR * cluster.capacity_bytes(device) for device, size in predicted.peak_memory_bytes.items()):
        return candidate
    config = f"{candidate.config} read once"
    return replace(candidate, predicted=predicted, config=config, plan=replace(once, predicted=predicted))


def _may_gain(candidate: Evaluated, profile: ModelProfile) -> bool:
    plan = candidate.plan
    weighted = {Feature.LOSS_WEIGHT} if profile.loss_weighted else set()
    if conflict({*plan.features, *weighted, Feature.READ_ONCE}) or _readers(plan, profile) < 2:
        return False
    loads_s = plan.microbatches * profile.figures(plan.microbatch_size).load_s
    return loads_s > TIE * candidate.iteration_s


def _readers(plan: Plan, profile: ModelProfile) -> int:
    """Number of stages that load items of the batch."""
    return len(batch_tensors(profile.tensors, plan.cuts(profile)))

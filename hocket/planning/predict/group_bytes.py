"""Bytes that tensor-parallel ranks exchange inside layers, for one batch."""

from collections import Counter

from hocket.planning.plan import Plan
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import crossing


def group_bytes(plan: Plan, profile: ModelProfile) -> float:
    """Bytes that the ranks of all groups send each other for one batch.

    They comprise the rings of all-reduces and gathers, and the gathers of messages that each rank has received in
    part (`slices`).
    """
    if plan.tensor == 1:
        return 0.0
    cuts = plan.cuts(profile)
    reduced = gathered = 0.0
    for size, count in Counter(plan.samples(m) for m in range(plan.microbatches)).items():
        reduced_bytes, gathered_bytes = (profile.column(key, size) for key in ("reduced_bytes", "gathered_bytes"))
        for cut in cuts:
            for i in cut.layers:
                (reductions, reductions_back), (gathers, gathers_back) = (
                    profile.layers[i].reductions,
                    profile.layers[i].gathers,
                )
                again = 1 + cut.recompute
                reduced += count * float(reduced_bytes[i]) * (reductions * again + reductions_back)
                gathered += count * float(gathered_bytes[i]) * (gathers * again + gathers_back)
        sizes = profile.tensor_bytes(size)
        for indices in crossing(profile.tensors, cuts).values() if plan.slices else ():
            back = [i for i in indices if profile.tensors[i].gradient]
            for message in (indices, back):
                if not any(profile.tensors[i].own for i in message):  # such a message is sent whole
                    gathered += count * float(sum(sizes[i] for i in message))
    # Each rank sends 2 (t - 1) / t of the reduced bytes, and (t - 1) / t of the gathered bytes.
    return (plan.tensor - 1) * (2 * reduced + gathered)

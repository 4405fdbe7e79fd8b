"""Choice of the stages to compile: stages that are faster compiled in the profile."""

from dataclasses import replace

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.planning.burst.amplification import device_s
from hocket.planning.plan import Plan
from hocket.planning.predict.predict import predict_iteration
from hocket.planning.search.result import Evaluated
from hocket.profiling.profile import ModelProfile
from hocket.util.units import show_seconds

WORTH = 0.03  # least gain of a compiled stage, as a share of its forwards and backwards


def compiled(candidate: Evaluated, profile: ModelProfile) -> Evaluated:
    """Set `compile` for a candidate's stages that are faster compiled.

    The candidate stays the same if none is.
    """
    plan = _where_it_pays(candidate.plan, profile)
    if plan == candidate.plan:
        return candidate
    predicted, used = predict_iteration(replace(plan, predicted=None), profile), candidate.amplification
    if used is not None:
        used *= device_s(plan, profile) / device_s(candidate.plan, profile)
    return replace(
        candidate,
        predicted=predicted,
        config=f"{candidate.config} compiled",
        plan=replace(plan, predicted=predicted),
        amplification=used,
    )


def told(plan: Plan, profile: ModelProfile) -> str:
    """Sentence about time that compilation saves in each stage, and costs at first."""
    known = profile.compiled
    assert known is not None
    said = []
    for s, (stage, gain) in enumerate(zip(plan.stages, _gains(plan, profile), strict=True)):
        way = "less" if gain > 0 else "more"
        said.append(
            f"stage {s} takes {abs(gain):.0%} {way} time compiled: {'compiled' if stage.compile else 'not compiled'}"
        )
    cold = f"compiling all layers for one microbatch size took {show_seconds(known.cold_s)}, which a worker spends before its first step"
    return f"{known.backend}: {'; '.join(said)}; {cold}"


def _where_it_pays(plan: Plan, profile: ModelProfile) -> Plan:
    known = profile.compiled
    elsewhere = _types(plan.cluster) - {profile.device_type}
    if known is None or elsewhere:
        return plan
    stages = tuple(
        replace(stage, compile=known.backend if gain > WORTH else "")
        for stage, gain in zip(plan.stages, _gains(plan, profile), strict=True)
    )
    return plan if stages == plan.stages else replace(plan, stages=stages)


def _types(cluster: Cluster) -> set[str]:
    return {node.device_type for node in cluster.nodes} or {cluster.device_type}


def _gains(plan: Plan, profile: ModelProfile) -> list[float]:
    """Share of each stage's forwards and backwards that compilation saves.

    Below 0 if compilation makes the stage slower.
    """
    both = [_seconds(one, plan.microbatch_size) for one in (profile, profile.compiling(range(len(profile.layers))))]
    found = []
    for cut in plan.cuts(profile):
        plain, code = (float(seconds[list(cut.layers)].sum()) for seconds in both)
        found.append(1 - code / plain if plain > 0 else 0.0)
    return found


def _seconds(profile: ModelProfile, samples: int) -> np.ndarray:
    return profile.column("forward_s", samples) + profile.column("backward_s", samples)

"""Plan of one candidate of a search."""

from hocket.planning.plan import Plan, PlanStage
from hocket.strategies.base.search_space import Candidate, SearchSpace


def make_plan(space: SearchSpace, name: str, candidate: Candidate, profile_path: str = "") -> Plan:
    """Write a candidate as a plan, without a prediction."""
    layers = space.profile.layers
    stages = tuple(
        PlanStage(
            layers=tuple(layers[i].name for i in stage.layers),
            devices=stage.devices,
            recompute=stage.recompute,
            buckets=tuple(tuple(layers[i].name for i in bucket) for bucket in stage.buckets),
            threads=stage.threads,
            wave=stage.wave,
        )
        for stage in candidate.stages
    )
    return Plan(
        strategy=name,
        model=space.profile.name,
        batch_size=space.batch_size,
        microbatch_size=candidate.microbatch_size,
        stages=stages,
        cluster=space.cluster,
        options=dict(candidate.options),
        profile=profile_path,
        profile_digest=space.profile.digest,
        model_digest=space.profile.digest_of_model,
        dtype=space.profile.dtype if space.profile.digest_of_model else "",
        shard=candidate.stages[0].shard,
        prefetch=space.prefetch,
        loaders=space.loaders,
    )

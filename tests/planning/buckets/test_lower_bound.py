"""Lower bound of device-seconds for any buckets and threads."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.hardware.cluster import Cluster, Level, Link
from hocket.planning.buckets.lower_bound import least_used_s
from hocket.planning.burst.amplification import device_s
from hocket.planning.plan import Plan, PlanStage
from hocket.planning.predict.predict import played, predict_iteration
from hocket.planning.search.request import PlanRequest
from hocket.planning.search.search import search
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.trace.update_time import update_s
from tests.planning.helpers.situations import clusters, profiles
from tests.tiers import examples


def test_stages_that_run_ahead_do_not_make_a_plan_use_less() -> None:
    """Without gradients to sum, a device whose messages are shorter is ahead of the others, more with each update."""
    profile = chain(2, forward_s=1e-3, backward_s=1e-3, activation_bytes=1e3, weights_bytes=0, device_type="cpu-core")
    levels = Level("server", 3, 1e7, 1e-3, False, Link(1e9)), Level("net", 2, 1e8, 1e-3, False, Link(1e9))
    stages = PlanStage(("layer0",), (0, 1)), PlanStage(("layer1",), (2, 3))
    plan = Plan("flush", profile.name, 2, 1, stages, Cluster("c", levels, profile.device_type))
    updates_s = update_s(played(plan, profile).trace)
    iteration_s = predict_iteration(plan, profile).iteration_s
    assert updates_s < iteration_s * (1 - 1e-3)
    assert device_s(plan, profile) == pytest.approx(4 * iteration_s)
    assert least_used_s(plan, profile) <= device_s(plan, profile) * (1 + 1e-9)


@examples(15)
@given(profile=profiles(most=4), on=clusters(), batch_size=st.integers(1, 6), data=st.data())
def test_no_buckets_use_less(profile: ModelProfile, on: Cluster, batch_size: int, data: st.DataObject) -> None:
    """No buckets are below the bound, for several strategies, sharded or not."""
    levels = (level.overlap and replace(level.overlap, threads=(1, 3)) for level in on.levels)
    on = replace(
        on, levels=tuple(replace(level, overlap=known) for level, known in zip(on.levels, levels, strict=True))
    )
    names = ("data_parallel", "flush", "burst_parallel", "fully_sharded")
    shards = data.draw(st.sampled_from(((), ("none",), ("optimizer",))))
    found = search(profile, on, PlanRequest(batch_size, strategies=names, buckets="default", shards=shards)).candidates
    for one in data.draw(st.lists(st.sampled_from(found), max_size=3)) if found else ():
        stages = []
        for stage in one.plan.stages:
            inner = data.draw(st.sets(st.integers(1, len(stage.layers) - 1))) if len(stage.layers) > 1 else set[int]()
            ends = (0, *sorted(inner), len(stage.layers))
            buckets = tuple(stage.layers[::-1][a:b] for a, b in pairwise(ends))
            if len(stage.devices) > 1:
                known = on.levels[on.level_of(stage.devices)].overlap is not None and one.plan.shard == "none"
                threads = tuple(data.draw(st.sampled_from((1, 3))) for _ in buckets) if known else ()
                stage = replace(stage, buckets=buckets, threads=threads)
            stages.append(stage)
        plan = replace(one.plan, stages=tuple(stages), predicted=None)
        assert least_used_s(plan, profile) <= device_s(plan, profile) * (1 + 1e-9)


@pytest.mark.parametrize(("shard", "sums_s"), [("none", 0.25), ("optimizer", 0.125 + 0.5)])
def test_what_is_left(shard: str, sums_s: float) -> None:
    """The bound contains computation, the sum of the last gradients, and gathers."""
    profile = chain(4, forward_s=1.0, backward_s=2.0, weights_bytes=1e9, microbatch_sizes=(1,), device_type="v100-16gb")
    on = Cluster("two", (Level("wire", 2, 4e9, 1e-3),), "v100-16gb")
    plan: Plan = search(
        profile, on, PlanRequest(2, strategies=("data_parallel",), shards=(shard,), buckets="default")
    ).best.plan
    assert len(plan.stages[0].devices) == 2
    steps_s = sum(layer.step_s for layer in profile.layers) / (1 if shard == "none" else 2)
    assert least_used_s(plan, profile) == pytest.approx(2 * (12.0 + steps_s + sums_s))

"""Options for a plan's buckets: their gradients and estimated gains."""

from dataclasses import replace

import pytest

from hocket.cost.model import CostModel
from hocket.hardware.cluster import Level
from hocket.planning.buckets.options import gradients_of, ways
from hocket.planning.plan import PlanStage
from hocket.planning.predict.predict import predict_iteration
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut
from tests.planning.buckets.test_assign import KNOWN, MANY, cluster, plan_of, replicated


def test_gradients_are_those_of_the_simulator() -> None:
    """Gradients are grouped and timed as in the simulator.

    Layers without weights join the next layer with weights. Computation after the last gradients is after all
    buckets. Tied weights are in none of the buckets.
    """
    profile = chain(
        5, backward_s=[1.0, 2.0, 3.0, 4.0, 5.0], weights_bytes=[0.0, 8.0, 0.0, 6.0, 4.0], device_type="v100-16gb"
    )
    layers = tuple(
        replace(layer, parameters=names)
        for layer, names in zip(profile.layers, [(), ("tied",), (), ("own",), ("tied",)], strict=True)
    )
    tied = replace(profile, layers=layers)
    on = cluster(Level("server", 4, 1e9))

    def gradients(one: ModelProfile, cuts: tuple[StageCut, ...], s: int) -> object:
        return gradients_of(CostModel(one, on, cuts, (2, 2)), s)

    whole = StageCut((0, 1, 2, 3, 4), (0, 1), buckets=((4,), (3,), (2,), (1,), (0,)))
    found = gradients_of(CostModel(profile, on, (whole,), (2, 2)), 0)
    assert found is not None
    assert found.sizes_bytes == (4.0, 6.0, 0.0, 8.0, 0.0, 0.0)
    assert found.computes_s == pytest.approx((10.0, 8.0, 0.0, 10.0, 0.0, 2.0))
    halves = (StageCut((0, 1, 2), (0, 1), buckets=((2, 1, 0),)), StageCut((3, 4), (2, 3), buckets=((4,), (3,))))
    assert gradients(tied, halves, 0) is None
    second = gradients_of(CostModel(tied, on, halves, (2, 2)), 1)
    assert second is not None
    assert second.sizes_bytes == (0.0, 6.0)


@pytest.mark.parametrize("shard", ["none", "optimizer"])
@pytest.mark.parametrize("overlap", [None, KNOWN])
def test_what_is_gained_is_what_an_iteration_gains(overlap: object, shard: str) -> None:
    """The estimated gain equals the gain of an iteration.

    The sums of the stage have a separate link. Of two stages on the same devices both gains count; of two stages on
    different devices, the larger.
    """
    plan = replicated(MANY, cluster(overlap=overlap), shard=shard)
    before_s = predict_iteration(plan, MANY).iteration_s
    for stages, gain_s in ways(plan, MANY):
        after_s = predict_iteration(replace(plan, stages=stages), MANY).iteration_s
        assert before_s - after_s == pytest.approx(gain_s, rel=1e-3, abs=1e-9)
    names = plan.stages[0].layers
    halves = (names[:20], names[20:])
    apart, beside = (
        plan_of(
            MANY,
            plan.cluster,
            tuple(PlanStage(own, devices) for own, devices in zip(halves, places, strict=True)),
            strategy,
            shard=shard,
        )
        for strategy, places in (("flush", ((0, 1), (2, 3))), ("fully_sharded", ((0, 1), (0, 1))))
    )
    each = [
        ways(replace(apart, stages=(apart.stages[0], replace(apart.stages[1], devices=(2,)))), MANY)[1].gain_s,
        ways(replace(apart, stages=(replace(apart.stages[0], devices=(0,)), apart.stages[1])), MANY)[1].gain_s,
    ]
    assert min(each) > 0
    assert ways(apart, MANY)[1].gain_s == pytest.approx(max(each), rel=0.1)
    if shard == "optimizer":
        assert ways(replace(beside, shard="full"), MANY)[1].gain_s == pytest.approx(sum(each), rel=0.1)
